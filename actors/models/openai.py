"""OpenAI's chat completions, and every endpoint that speaks them: vLLM, Ollama, llama.cpp and others."""

from __future__ import annotations

import json
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
    from collections.abc import AsyncGenerator, Mapping

    from understudy.actors.models._room import Room
    from understudy.actors.models.prices import Price, Tokens
    from understudy.protocol.model import ModelEvent, ModelRequest, Turn


class OpenAIModel(ProviderModel):
    """A model behind the official ``openai`` SDK (``pip install 'understudy[openai]'``).

    The key comes from ``OPENAI_API_KEY`` unless given. An endpoint of your own (``base_url``) may need none, and is
    never sent the one from the environment.
    ``options`` go into every request as they stand, such as ``{"temperature": 0}``.

    Example:
        >>> OpenAIModel("qwen3", base_url="http://127.0.0.1:11434/v1")
        OpenAIModel('qwen3', base_url='http://127.0.0.1:11434/v1')
    """

    provider = "openai"

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        prices: Mapping[str, Price] = NO_PRICES,
        options: Mapping[str, object] = NO_OPTIONS,
        read_timeout: float | None = READ_TIMEOUT,
    ) -> None:
        try:
            import openai  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise MissingExtraError(
                f"OpenAIModel needs the openai package: pip install 'understudy[openai]' ({error})"
            ) from None
        key = key_to_send(api_key, variable="OPENAI_API_KEY", base_url=base_url, model="OpenAIModel")
        super().__init__(model, prices=prices, options=options, secret=key)
        self._base_url = base_url
        self._settings = {
            # The SDK insists on a key; one that is empty would make an illegal header.
            "api_key": key or "none",
            "base_url": base_url,
            # Retries are ours: on the injected clock, under the run's deadline.
            "max_retries": 0,
            "timeout": openai.Timeout(read_timeout, connect=CONNECT_TIMEOUT, pool=None),
        }

    def _address(self) -> str | None:
        return self._base_url

    def _make_client(self) -> Any:
        import openai  # noqa: PLC0415 - an extra

        return openai.AsyncOpenAI(**self._settings, http_client=self._http_client(openai))

    async def _open(self, client: Any, request: ModelRequest) -> Any:
        asked: dict[str, Any] = {
            "model": request.model or self.model,
            "messages": [_message(turn) for turn in request.turns],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.tools:
            asked["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": dict(tool.parameters),
                    },
                }
                for tool in request.tools
            ]
        return await client.chat.completions.create(**asked, **self._options)

    async def _events(self, stream: Any, tokens: Tokens, room: Room) -> AsyncGenerator[ModelEvent, None]:
        calls = _Calls(room)
        finished: str | None = None
        async for chunk in stream:
            _count(chunk, tokens)
            for choice in chunk.choices or ():
                delta = choice.delta
                text = (delta.content or getattr(delta, "refusal", None)) if delta else None
                if text:
                    room.take(text)
                    yield TextDelta(text)
                for piece in (delta.tool_calls if delta else None) or ():
                    calls.add(piece)
                finished = choice.finish_reason or finished
        if finished is None:
            raise ended_early(self.provider)
        for call in calls.whole():
            yield call.call()
        if finished == "length":
            yield Truncated()


class _Calls:
    """Tool calls as their pieces come in."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._calls: list[ArgumentsInPieces] = []
        self._current: dict[int, ArgumentsInPieces] = {}

    def add(self, piece: Any) -> None:
        function = piece.function
        index = piece.index or 0
        current = self._current.get(index)
        # Some servers send several whole calls under the same index: a new id is a new call.
        if current is None or (piece.id and piece.id != current.call_id):
            call_id = piece.id or f"call_{len(self._calls) + 1}"
            current = self._current[index] = ArgumentsInPieces(call_id, (function and function.name) or "", self._room)
            self._calls.append(current)
        elif function and function.name and not current.name:
            current.name = function.name
        if function and function.arguments:
            current.add(function.arguments)

    def whole(self) -> list[ArgumentsInPieces]:
        return self._calls


def _count(chunk: Any, tokens: Tokens) -> None:
    usage = chunk.usage
    if usage is None:
        return
    details = usage.prompt_tokens_details
    tokens.cache_read = (details and details.cached_tokens) or 0
    # OpenAI's prompt tokens have the cached ones in them.
    tokens.fresh = max((usage.prompt_tokens or 0) - tokens.cache_read, 0)
    tokens.output = usage.completion_tokens or 0


def _message(turn: Turn) -> dict[str, Any]:
    if turn.role == "tool":
        return {"role": "tool", "tool_call_id": turn.tool_call_id or "", "content": turn.text}
    message: dict[str, Any] = {"role": turn.role, "content": turn.text}
    if turn.tool_calls:
        message["content"] = turn.text or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
            }
            for call in turn.tool_calls
        ]
    return message
