"""What the memory store holds: dicts of rows, in the order in which they came."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from understudy.persistence._storable import NOT_STORED
from understudy.persistence.errors import StoreClosedError
from understudy.persistence.operations import OpenSession
from understudy.protocol import EndReason, RunId, SessionKey, SpawnPacket
from understudy.protocol.usage import NO_USAGE

if TYPE_CHECKING:
    from pydantic import BaseModel

    from understudy.persistence.operations import AcceptRun
    from understudy.persistence.records import Checkpoint, Compaction, DeadLetterRecord, HostRecord
    from understudy.protocol import WorkingContext

    ModelT = TypeVar("ModelT", bound=BaseModel)

Values: TypeAlias = tuple[Any, ...]
TurnRow: TypeAlias = "tuple[int, int, str | None, str, str, str | None, str | None]"
"""Number, time, run, role, text, tool calls as JSON, the call it answers: the columns of a stored turn."""

_PACKET = tuple(SpawnPacket.model_fields)
_SESSION, _PARENT = _PACKET.index("session_key"), _PACKET.index("parent_session_key")


# A packet is kept as what the garbage collector need not look through at every full collection: ids as plain text,
# the environment as a tuple.
_RUN_IDS = tuple(_PACKET.index(name) for name in ("run_id", "parent_run_id"))
_KEYS = tuple(_PACKET.index(name) for name in ("session_key", "parent_session_key", "root_session_key"))
_ENV = _PACKET.index("env")
_NOT_STORED = _PACKET.index(NOT_STORED)


def pack_packet(packet: SpawnPacket) -> Values:
    """A packet's values alone: a tenth of its size."""
    values = list(packet.__dict__.values())
    values[_RUN_IDS[0]] = str(packet.run_id)
    if packet.parent_run_id is not None:
        values[_RUN_IDS[1]] = str(packet.parent_run_id)
    for place in _KEYS:
        values[place] = str(values[place])
    values[_ENV] = tuple(packet.env.items())
    values[_NOT_STORED] = None
    return tuple(values)


def unpack_packet(packed: Values) -> SpawnPacket:
    """The packet again."""
    values = list(packed)
    for place in _RUN_IDS:
        values[place] = None if values[place] is None else RunId.made(values[place])
    for place in _KEYS:
        values[place] = SessionKey.made(values[place])
    values[_ENV] = dict(values[_ENV])
    return unpack(SpawnPacket, tuple(values))


def pack(model: BaseModel) -> Values:
    """The values of a model alone."""
    return tuple(model.__dict__.values())


def unpack(kind: type[ModelT], values: Values) -> ModelT:
    """The model again. It was valid when it was packed."""
    return kind.model_construct(**dict(zip(kind.model_fields, values, strict=True)))


class Run:
    """A run's row, with its result and its outbox entry. What it does not have yet is its class's to say."""

    announce = False
    is_follow_up = False
    idempotency_key: str | None = None
    digest: str | None = None
    generation = 1
    queued_at: int | None = None
    started_at: int | None = None
    last_progress_at: int | None = None
    cancel_requested_at: int | None = None
    cancel_reason: str | None = None
    restarted_at: int | None = None
    swept_at: int | None = None
    usage = NO_USAGE
    steps = 0

    ended_at: int | None = None
    result: Values | None = None
    full_output: str | None = None
    exported_at: int | None = None
    late: tuple[tuple[int, int, EndReason], ...] = ()

    deliver_to: str | None = None
    delivered_at: int | None = None
    attempts = 0
    next_attempt_at: int | None = None
    last_error: str | None = None
    dead_at: int | None = None

    def __init__(self, number: int, new: AcceptRun) -> None:
        packet = new.packet
        self.number = number
        self.packet = pack_packet(packet)
        self.accepted_at = new.at
        self.deadline_at = packet.deadline_at
        self.host = new.host
        if new.started:
            self.started_at = new.at
        if new.queued:
            self.queued_at = new.at
        if new.announce:
            self.announce = True
        if new.is_follow_up:
            self.is_follow_up = True
        if new.idempotency_key is not None:
            self.idempotency_key = new.idempotency_key
        if new.digest is not None:
            self.digest = new.digest

    @property
    def session_key(self) -> str:
        """The child's own session."""
        return str(self.packet[_SESSION])

    @property
    def parent_session_key(self) -> str:
        """The session that spawned it."""
        return str(self.packet[_PARENT])

    @property
    def last_fact_at(self) -> int:
        """When the last was heard of it while it lived."""
        if self.last_progress_at is not None:
            return self.last_progress_at
        return self.accepted_at if self.started_at is None else self.started_at

    def value(self, name: str) -> Any:
        """A field of the packet."""
        return self.packet[_PACKET.index(name)]


_OPENED = attrgetter(*OpenSession.__dataclass_fields__)


class Session:
    """A session's row, with its turns, its working context, its last compaction and its checkpoints."""

    __slots__ = (
        *("_opened", "checkpoints", "compaction", "completed_at", "context", "holder", "lineage", "number"),
        *("objective", "parent_inferred", "turns", "updated_at"),
    )

    def __init__(self, number: int, opened: OpenSession) -> None:
        self.number = number
        self._opened = _OPENED(opened)
        self.updated_at = opened.at
        self.holder: str | None = None
        self.completed_at: int | None = None
        self.context: WorkingContext | None = None
        self.turns: list[TurnRow] = []
        self.compaction: Compaction | None = None
        self.checkpoints: tuple[Checkpoint, ...] = ()
        self.objective: str | None = None
        self.lineage: tuple[SessionKey, SessionKey, int] | None = None
        """Parent, root and depth, where they were told later."""
        self.parent_inferred = False

    @property
    def opened(self) -> OpenSession:
        """How it was opened, with the lineage it has by now."""
        opened = OpenSession(*self._opened)
        if self.lineage is None:
            return opened
        parent, root, depth = self.lineage
        return replace(opened, parent_session_key=parent, root_session_key=root, depth=depth)


class Tables:
    """All rows. ``with tables`` is how everybody comes to them, one at a time: readers and writers alike."""

    def __init__(self) -> None:
        self.turn = threading.RLock()
        self.closed = False
        self.hosts: dict[str, HostRecord] = {}
        self.sessions: dict[str, Session] = {}
        self.runs: dict[str, Run] = {}
        self.open_runs: dict[str, Run] = {}
        """Those without an end: nobody who looks for them passes by the finished ones."""
        self.children: defaultdict[str, dict[str, Run]] = defaultdict(dict)
        self.undelivered: defaultdict[str, dict[str, Run]] = defaultdict(dict)
        """Ended and not merged yet, by the session they go to."""
        self.idempotency: dict[tuple[str, str], str] = {}
        self.dead_letters: dict[int, DeadLetterRecord] = {}
        self.events: defaultdict[str, list[Values]] = defaultdict(list)
        self.ingests: dict[str, tuple[int, str]] = {}
        self.last_run = 0
        self.last_turn = 0
        self.last_checkpoint = 0

    def agent_of(self, session_key: str | None) -> str | None:
        """Whose session that is; None for one that is not there."""
        session = None if session_key is None else self.sessions.get(session_key)
        return None if session is None else session.opened.agent_id

    def __enter__(self) -> None:
        self.turn.acquire()
        try:
            self.refuse_if_closed()
        except StoreClosedError:
            self.turn.release()
            raise

    def refuse_if_closed(self) -> None:
        """What was held is gone."""
        if self.closed:
            raise StoreClosedError("the store is closed: open a new one, what this one held is gone")

    def close(self) -> None:
        """Let the rows go; from now on nobody comes to them."""
        with self.turn:
            self.closed = True
            for table in (self.hosts, self.sessions, self.runs, self.open_runs, self.children, self.undelivered):
                table.clear()
            for rest in (self.idempotency, self.dead_letters, self.events, self.ingests):
                rest.clear()

    def __exit__(self, *_: object) -> None:
        self.turn.release()
