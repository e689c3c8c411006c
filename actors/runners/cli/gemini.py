"""Gemini CLI: its profile and its stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from understudy.actors.runners.cli.profile import CliProfile
from understudy.actors.runners.cli.stream import JsonLines, as_text, count, reported, words
from understudy.protocol.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from understudy.protocol.runner import RunnerEvent


class GeminiStream(JsonLines):
    """``gemini -o stream-json``: messages in deltas, each message until a tool is used."""

    files = {"read_file": "read", "write_file": "write", "replace": "edit", "read_many_files": "read"}  # noqa: RUF012 - a constant of the class

    def __init__(self, *, spent: Usage = NO_USAGE) -> None:
        super().__init__(spent=spent)
        self._messages = 0
        self._speaking = False
        self._complaint = ""

    def _take(self, event: dict[str, Any]) -> Iterable[RunnerEvent] | None:  # noqa: PLR0911 - a kind each
        kind = event.get("type")
        if kind == "init":
            return self._identified(event["session_id"])
        if kind == "message" and event["role"] == "assistant":
            return self._message(event["content"])
        if kind == "tool_use":
            return self._used(event)
        if kind == "tool_result":
            self._speaking = False
            output = event.get("output") or (event.get("error") or {}).get("message")
            return self._answered(event["tool_id"], as_text(output), ok=event.get("status") == "success")
        if kind == "error":
            # Also what it overcomes comes this way: only the result says whether it failed.
            self._complaint = str(event["message"])
            return ()
        if kind == "result":
            return self._result(event)
        return None

    def _message(self, text: str) -> Iterator[RunnerEvent]:
        if not self._speaking:
            self._speaking, self.answer = True, ""
            self._messages += 1
        self.answer += words(text)
        yield from self._said(str(self._messages), text)

    def _used(self, event: dict[str, Any]) -> Iterator[RunnerEvent]:
        if not self._speaking:
            self._messages += not self._telling.calls  # several at once are one message's
        self._speaking = False
        yield from self._called(str(self._messages), event["tool_id"], event["tool_name"], event.get("parameters"))

    def _result(self, event: dict[str, Any]) -> Iterator[RunnerEvent]:
        self.complete = True
        if event.get("status") != "success":
            self.error = str((event.get("error") or {}).get("message") or self._complaint or event.get("status"))
        stats = event.get("stats") or {}
        yield from reported(
            Usage(input_tokens=count(stats.get("input_tokens")), output_tokens=count(stats.get("output_tokens")))
        )


GEMINI = CliProfile(
    name="gemini",
    command="gemini",
    fresh=("-o", "stream-json", "--skip-trust"),
    resume=("-o", "stream-json", "--skip-trust", "--resume", "{session}"),
    model=("--model", "{model}"),
    stream=GeminiStream,
    install="npm install -g @google/gemini-cli@latest",
    credentials=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    unknown_session="Error resuming session",
)
