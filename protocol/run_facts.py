"""The facts of a run, and the status they add up to. Status is never stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from understudy.protocol.ending import EndReason

if TYPE_CHECKING:
    from understudy.protocol.ending import Failure
    from understudy.protocol.ids import RunId

RunStatus = Literal["pending", "running", "completed", "failed"]


class IllegalFactsError(ValueError):
    """A stored run claims a combination of facts that cannot have happened."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """When things happened to a run (milliseconds since the epoch), and how it ended.

    Building one validates it: a combination that cannot have happened is refused, so that a damaged row
    is noticed when it is loaded and not believed.
    """

    run_id: RunId
    accepted_at: int
    generation: int = 1
    started_at: int | None = None
    deadline_at: int | None = None
    last_progress_at: int | None = None
    cancel_requested_at: int | None = None
    ended_at: int | None = None
    end_reason: EndReason | None = None
    failure: Failure | None = None
    partial: bool = False
    delivered_at: int | None = None
    swept_at: int | None = None

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem is not None:
            raise IllegalFactsError(f"run {self.run_id}: {problem}")

    @property
    def status(self) -> RunStatus:
        """Derived: pending until started, running until ended, then completed or failed."""
        if self.end_reason is None:
            return "pending" if self.started_at is None else "running"
        return "completed" if self.end_reason is EndReason.COMPLETED else "failed"

    def _problem(self) -> str | None:
        """The first impossibility in these facts, in words."""
        ended = self.ended_at is not None
        rules = (
            (self.generation < 1, f"generation {self.generation} is below 1"),
            (ended is (self.end_reason is None), "ended_at and end_reason must be set together"),
            (self.end_reason is EndReason.SWEPT, "'swept' is of result files, a run cannot end by it"),
            (
                self.end_reason is EndReason.COMPLETED and self.started_at is None,
                "completed without having started",
            ),
            (
                self.end_reason is EndReason.COMPLETED and (self.failure is not None or self.partial),
                "completed, yet with a failure or partial",
            ),
            (
                ended and self.end_reason is not EndReason.COMPLETED and self.failure is None,
                f"ended as {self.end_reason} without a failure",
            ),
            (not ended and (self.failure is not None or self.partial), "a failure or partial without an end"),
            (not ended and self.delivered_at is not None, "delivered without an end"),
            (not ended and self.swept_at is not None, "swept without an end"),
            (self.started_at is None and self.last_progress_at is not None, "progress without a start"),
        )
        for impossible, words in rules:
            if impossible:
                return words
        return self._disorder()

    def _disorder(self) -> str | None:
        order = (
            ("accepted_at", "started_at"),
            ("accepted_at", "ended_at"),
            ("started_at", "last_progress_at"),
            ("started_at", "ended_at"),
            ("ended_at", "delivered_at"),
            ("ended_at", "swept_at"),
        )
        for first, second in order:
            earlier, later = getattr(self, first), getattr(self, second)
            if earlier is not None and later is not None and later < earlier:
                return f"{second} {later} is before {first} {earlier}"
        return None
