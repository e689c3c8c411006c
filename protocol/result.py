"""What comes back: exactly one result a run, truthful about how it ended."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, NonNegativeInt, PositiveInt, model_validator

from understudy.protocol._edge import EDGE, PrintableLine
from understudy.protocol._value import value
from understudy.protocol.ending import EndReason, Failure
from understudy.protocol.files import RecentFile
from understudy.protocol.ids import RunId, SessionKey
from understudy.protocol.narrative import narrate
from understudy.protocol.summary import ResultSummary
from understudy.protocol.usage import NO_USAGE, Usage

ResultStatus = Literal["completed", "partial", "failed", "killed", "timed_out", "ghost"]
CondensationLevel = Literal[1, 2, 3]

_STATUS_OF_END: dict[EndReason, ResultStatus] = {
    EndReason.COMPLETED: "completed",
    EndReason.FAILED: "failed",
    EndReason.KILLED: "killed",
    EndReason.WATCHDOG_TIMEOUT: "timed_out",
    EndReason.GHOST_SWEEP: "ghost",
}


@value
class Condensation:
    """How the output was made to fit: 1 as it was, 2 by a model's summary, 3 by head and tail."""

    level: CondensationLevel = 1
    original_tokens: NonNegativeInt = 0
    condensed_tokens: NonNegativeInt = 0

    @property
    def ratio(self) -> float:
        """Condensed ÷ original; 1.0 for an empty original."""
        return self.condensed_tokens / self.original_tokens if self.original_tokens else 1.0


class SubAgentResult(BaseModel):
    """The one result of a run, whatever became of it.

    ``output`` is condensed and safe to put before a model; the full text stays in the store under ``full_ref``.
    """

    model_config = EDGE

    type: Literal["sub_agent_result"] = "sub_agent_result"
    run_id: RunId
    generation: PositiveInt = 1
    session_key: SessionKey
    parent_session_key: SessionKey
    label: PrintableLine
    end_reason: EndReason
    partial: bool = False
    failure: Failure | None = None
    output: str = ""
    condensation: Condensation = Condensation()
    summary: ResultSummary | None = None
    """What a model made of it, at level 2; ``output`` is its rendering."""
    recent_files: tuple[RecentFile, ...] = ()
    dropped_files: NonNegativeInt = 0
    verified_outputs: tuple[str, ...] = ()
    missing_outputs: tuple[str, ...] = ()
    outside_outputs: tuple[str, ...] = ()
    """Of the missing ones: those outside of cwd and workspace, which nobody looked for."""
    usage: Usage = NO_USAGE
    steps: NonNegativeInt = 0
    runtime_ms: NonNegativeInt = 0
    full_ref: str | None = None
    kept: bool = False
    is_follow_up: bool = False

    @model_validator(mode="after")
    def _truthful(self) -> Self:
        if self.end_reason is EndReason.SWEPT:
            raise ValueError("'swept' is of result files, a run cannot end by it")
        completed = self.end_reason is EndReason.COMPLETED
        if completed and (self.partial or self.failure is not None):
            raise ValueError("a completed result is neither partial nor a failure")
        if completed and not self.output.strip():
            raise ValueError("a completed result has output: an empty one is a failure")
        if not completed and self.failure is None:
            raise ValueError(f"a result that ended as {self.end_reason} says why in 'failure'")
        return self

    @property
    def status(self) -> ResultStatus:
        """How it went, in one word: a failed run with usable text is ``partial``."""
        if self.end_reason is EndReason.FAILED and self.partial:
            return "partial"
        return _STATUS_OF_END[self.end_reason]

    def cast(self, *, tag_prefix: str = "Subagent Result", narrative: bool = True) -> str:
        """The result as the parent's model reads it, in the user's role: framed, with what it cost.

        ``narrative=False`` gives the plain note of ``narrative_casting = false``.
        """
        return narrate(self, tag_prefix=tag_prefix, narrative=narrative)
