"""Anthropic's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from understudy.actors.models._arguments import ArgumentsInPieces
from understudy.actors.models._provider import (
    CONNECT_TIMEOUT,
    NO_OPTIONS,
    NO_PRICES,
    READ_TIMEOUT,
    ProviderModel,
    ended_early,
    key_to_send,
)
from understudy.actors.models.errors import MissingExtraError
from understudy.protocol.model import TextDelta, Truncated

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping

    from understudy.actors.models._room import Room
    from understudy.actors.models.prices import Price, Tokens
    from understudy.protocol.model import ModelEvent, ModelRequest, Turn

MAX_TOKENS = 8_192
"""The longest answer unless the host says otherwise; the API demands a number."""

_CUT_OFF = {"max_tokens", "model_context_window_exceeded"}


class AnthropicModel(ProviderModel):
    """A model behind the official ``anthropic`` SDK (``pip install 'understudy[anthropic]'``).

    The key comes from ``ANTHROPIC_API_KEY`` unless given. An endpoint of your own (``base_url``) may need none, and
    is never sent the one from the environment. ``options`` go into every request as they stand.

    Example:
        >>> AnthropicModel("claude-sonnet-4-5", api_key="sk-ant-…")
        AnthropicModel('claude-sonnet-4-5')
    """

    provider = "anthropic"

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        max_tokens: int = MAX_TOKENS,
        prices: Mapping[str, Price] = NO_PRICES,
        options: Mapping[str, object] = NO_OPTIONS,
        read_timeout: float | None = READ_TIMEOUT,
    ) -> None:
        try:
            import anthropic  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise MissingExtraError(
                f"AnthropicModel needs the anthropic package: pip install 'understudy[anthropic]' ({error})"
            ) from None
        key = key_to_send(api_key, variable="ANTHROPIC_API_KEY", base_url=base_url, model="AnthropicModel")
        super().__init__(model, prices=prices, options={"max_tokens": max_tokens, **options}, secret=key)
        self._base_url = base_url
        self._settings = {
            # The SDK insists on a key; one that is empty would make an illegal header.
            "api_key": key or "none",
            "base_url": base_url,
            # Retries are ours: on the injected clock, under the run's deadline.
            "max_retries": 0,
            "timeout": anthropic.Timeout(read_timeout, connect=CONNECT_TIMEOUT, pool=None),
        }

    def _address(self) -> str | None:
        return self._base_url

    def _make_client(self) -> Any:
        import anthropic  # noqa: PLC0415 - an extra

        client = anthropic.AsyncAnthropic(**self._settings, http_client=self._http_client(anthropic))
        # Older SDKs send ANTHROPIC_AUTH_TOKEN besides the key they were given, wherever it goes.
        client.auth_token = None
        return client

    async def _open(self, client: Any, request: ModelRequest) -> Any:
        asked: dict[str, Any] = {
            "model": request.model or self.model,
            "messages": _messages(request.turns),
            "stream": True,
        }
        # The format has one place for system text, whatever its place in the history.
        if system := [turn.text for turn in request.turns if turn.role == "system" and turn.text.strip()]:
            asked["system"] = "\n\n".join(system)
        if request.tools:
            asked["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
                for tool in request.tools
            ]
        return await client.messages.create(**asked, **self._options)

    async def _events(self, stream: Any, tokens: Tokens, room: Room) -> AsyncGenerator[ModelEvent, None]:
        answer = _Answer(tokens, room)
        async for event in stream:
            said = answer.take(event)
            if said is not None:
                yield said
        if not answer.complete:
            raise ended_early(self.provider)
        if answer.stop_reason in _CUT_OFF:
            yield Truncated()


class _Answer:
    """An answer as its events come in."""

    def __init__(self, tokens: Tokens, room: Room) -> None:
        self._room = room
        self._tokens = tokens
        self._calls: dict[int, ArgumentsInPieces] = {}
        self.stop_reason: str | None = None
        self.complete = False

    def take(self, event: Any) -> ModelEvent | None:
        """What one event of the wire says, if it says anything."""
        said: ModelEvent | None = None
        match event.type:
            case "message_start":
                _count(event.message.usage, self._tokens)
            case "content_block_start" if event.content_block.type == "tool_use":
                block = event.content_block
                self._calls[event.index] = ArgumentsInPieces(block.id, block.name, self._room)
            case "content_block_delta" if event.delta.type == "text_delta":
                self._room.take(event.delta.text)
                said = TextDelta(event.delta.text) if event.delta.text else None
            case "content_block_delta" if event.delta.type == "input_json_delta":
                self._calls[event.index].add(event.delta.partial_json)
            case "content_block_stop" if event.index in self._calls:
                said = self._calls.pop(event.index).call()
            case "message_delta":
                _count(event.usage, self._tokens)
                self.stop_reason = event.delta.stop_reason or self.stop_reason
            case "message_stop":
                self.complete = True
        return said


def _count(usage: Any, tokens: Tokens) -> None:
    """Later reports are sums: they replace what was said before, where they say anything."""
    for name, attribute in (
        ("input_tokens", "fresh"),
        ("cache_read_input_tokens", "cache_read"),
        ("cache_creation_input_tokens", "cache_write"),
        ("output_tokens", "output"),
    ):
        if (count := getattr(usage, name, None)) is not None:
            setattr(tokens, attribute, count)


def _messages(turns: Iterable[Turn]) -> list[dict[str, Any]]:
    """Roles in turn, as the format demands: neighbours of one role become one message, tool results first in it."""
    messages: list[dict[str, Any]] = []
    for turn in turns:
        blocks = _blocks(turn)
        role = "assistant" if turn.role == "assistant" else "user"
        if not blocks:
            continue
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    for message in messages:
        message["content"].sort(key=lambda block: block["type"] != "tool_result")
    return messages


def _blocks(turn: Turn) -> list[dict[str, Any]]:
    if turn.role == "system":
        return []
    if turn.role == "tool":
        return [{"type": "tool_result", "tool_use_id": turn.tool_call_id or "", "content": turn.text}]
    # The API refuses blank text.
    text = [{"type": "text", "text": turn.text}] if turn.text.strip() else []
    uses = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}
        for call in turn.tool_calls
    ]
    return [*text, *uses]
