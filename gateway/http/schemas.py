"""What goes over the wire, as the OpenAPI document has it: the runtime's own values, flat and in plain types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from understudy.protocol import EndReason, Failure, RunId, SessionKey, SubAgentResult, Usage
from understudy.protocol._edge import PrintableText
from understudy.protocol.model import Role
from understudy.protocol.run_facts import RunStatus

if TYPE_CHECKING:
    from understudy.persistence import RunRecord, StoredTurn

T = TypeVar("T")

LONGEST_WAIT = 50.0
"""Seconds a request may wait for a reply: less than any request may take."""
MOST_ON_A_PAGE = 1_000


class View(BaseModel):
    """Something the runtime keeps, as it is shown."""

    model_config = ConfigDict(from_attributes=True)


class PageView(BaseModel, Generic[T]):
    """Some of what there is; pass ``cursor`` back for what follows, until it is null."""

    items: list[T]
    cursor: str | None


class SessionView(View):
    """A session; times are milliseconds since the epoch."""

    session_key: str
    agent_id: str
    visibility: str
    parent_session_key: str | None
    root_session_key: str
    depth: int
    runner: str | None
    workspace_dir: str | None
    cwd: str | None
    harness: str | None
    project: str | None
    title: str | None
    holder: str | None = Field(description="The host that has it open.")
    created_at: int
    updated_at: int
    completed_at: int | None


class ToolCallView(View):
    """A tool that was called."""

    id: str
    name: str
    arguments: dict[str, Any]


class TurnView(BaseModel):
    """One entry of a transcript; ``id`` grows along a session."""

    id: int
    at: int
    run_id: str | None
    role: Role
    text: str
    tool_calls: list[ToolCallView]
    tool_call_id: str | None

    @classmethod
    def of(cls, stored: StoredTurn) -> Self:
        """A stored turn."""
        turn = stored.turn
        calls = [ToolCallView(id=call.id, name=call.name, arguments=dict(call.arguments)) for call in turn.tool_calls]
        return cls(
            id=stored.id,
            at=stored.at,
            run_id=stored.run_id,
            role=turn.role,
            text=turn.text,
            tool_calls=calls,
            tool_call_id=turn.tool_call_id,
        )


class SearchBody(BaseModel):
    """What to look for, and where."""

    model_config = ConfigDict(extra="forbid")

    query: str
    session_key: SessionKey | None = None
    agent_id: str | None = Field(default=None, description="Whose sessions; a token bound to an agent has its own.")
    limit: int = Field(default=10, ge=1, le=20)


class HitView(View):
    """A turn that was found, with the text around the match; ``rank`` counts from 1, the best."""

    session_key: str
    at: int
    role: str
    excerpt: str
    rank: int
    turn_id: int


class HitsView(BaseModel):
    """What was found, the best first."""

    items: list[HitView]


class AcceptedView(View):
    """The spawn is durable: it will have exactly one result."""

    run_id: str
    session_key: str
    queued: bool
    duplicate: bool


class RunView(BaseModel):
    """A run: its facts, its place in the tree and what it used; times are milliseconds since the epoch."""

    run_id: str
    session_key: str
    parent_session_key: str
    parent_run_id: str | None
    root_session_key: str
    depth: int
    runner: str
    label: str
    task: str
    spec_id: str | None
    status: RunStatus
    generation: int
    accepted_at: int
    started_at: int | None
    deadline_at: int | None
    last_progress_at: int | None
    cancel_requested_at: int | None
    ended_at: int | None
    end_reason: EndReason | None
    failure: Failure | None
    partial: bool
    delivered_at: int | None
    swept_at: int | None
    is_follow_up: bool
    kept: bool
    steps: int
    usage: Usage

    @classmethod
    def of(cls, record: RunRecord) -> Self:
        """A stored run. Of its packet, what was asked; never its environment."""
        facts, packet = record.facts, record.packet
        return cls(
            run_id=record.run_id,
            session_key=record.session_key,
            parent_session_key=record.parent_session_key,
            parent_run_id=record.parent_run_id,
            root_session_key=record.root_session_key,
            depth=record.depth,
            runner=record.runner,
            label=record.label,
            task=packet.task,
            spec_id=record.spec_id,
            status=facts.status,
            generation=facts.generation,
            accepted_at=facts.accepted_at,
            started_at=facts.started_at,
            deadline_at=facts.deadline_at,
            last_progress_at=facts.last_progress_at,
            cancel_requested_at=facts.cancel_requested_at,
            ended_at=facts.ended_at,
            end_reason=facts.end_reason,
            failure=facts.failure,
            partial=facts.partial,
            delivered_at=facts.delivered_at,
            swept_at=facts.swept_at,
            is_follow_up=record.is_follow_up,
            kept=packet.cleanup == "keep",
            steps=record.steps,
            usage=record.usage,
        )


class OneRunView(RunView):
    """A run with its one result, once it has ended."""

    result: SubAgentResult | None = None


class KillBody(BaseModel):
    """Why a run is to end."""

    model_config = ConfigDict(extra="forbid")

    reason: PrintableText = "killed on request"


class KillView(View):
    """What a kill really did, descendants and queued ones included."""

    killed: list[RunId]
    already_ended: list[RunId]


class FollowUpBody(BaseModel):
    """What more to say to a kept sub-agent, and how many seconds to wait for its reply."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    message: PrintableText
    wait: float = Field(default=0.0, ge=0.0, le=LONGEST_WAIT)


class FollowUpView(BaseModel):
    """The new run; with its result if that came in time."""

    run_id: str
    session_key: str
    result: SubAgentResult | None = None


class LetterView(View):
    """Something that could not be delivered."""

    id: int
    session_key: str | None
    run_id: str | None
    at: int
    reason: str
    payload: str
    replayed_at: int | None


class ReplayView(BaseModel):
    """Whether this put it back on the road; false when that was done before."""

    replayed: bool


class HealthView(BaseModel):
    """The server answers, and its store can be read."""

    status: str
    version: str


class SweepView(BaseModel):
    """How many runs were found to be ghosts, and ended."""

    found: int
