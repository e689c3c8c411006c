"""What a runner tells while it works: the events every kind of sub-agent is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from understudy.protocol._value import value
from understudy.protocol.model import TextDelta, Turn, UsageReport

if TYPE_CHECKING:
    from understudy.protocol.ending import Failure
    from understudy.protocol.files import FileMode


@dataclass(frozen=True, slots=True)
class Said:
    """A whole turn of the child's history; one of the assistant's is a step."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool runs: until it ends, its own timeout stands in for the idle timeout."""

    call_id: str
    name: str
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """That tool is done."""

    call_id: str


@dataclass(frozen=True, slots=True)
class Touched:
    """A file was used; ``observed`` when only its name was seen in a tool's arguments."""

    path: str
    mode: FileMode = "read"
    ok: bool = True
    observed: bool = False


@dataclass(frozen=True, slots=True)
class Noted:
    """A word on how it goes, for whoever watches."""

    text: str


@dataclass(frozen=True, slots=True)
class Keepalive:
    """Alive, without progress: it does not reset the idle clock."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A person is asked (or has answered): the idle clock stands still meanwhile."""

    state: Literal["asked", "answered"]


@dataclass(frozen=True, slots=True)
class SessionIdentified:
    """The agent's own name for its conversation: a later run of the same child resumes it by this."""

    id: str


@value
class Final:
    """The answer, after which nothing counts. With a failure it is as much of one as there is."""

    output: str
    failure: Failure | None = None


RunnerEvent: TypeAlias = (
    TextDelta
    | Said
    | ToolStarted
    | ToolEnded
    | Touched
    | UsageReport
    | Noted
    | Keepalive
    | Asking
    | SessionIdentified
    | Final
)
