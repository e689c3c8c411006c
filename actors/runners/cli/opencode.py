"""OpenCode: its profile and its stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from understudy.actors.runners.cli.profile import CliProfile
from understudy.actors.runners.cli.stream import JsonLines, as_text, call_of, count, money, reported
from understudy.protocol.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from understudy.protocol.runner import RunnerEvent


class OpenCodeStream(JsonLines):
    """``opencode run --format json``: whole parts, a tool's only when it is done, each step with its usage."""

    files = {"read": "read", "write": "write", "edit": "edit", "patch": "edit"}  # noqa: RUF012 - a constant of the class

    def __init__(self, *, spent: Usage = NO_USAGE) -> None:
        super().__init__(spent=spent)
        self._outputs: dict[str, str] = {}

    def _take(self, event: dict[str, Any]) -> Iterable[RunnerEvent] | None:
        kind = event.get("type")
        if kind == "error":
            self.error = _message(event["error"])
            return self._identified(event.get("sessionID", ""))
        if kind in {"step_start", "text", "tool_use", "step_finish"}:
            return self._part(kind, event["sessionID"], event["part"])
        return None

    def _part(self, kind: str, session_id: str, part: dict[str, Any]) -> Iterator[RunnerEvent]:
        yield from self._identified(session_id)
        message = part["messageID"]
        if kind == "step_start":
            self.complete = False
        elif kind == "text":
            yield from self._said(message, part["text"], apart="\n\n")
            self.answer = self._telling.text
        elif kind == "tool_use":
            state, name = part["state"], part["tool"]
            arguments = state.get("input") or {}
            yield from self._telling.call(message, call_of(part["callID"], name, arguments))
            # It is done already: its file counts at once. Its turn waits for the step, which may have more of them.
            if state["status"] == "completed":
                yield from self._touched(name, arguments)
            self._outputs[part["callID"]] = as_text(state.get("output") or state.get("error"))
        else:
            yield from self._finished(part)

    def _finished(self, part: dict[str, Any]) -> Iterator[RunnerEvent]:
        outputs, self._outputs = self._outputs, {}
        for call_id, output in outputs.items():
            yield from self._telling.answer(call_id, output)
        tokens = part.get("tokens") or {}
        cache = tokens.get("cache") or {}
        read_in = count(tokens.get("input")) + count(cache.get("read")) + count(cache.get("write"))
        said = count(tokens.get("output")) + count(tokens.get("reasoning"))
        yield from reported(Usage(input_tokens=read_in, output_tokens=said, cost_usd=money(part.get("cost"))))
        if part.get("reason") != "tool-calls":
            self.complete, self.error = True, None


def _message(error: dict[str, Any]) -> str:
    return str((error.get("data") or {}).get("message") or error.get("message") or error.get("name"))


OPENCODE = CliProfile(
    name="opencode",
    command="opencode",
    fresh=("run", "--format", "json"),
    resume=("run", "--format", "json", "--session", "{session}"),
    model=("--model", "{model}"),
    stream=OpenCodeStream,
    install="npm install -g opencode-ai@latest",
    credentials=("ANTHROPIC_API_KEY", "OPENAI_API_KEY"),
    needs=("OPENCODE_CONFIG", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
    unknown_session="Session not found",
    # It says nothing of a tool before the tool is done.
    quiet_seconds=600,
    quiet_resumed_seconds=600,
)
