"""GitHub Copilot CLI: its profile and its stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from understudy.actors.runners.cli.profile import CliProfile
from understudy.actors.runners.cli.stream import JsonLines, as_text, call_of, words
from understudy.protocol.runner import ToolEnded, ToolStarted
from understudy.protocol.usage import NO_USAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from understudy.protocol.model import JsonObject
    from understudy.protocol.runner import RunnerEvent
    from understudy.protocol.usage import Usage


class CopilotStream(JsonLines):
    """``copilot --output-format json``. It tells no tokens, and its session's id only at the end."""

    files = {"view": "read", "create": "write", "edit": "edit"}  # noqa: RUF012 - a constant of the class

    def __init__(self, *, spent: Usage = NO_USAGE) -> None:
        super().__init__(spent=spent)
        self._running: dict[str, tuple[str, JsonObject]] = {}

    def _take(self, event: dict[str, Any]) -> Iterable[RunnerEvent] | None:  # noqa: PLR0911 - a kind each
        kind = event.get("type")
        if kind == "result":
            return self._result(event)
        data = event["data"]
        if kind == "assistant.message_delta":
            return () if _is_below(data) else self._said(data["messageId"], data["deltaContent"])
        if kind == "assistant.message":
            return () if _is_below(data) else self._message(data)
        if kind == "tool.execution_start":
            return self._tool_started(data)
        if kind == "tool.execution_complete":
            return self._tool_ended(data)
        if kind == "session.error":
            self.error = str(data["message"])
            return ()
        return None

    def _message(self, data: dict[str, Any]) -> Iterator[RunnerEvent]:
        message, text = data["messageId"], data.get("content") or ""
        if not self._telling.speaks(message):  # else the deltas have said it already
            yield from self._said(message, text)
        for request in data.get("toolRequests") or ():
            arguments = request.get("arguments")
            yield from self._telling.call(message, call_of(request["toolCallId"], request["name"], arguments))
        self.answer, self.error = words(data.get("content") or self.answer), None

    def _tool_started(self, data: dict[str, Any]) -> Iterator[RunnerEvent]:
        arguments = data.get("arguments")
        call_id, name = words(data["toolCallId"]), words(data["toolName"])
        self._running[call_id] = name, arguments if isinstance(arguments, dict) else {}
        yield ToolStarted(call_id, name)

    def _tool_ended(self, data: dict[str, Any]) -> Iterator[RunnerEvent]:
        call_id, result = words(data["toolCallId"]), data.get("result") or data.get("error") or {}
        name, arguments = self._running.pop(call_id, ("", {}))
        if data.get("success"):
            yield from self._touched(name, arguments)
        yield ToolEnded(call_id)
        output = result.get("content") or result.get("message") if isinstance(result, dict) else result
        yield from self._telling.answer(call_id, as_text(output))

    def _result(self, event: dict[str, Any]) -> Iterator[RunnerEvent]:
        self.complete = True
        if event.get("exitCode"):
            self.error = self.error or f"it ended with exit code {event['exitCode']}"
        yield from self._identified(event.get("sessionId") or "")


def _is_below(data: dict[str, Any]) -> bool:
    """Whether a sub-agent within the CLI said this."""
    return data.get("parentToolCallId") is not None


COPILOT = CliProfile(
    name="copilot",
    command="copilot",
    fresh=("--output-format", "json"),
    resume=("--output-format", "json", "--resume={session}"),
    model=("--model", "{model}"),
    stream=CopilotStream,
    install="npm install -g @github/copilot@latest",
    credentials=("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN"),
    needs=("COPILOT_HOME", "XDG_CONFIG_HOME"),
    unknown_session="No session, task, or name matched",
)
