"""The ways a run can end, as values: who claims one first has ended the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.protocol import EndReason, Failure
from understudy.protocol._value import value

if TYPE_CHECKING:
    from understudy.protocol.ending import ErrorKind
    from understudy.protocol.runner import Final


@value
class Ending:
    """Why a run is over; without an ``output`` of its own it keeps what was said so far."""

    reason: EndReason
    failure: Failure | None = None
    output: str | None = None


def finished(final: Final) -> Ending:
    """A runner's last word: completed only when it says so and there is something to show."""
    if final.failure is not None:
        return Ending(EndReason.FAILED, final.failure, final.output)
    if not final.output.strip():
        return failed("empty_output", "the final answer is empty", output="")
    return Ending(EndReason.COMPLETED, None, final.output)


def failed(kind: ErrorKind, message: str, *, retryable: bool = False, output: str | None = None) -> Ending:
    """The run could not do it."""
    return Ending(EndReason.FAILED, Failure(kind=kind, message=message, retryable=retryable), output)


def crashed(error: BaseException) -> Ending:
    """The runner raised."""
    words = str(error).strip()
    return failed("runner_crash", f"{type(error).__name__}: {words}" if words else type(error).__name__)


def killed(kind: ErrorKind, message: str) -> Ending:
    """Somebody wanted it to end."""
    return Ending(EndReason.KILLED, Failure(kind=kind, message=message))


def timed_out(kind: ErrorKind, message: str) -> Ending:
    """Its time was up."""
    return Ending(EndReason.WATCHDOG_TIMEOUT, Failure(kind=kind, message=message, retryable=True))


def ghost(kind: ErrorKind, message: str) -> Ending:
    """It was found dead."""
    return Ending(EndReason.GHOST_SWEEP, Failure(kind=kind, message=message, retryable=True))
