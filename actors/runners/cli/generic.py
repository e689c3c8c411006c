"""Streams of CLIs that nobody wrote a module for: JSON lines by field paths, and plain text."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from understudy.actors.runners.cli.stream import JsonLines, Stream, count, money, reported
from understudy.protocol.runner import Touched
from understudy.protocol.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from understudy.protocol.runner import RunnerEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldPaths:
    """Where in a line's JSON things stand: keys joined by dots, ``message.text``.

    A line is read for each of them; one that has none of them is ignored.
    """

    session: str | None = None
    """The conversation's id."""
    text: str | None = None
    """A whole message; the last one is the answer, unless ``answer`` says otherwise."""
    delta: str | None = None
    """A piece of a message."""
    answer: str | None = None
    """The final answer."""
    error: str | None = None
    """What went wrong; where it is true, or a text, the run has failed."""
    done: str | None = None
    """There when it is done. Without this path any orderly end of the process counts."""
    read: str | None = None
    """The path of a file that was read."""
    changed: str | None = None
    """The path of a file that was written or edited."""
    input_tokens: str | None = None
    output_tokens: str | None = None
    cost_usd: str | None = None

    def stream(self) -> Callable[..., Stream]:
        """Makes streams that are read by these paths."""
        return partial(FieldStream, self)


class FieldStream(JsonLines):
    """JSON lines, each looked through for what the profile names."""

    def __init__(self, paths: FieldPaths, *, spent: Usage = NO_USAGE) -> None:
        super().__init__(spent=spent)
        self.tells_end = paths.done is not None
        self._paths = {field.name: path.split(".") for field in fields(paths) if (path := getattr(paths, field.name))}
        self._messages = 0
        self._answered_apart = False

    def _take(self, event: dict[str, Any]) -> Iterable[RunnerEvent] | None:
        found = {name: value for name, path in self._paths.items() if (value := _at(event, path)) is not None}
        return self._tell(found) if found else None

    def _tell(self, found: dict[str, Any]) -> Iterator[RunnerEvent]:
        if "session" in found:
            yield from self._identified(str(found["session"]))
        for name in ("text", "delta"):
            if isinstance(found.get(name), str):
                yield from self._speak(found[name], whole=name == "text")
        if "read" in found:
            yield Touched(str(found["read"]), "read")
        if "changed" in found:
            yield Touched(str(found["changed"]), "edit")
        tokens_in, tokens_out = count(found.get("input_tokens")), count(found.get("output_tokens"))
        cost = money(found.get("cost_usd"))
        yield from reported(Usage(input_tokens=tokens_in, output_tokens=tokens_out, cost_usd=cost))
        if isinstance(found.get("answer"), str):
            self.answer, self._answered_apart = found["answer"], True
        if found.get("error"):
            self.error = str(found["error"])
        self.complete = self.complete or "done" in found

    def _speak(self, text: str, *, whole: bool) -> Iterator[RunnerEvent]:
        self._messages += whole
        yield from self._said(str(self._messages), text)
        if not self._answered_apart:
            self.answer = self._telling.text


class PlainText(Stream):
    """All it prints is the answer."""

    tells_end = False

    def read(self, line: bytes) -> Iterable[RunnerEvent]:
        """One more line of the answer."""
        text = line.decode(errors="replace").rstrip("\r\n")
        told = list(self._said("", text or "\n", apart="\n"))
        self.answer = self._telling.text
        return told


def _at(value: Any, path: list[str]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value
