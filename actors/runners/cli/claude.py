"""Claude Code: its profile and its stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from understudy.actors.runners.cli.profile import CliProfile
from understudy.actors.runners.cli.stream import JsonLines, as_text, beyond, count, money, reported
from understudy.protocol.runner import Keepalive, Noted
from understudy.protocol.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from understudy.protocol.runner import RunnerEvent


class ClaudeStream(JsonLines):
    """``claude -p --output-format stream-json``.

    One process may have several rounds, each from an ``init`` to a ``result``: a sub-agent in the background ends
    after the first. The last round's result is the answer.
    """

    files = {"Read": "read", "Write": "write", "Edit": "edit", "MultiEdit": "edit", "NotebookEdit": "edit"}  # noqa: RUF012 - a constant of the class

    def __init__(self, *, spent: Usage = NO_USAGE) -> None:
        super().__init__(spent=spent)
        self._told = NO_USAGE  # of this round, from its messages
        self._counted: set[str] = set()
        self._total_cost = spent.cost_usd
        self._below: dict[str, tuple[str, Any]] = {}  # tool calls of sub-agents within the CLI

    def _take(self, event: dict[str, Any]) -> Iterable[RunnerEvent] | None:
        kind = event.get("type")
        if kind == "system":
            return self._system(event)
        if kind == "assistant":
            return self._assistant(event)
        if kind == "user":
            return self._user(event)
        if kind == "result":
            return self._result(event)
        return None

    def _system(self, event: dict[str, Any]) -> Iterable[RunnerEvent] | None:
        subtype = event.get("subtype")
        if subtype == "init":
            self.complete = False
            return self._identified(event["session_id"])
        if subtype == "api_retry":
            return (Keepalive(),)
        if subtype == "task_progress":
            return (Noted(str(event.get("description", ""))),)
        return None

    def _assistant(self, event: dict[str, Any]) -> Iterator[RunnerEvent]:
        message = event["message"]
        if event.get("is_api_error_message"):
            return  # the CLI's own words; the result says them too
        own = event.get("parent_tool_use_id") is None  # else of a sub-agent within the CLI: its words are not ours
        for block in message["content"]:
            if block["type"] == "text" and own:
                yield from self._said(message["id"], block["text"], apart="\n\n")
            elif block["type"] == "tool_use" and own:
                yield from self._called(message["id"], block["id"], block["name"], block["input"])
            elif block["type"] == "tool_use":
                self._below[block["id"]] = (block["name"], block["input"])
        if message["id"] not in self._counted:
            self._counted.add(message["id"])
            usage = _of_message(message.get("usage") or {})
            self._told += usage
            yield from reported(usage)

    def _user(self, event: dict[str, Any]) -> Iterator[RunnerEvent]:
        for block in event["message"]["content"]:
            if isinstance(block, dict) and block.get("type") == "tool_result":
                ok, call_id = not block.get("is_error"), block["tool_use_id"]
                if call_id in self._below:
                    name, arguments = self._below.pop(call_id)
                    if ok and isinstance(arguments, dict):
                        yield from self._touched(name, arguments)
                else:
                    yield from self._answered(call_id, as_text(block.get("content")), ok=ok)

    def _result(self, event: dict[str, Any]) -> Iterator[RunnerEvent]:
        self.complete = True
        # The messages told what they had used when they began; this is the exact sum, sub-agents included.
        yield from reported(beyond(self._exactly(event), self._told))
        self._told = NO_USAGE
        self.answer, self.error = str(event.get("result") or ""), None
        # An API error calls itself a success.
        if event.get("is_error") or event.get("subtype") != "success":
            errors = event.get("errors") or ()
            self.error = self.answer or "; ".join(map(str, errors)) or str(event.get("subtype"))
            self.answer = ""

    def _exactly(self, event: dict[str, Any]) -> Usage:
        """What this round has used."""
        since = event.get("model_usage_since_last_result")
        if isinstance(since, dict):
            return sum(map(_of_model, since.values()), NO_USAGE)
        # An older one: the main agent's tokens, and a cost that counts on from round to round and over a resume.
        total = money(event.get("total_cost_usd"))
        cost, self._total_cost = max(0.0, total - self._total_cost) if total else 0.0, total
        return _of_message(event.get("usage") or {}) + Usage(cost_usd=cost)


def _of_message(usage: dict[str, Any]) -> Usage:
    parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return Usage(
        input_tokens=sum(count(usage.get(part)) for part in parts), output_tokens=count(usage.get("output_tokens"))
    )


def _of_model(used: dict[str, Any]) -> Usage:
    parts = ("inputTokens", "cacheCreationInputTokens", "cacheReadInputTokens")
    return Usage(
        input_tokens=sum(count(used.get(part)) for part in parts),
        output_tokens=count(used.get("outputTokens")),
        cost_usd=money(used.get("costUSD")),
    )


CLAUDE = CliProfile(
    name="claude",
    command="claude",
    fresh=("-p", "--output-format", "stream-json", "--verbose", "--append-system-prompt", "{system}"),
    resume=(
        *("-p", "--output-format", "stream-json", "--verbose", "--append-system-prompt", "{system}"),
        *("--resume", "{session}"),
    ),
    model=("--model", "{model}"),
    stream=ClaudeStream,
    install="npm install -g @anthropic-ai/claude-code@latest",
    credentials=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    needs=("CLAUDE_CONFIG_DIR",),
    unknown_session="No conversation found",
)
