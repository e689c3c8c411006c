"""What the store gives back: rows as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from understudy.protocol import SpawnPacket

if TYPE_CHECKING:
    from understudy.persistence.operations import CheckpointTrigger, Visibility
    from understudy.protocol import EndReason, RunFacts, RunId, SessionKey, Usage
    from understudy.protocol.model import Turn

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of the rows, and the cursor that continues after them; None when there are no more."""

    items: tuple[T, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run: its facts, its place in the tree, what it was given and what it used."""

    facts: RunFacts
    session_key: SessionKey
    parent_session_key: SessionKey
    parent_run_id: RunId | None
    root_session_key: SessionKey
    depth: int
    runner: str
    label: str
    spec_id: str | None
    idempotency_key: str | None
    digest: str | None
    packet_json: str
    announce: bool
    is_follow_up: bool
    host: str
    queued_at: int | None
    cancel_reason: str | None
    restarted_at: int | None
    usage: Usage
    steps: int

    @property
    def run_id(self) -> RunId:
        """The run's name."""
        return self.facts.run_id

    @property
    def packet(self) -> SpawnPacket:
        """What the child was given, secrets redacted; read from the row on each call."""
        return SpawnPacket.model_validate_json(self.packet_json)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session."""

    session_key: SessionKey
    agent_id: str
    visibility: Visibility
    parent_session_key: SessionKey | None
    root_session_key: SessionKey
    depth: int
    runner: str | None
    workspace_dir: str | None
    cwd: str | None
    harness: str | None
    project: str | None
    title: str | None
    holder: str | None
    created_at: int
    updated_at: int
    completed_at: int | None
    objective: str | None = None
    parent_inferred: bool = False
    """Whether the parent is only the best guess, as of a harness that has not told yet."""


@dataclass(frozen=True, slots=True)
class HostRecord:
    """An incarnation of a host process."""

    host: str
    pid: int
    process_started: int
    started_at: int
    heartbeat_at: int
    stopped_at: int | None


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """A result on its way to ``session_key``; ``dead_at`` is set while it is set aside as a dead letter."""

    run_id: RunId
    generation: int
    session_key: SessionKey
    created_at: int
    attempts: int
    next_attempt_at: int | None
    last_error: str | None
    dead_at: int | None


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """Something that could not be delivered."""

    id: int
    session_key: SessionKey | None
    run_id: RunId | None
    at: int
    reason: str
    payload: str
    replayed_at: int | None


@dataclass(frozen=True, slots=True)
class LateEnding:
    """An end that came after the end: recorded, and otherwise ignored."""

    generation: int
    at: int
    end_reason: EndReason


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a session was about, as of the turn ``last_turn_id``."""

    id: int
    at: int
    trigger: CheckpointTrigger
    digest: str
    entities: tuple[str, ...]
    constraints: tuple[str, ...]
    last_turn_id: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """A session's history as its model sees it: ``summary``, and the turns from ``first_kept_turn_id`` on."""

    at: int
    summary: str
    first_kept_turn_id: int


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn with its number, which grows along a session, and its time."""

    id: int
    at: int
    run_id: RunId | None
    turn: Turn
