"""Runner events and turns as lines of JSON, between a worker process and its host."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from understudy.protocol.ending import Failure
from understudy.protocol.model import TextDelta, ToolCall, Turn, UsageReport
from understudy.protocol.runner import Asking, Final, Keepalive, Noted, Said, ToolEnded, ToolStarted, Touched
from understudy.protocol.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from understudy.protocol.runner import RunnerEvent


def line(said: dict[str, Any]) -> bytes:
    """One line; a newline inside a text is escaped by JSON."""
    return json.dumps(said, default=_plain, separators=(",", ":")).encode("ascii") + b"\n"


def _plain(thing: Any) -> dict[str, Any]:
    if isinstance(thing, BaseModel):
        return thing.model_dump(mode="json")
    if is_dataclass(thing):
        return {field.name: getattr(thing, field.name) for field in fields(thing)}
    return dict(thing)


def event_line(event: RunnerEvent) -> bytes:
    """An event as the worker writes it."""
    if type(event) not in _KINDS:
        raise TypeError(f"{type(event).__name__} is no runner event: yield those of understudy.protocol.runner")
    return line({"event": type(event).__name__, "data": event})


def parse(written: bytes) -> dict[str, Any]:
    """What a line says; nothing where it is no JSON object, for it may be anybody's."""
    try:
        said = json.loads(written)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def event_of(said: dict[str, Any]) -> RunnerEvent | None:
    """The event in a line, or None where there is none in it."""
    made = _MADE.get(str(said.get("event")))
    try:
        return None if made is None else made(said["data"])
    except (LookupError, TypeError, ValueError, AttributeError):  # pydantic's errors are ValueErrors
        return None


def turns_of(said: Iterable[dict[str, Any]]) -> list[Turn]:
    """The turns in a line."""
    return [_turn(turn) for turn in said]


def _turn(said: dict[str, Any]) -> Turn:
    calls = tuple(
        ToolCall(_text(call["id"]), _text(call["name"]), dict(call["arguments"])) for call in said["tool_calls"]
    )
    answers = said["tool_call_id"]
    if said["role"] not in {"system", "user", "assistant", "tool"}:
        raise ValueError("no role")
    return Turn(said["role"], _text(said["text"]), calls, None if answers is None else _text(answers))


def _text(said: object) -> str:
    if not isinstance(said, str):
        raise TypeError("no text")
    return said


def _one_of(said: object, *allowed: str) -> Any:
    if said not in allowed:
        raise ValueError(f"none of {allowed}")
    return said


def _timeout(said: object) -> int | None:
    return None if said is None else int(cast("int", said))


_MADE: dict[str, Callable[[dict[str, Any]], RunnerEvent]] = {
    "TextDelta": lambda said: TextDelta(_text(said["text"])),
    "Said": lambda said: Said(_turn(said["turn"])),
    "ToolStarted": lambda said: ToolStarted(_text(said["call_id"]), _text(said["name"]), _timeout(said["timeout_ms"])),
    "ToolEnded": lambda said: ToolEnded(_text(said["call_id"])),
    "Touched": lambda said: Touched(
        _text(said["path"]), _one_of(said["mode"], "read", "write", "edit"), bool(said["ok"]), bool(said["observed"])
    ),
    "UsageReport": lambda said: UsageReport(Usage.model_validate(said["usage"])),
    "Noted": lambda said: Noted(_text(said["text"])),
    "Keepalive": lambda _said: Keepalive(),
    "Asking": lambda said: Asking(_one_of(said["state"], "asked", "answered")),
    "Final": lambda said: Final(
        _text(said["output"]), None if said["failure"] is None else Failure.model_validate(said["failure"])
    ),
}
_KINDS = frozenset({TextDelta, Said, ToolStarted, ToolEnded, Touched, UsageReport, Noted, Keepalive, Asking, Final})
