"""What a CLI prints, as runner events: read tolerantly, whatever it is."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from understudy.actors.tools._receipts import paths_among
from understudy.protocol.model import TextDelta, ToolCall, Turn, UsageReport
from understudy.protocol.runner import Said, SessionIdentified, ToolEnded, ToolStarted, Touched
from understudy.protocol.truncate import truncate
from understudy.protocol.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from understudy.protocol.files import FileMode
    from understudy.protocol.runner import RunnerEvent

# A tool's result may be a whole file or a picture: the CLI keeps it, the transcript needs to know what it was.
_MOST_TOOL_TEXT = 20_000
# What reading an event of an unexpected shape raises.
_OTHER_SHAPE = (LookupError, TypeError, AttributeError, ValueError, RecursionError)


class Stream(ABC):
    """Reads the output of one process of a CLI. Whatever it does not understand it counts and leaves out.

    ``spent`` is what earlier processes of the same conversation have used: some CLIs count on from there.
    """

    files: ClassVar[Mapping[str, FileMode]] = {}
    """What the CLI's own file tools do to the file they name."""

    tells_end: bool = True
    """Whether it says when it is done: then an end without that word is none."""

    def __init__(self, *, spent: Usage = NO_USAGE) -> None:
        self.answer = ""
        """The final answer, as far as there is one."""
        self.error: str | None = None
        """What went wrong, in the CLI's own words."""
        self.complete = False
        """Whether it said that it is done."""
        self.ignored = 0
        """Lines that meant nothing."""
        self._spent = spent
        self._session_id: str | None = None
        self._telling = _Telling()

    @abstractmethod
    def read(self, line: bytes) -> Iterable[RunnerEvent]:
        """What this line tells; never the end, which the process's own end decides."""

    @property
    def so_far(self) -> str:
        """The answer, or else the last words: what a run that failed has to show."""
        return self.answer or self._telling.latest

    def close(self) -> Iterable[RunnerEvent]:
        """What was held back and is not what the run will end with."""
        return self._telling.close(self.so_far)

    # -- what the streams of all CLIs are made of -----------------------------------------------------

    def _identified(self, session_id: str) -> Iterator[RunnerEvent]:
        """The CLI's own name of the conversation, by which it can be resumed; told once."""
        if session_id and words(session_id) != self._session_id:
            self._session_id = session_id
            yield SessionIdentified(session_id)

    def _called(self, message: str, call_id: str, name: str, arguments: Any) -> Iterator[RunnerEvent]:
        yield from self._telling.call(message, call_of(call_id, name, arguments))
        yield ToolStarted(call_id, name)

    def _answered(self, call_id: str, text: str, *, ok: bool) -> Iterator[RunnerEvent]:
        call = self._telling.calls.get(call_id)
        if ok and call is not None:
            yield from self._touched(call.name, call.arguments)
        yield ToolEnded(words(call_id))
        yield from self._telling.answer(call_id, text)

    def _touched(self, tool: str, arguments: Mapping[str, Any]) -> Iterator[RunnerEvent]:
        """The files a tool call names; of a tool that is not one for files they were merely seen."""
        mode = self.files.get(tool)
        for path in paths_among(arguments, None):
            yield Touched(path, mode or "read", observed=mode is None)

    def _said(self, message: str, text: str, *, apart: str = "") -> Iterator[RunnerEvent]:
        """A piece of a message; ``apart`` stands between it and the piece before."""
        yield from self._telling.say(message, text, apart)


class JsonLines(Stream):
    """A stream of JSON objects, one a line, told apart by their ``type``, wherever in the object it stands."""

    def read(self, line: bytes) -> Iterable[RunnerEvent]:
        """The events of one line; a line of an unknown kind or shape is counted and has none."""
        try:
            event = json.loads(line)
            told = self._take(event)
            events = None if told is None else list(told)
        except _OTHER_SHAPE:
            events = None
        if events is None:
            self.ignored += 1
            return ()
        return events

    @abstractmethod
    def _take(self, event: dict[str, Any]) -> Iterable[RunnerEvent] | None:
        """What a JSON value tells; None where it is of no kind this stream knows."""


class _Telling:
    """Puts messages and their tool calls together to turns.

    The last message is the answer, and the answer is told by the run's end. So a turn is held back until something
    that follows shows that it was not the last; its text is drafted at once, for a run that is ended meanwhile.
    """

    def __init__(self) -> None:
        self.calls: dict[str, ToolCall] = {}
        """Calls without an answer."""
        self.latest = ""
        """The text of the last message that had any."""
        self._message: str | None = None
        self._text = ""
        self._called: list[ToolCall] = []
        self._answers: list[Turn] = []

    def say(self, message: str, text: str, apart: str) -> Iterator[RunnerEvent]:
        yield from self._turn_to(words(message))
        if words(text):
            piece = apart + text if self._text else text
            self._text += piece
            self.latest = self._text
            yield TextDelta(piece)

    def call(self, message: str, call: ToolCall) -> Iterator[RunnerEvent]:
        yield from self._turn_to(words(message))
        self._called.append(call)
        self.calls[call.id] = call

    def answer(self, call_id: str, text: str) -> Iterator[RunnerEvent]:
        if self.calls.pop(call_id, None) is None:
            return  # of a sub-agent of its own, or said twice
        short = truncate(text, _MOST_TOOL_TEXT)
        self._answers.append(Turn("tool", short, (), call_id))
        if len(self._answers) == len(self._called):
            yield from self.flush()

    def flush(self) -> Iterator[RunnerEvent]:
        if self._text or self._called:
            yield Said(Turn("assistant", self._text, tuple(self._called)))
            yield from map(Said, self._answers)
        self._message, self._text, self._called, self._answers = None, "", [], []

    def close(self, answer: str) -> Iterator[RunnerEvent]:
        if self._called or self._text.strip() != answer.strip():
            yield from self.flush()

    @property
    def text(self) -> str:
        """The message under way."""
        return self._text

    def speaks(self, message: str) -> bool:
        """Whether that message is the one under way."""
        return message == self._message

    def _turn_to(self, message: str) -> Iterator[RunnerEvent]:
        if message != self._message:
            yield from self.flush()
            self._message = message


def words(value: object) -> str:
    """Text; what is none makes its whole line one that is not understood."""
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is no text")
    return value


def call_of(call_id: object, name: object, arguments: object) -> ToolCall:
    """A tool call, with no arguments where they are no object."""
    return ToolCall(words(call_id), words(name), arguments if isinstance(arguments, dict) else {})


def count(value: object) -> int:
    """A number of tokens, or 0 where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def money(value: object) -> float:
    """An amount, or 0 where it is none."""
    amount = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
    return amount if math.isfinite(amount) and amount > 0 else 0.0


def beyond(total: Usage, before: Usage) -> Usage:
    """What ``total`` has more than ``before``."""
    return Usage(
        input_tokens=max(0, total.input_tokens - before.input_tokens),
        output_tokens=max(0, total.output_tokens - before.output_tokens),
        cost_usd=max(0.0, total.cost_usd - before.cost_usd),
    )


def reported(usage: Usage) -> Iterator[RunnerEvent]:
    """A report, where there is anything to report."""
    if usage != NO_USAGE:
        yield UsageReport(usage)


def as_text(value: object) -> str:
    """A tool's result as text, in whatever shape a CLI hands it on."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
    return "" if value is None else json.dumps(value, ensure_ascii=False)
