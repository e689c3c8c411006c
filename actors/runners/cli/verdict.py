"""How a CLI's process ended, as a run's last word."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from understudy.protocol import Failure
from understudy.protocol.runner import Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from understudy.actors.runners.cli.profile import CliProfile
    from understudy.actors.runners.cli.stream import Stream
    from understudy.protocol.ending import ErrorKind

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MOST_COMPLAINT = 600
_WORTH_ANOTHER_TRY = re.compile(
    r"\b(429|500|502|503|504|529)\b|overloaded|rate.?limit|timed? ?out|connection", re.IGNORECASE
)


def verdict(
    profile: CliProfile,
    stream: Stream,
    *,
    code: int,
    complaint: str,
    struck: str | None,
    resumed: str | None,
    discreet: Callable[[str], str],
) -> Final:
    """Completed only when the CLI says so, in its words and by its exit code, and there is an answer.

    ``struck`` is why it was stopped, if it was; ``discreet`` takes out of its words what nobody may read.
    """
    said = " ".join(filter(None, (stream.error, complaint)))
    if resumed is not None and code != 0 and profile.unknown_session and profile.unknown_session in said:
        return failure(
            "runner_crash", f"{profile.name} does not know its conversation {resumed} any more: spawn a new child"
        )
    if struck is not None and not (stream.complete and stream.error is None):
        return failure("idle", f"{profile.name} was stopped: {struck}", output=stream.so_far, retryable=True)
    if stream.error is not None:
        again = _WORTH_ANOTHER_TRY.search(stream.error) is not None
        return failure(
            "provider", f"{profile.name}: {_short(discreet(stream.error))}", output=stream.so_far, retryable=again
        )
    if struck is None and code != 0:
        return failure("runner_crash", _crash(profile.name, code, discreet(complaint)), output=stream.so_far)
    if stream.tells_end and not stream.complete:
        # Of a version that prints something else altogether, this is all there is to see.
        how = f"; {stream.ignored} of its lines were not understood" if stream.ignored else ""
        message = f"{profile.name} ended before its answer was complete{how}"
        return failure("invalid_output", message, output=stream.so_far)
    return Final(stream.answer)  # an empty one fails as such


def failure(kind: ErrorKind, message: str, *, output: str = "", retryable: bool = False) -> Final:
    """The run failed, with as much of an answer as there is."""
    return Final(output, Failure(kind=kind, message=message, retryable=retryable))


def _crash(name: str, code: int, complaint: str) -> str:
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    words = _short(complaint)
    return f"{name} {how}: {words}" if words else f"{name} {how}"


def _short(text: str) -> str:
    """The end of what it said, on one line: an error stands last."""
    words = " ".join(_COLOURS.sub("", text).split())
    return words if len(words) <= _MOST_COMPLAINT else f"…{words[-_MOST_COMPLAINT:]}"
