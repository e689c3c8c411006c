"""What each operation does to hosts, sessions, turns and the books of ingestion."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from understudy.persistence._storable import plain_document
from understudy.persistence.errors import IngestConflictError, StoreError
from understudy.persistence.memory._tables import Session
from understudy.persistence.operations import CHECKPOINTS_KEPT
from understudy.persistence.records import Checkpoint, Compaction, HostRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from understudy.persistence import operations as op
    from understudy.persistence.memory._carry_out import Undo
    from understudy.persistence.memory._tables import Tables
    from understudy.protocol import WorkingContext
    from understudy.protocol.model import Turn


def nothing_yet(_tables: Tables, _new: op.Operation, _undo: Undo) -> None:
    """Its turn comes when all else is done."""


def host_started(tables: Tables, new: op.HostStarted, undo: Undo) -> None:
    if new.host in tables.hosts:
        raise StoreError(f"the store refused this work: host {new.host} has started before, take another name")
    tables.hosts[new.host] = HostRecord(new.host, new.pid, new.process_started, new.at, new.at, None)
    undo.append((tables.hosts.pop, new.host))


def host_heartbeat(tables: Tables, new: op.HostHeartbeat, undo: Undo) -> bool:
    host = tables.hosts.get(new.host)
    if host is None or host.stopped_at is not None:
        return False
    undo.append((tables.hosts.__setitem__, new.host, host))
    tables.hosts[new.host] = replace(host, heartbeat_at=max(host.heartbeat_at, new.at))
    return True


def host_stopped(tables: Tables, new: op.HostStopped, undo: Undo) -> bool:
    for session in tables.sessions.values():
        if session.holder == new.host:
            undo.append((setattr, session, "holder", session.holder))
            session.holder = None
    host = tables.hosts.get(new.host)
    if host is None or host.stopped_at is not None:
        return False
    undo.append((tables.hosts.__setitem__, new.host, host))
    tables.hosts[new.host] = replace(host, stopped_at=new.at)
    return True


def open_session(tables: Tables, new: op.OpenSession, undo: Undo) -> None:
    sessions = tables.sessions
    key = new.session_key
    if key not in sessions:
        # Plain text as a key: see _tables. Sessions are never deleted.
        sessions[str(key)] = Session(len(sessions) + 1, new)
        undo.append((sessions.pop, key))


def claim_session(tables: Tables, new: op.ClaimSession, undo: Undo) -> str | None:
    session = tables.sessions.get(new.session_key)
    if session is None:
        raise LookupError(f"there is no session {new.session_key} to claim: open it first")
    holder = session.holder
    if holder is not None and holder != new.host:
        host = tables.hosts.get(holder)
        if host is not None and host.stopped_at is None and host.heartbeat_at >= new.stale_before:
            return holder
    undo.append((setattr, session, "holder", holder))
    session.holder = new.host
    return None


def release_session(tables: Tables, new: op.ReleaseSession, undo: Undo) -> bool:
    session = tables.sessions.get(new.session_key)
    if session is None or session.holder != new.host:
        return False
    undo.append((setattr, session, "holder", session.holder))
    session.holder = None
    return True


def complete_session(tables: Tables, new: op.CompleteSession, undo: Undo) -> bool:
    session = tables.sessions.get(new.session_key)
    if session is None or session.completed_at is not None:
        return False
    undo.append((setattr, session, "completed_at", None))
    session.completed_at = new.at
    return True


def save_context(tables: Tables, session_key: str, context: WorkingContext, undo: Undo) -> None:
    session = _open(tables, session_key)
    undo.append((setattr, session, "context", session.context))
    session.context = context


def append_turns(
    tables: Tables, session_key: str, at: int, turns: Iterable[Turn], run_id: str | None, undo: Undo
) -> None:
    session = None
    number = tables.last_turn
    said_in = None if run_id is None else str(run_id)
    for turn in turns:
        if session is None:
            session = _open(tables, session_key)
            undo.append((_forget_turns, tables, session, number, len(session.turns), session.updated_at))
        calls = None
        if turn.tool_calls:
            # As JSON at once: the arguments are the caller's, and may change under its hands.
            calls = plain_document([(call.id, call.name, dict(call.arguments)) for call in turn.tool_calls])
        number += 1
        session.turns.append((number, at, said_in, turn.role, turn.text, calls, turn.tool_call_id))
    if session is not None:
        tables.last_turn = number
        session.updated_at = max(session.updated_at, at)


def _forget_turns(tables: Tables, session: Session, last_turn: int, count: int, updated_at: int) -> None:
    del session.turns[count:]
    session.updated_at = updated_at
    tables.last_turn = last_turn


def set_lineage(tables: Tables, new: op.SetLineage, undo: Undo) -> bool:
    session = tables.sessions.get(new.session_key)
    if session is None:
        return False
    undo += [
        (setattr, session, "lineage", session.lineage),
        (setattr, session, "parent_inferred", session.parent_inferred),
    ]
    session.lineage = (new.parent_session_key, new.root_session_key, new.depth)
    session.parent_inferred = new.inferred
    return True


def set_objective(tables: Tables, new: op.SetObjective, undo: Undo) -> bool:
    session = tables.sessions.get(new.session_key)
    if session is None:
        return False
    undo.append((setattr, session, "objective", session.objective))
    session.objective = new.objective
    return True


def compact_history(tables: Tables, new: op.CompactHistory, undo: Undo) -> int:
    session = tables.sessions.get(new.session_key)
    if session is None:
        raise LookupError(f"there is no session {new.session_key} to compact: open it first")
    undo.append((setattr, session, "compaction", session.compaction))
    older = session.turns[: max(0, len(session.turns) - new.kept)]
    first_kept = older[-1][0] + 1 if older else 1
    session.compaction = Compaction(new.at, new.summary, first_kept)
    return first_kept


def save_checkpoint(tables: Tables, new: op.SaveCheckpoint, undo: Undo) -> int:
    session = tables.sessions.get(new.session_key)
    if session is None:
        raise LookupError(f"there is no session {new.session_key} to checkpoint: open it first")
    before = session.checkpoints
    undo += [
        (setattr, session, "checkpoints", before),
        (setattr, tables, "last_checkpoint", tables.last_checkpoint),
    ]
    tables.last_checkpoint += 1
    entities, constraints = new.entities, new.constraints
    if entities is None:
        entities = before[-1].entities if before else ()
    if constraints is None:
        constraints = before[-1].constraints if before else ()
    covered = session.turns[-1][0] if session.turns else 0
    last = Checkpoint(tables.last_checkpoint, new.at, new.trigger, new.digest, entities, constraints, covered)
    session.checkpoints = (*before, last)[-CHECKPOINTS_KEPT:]
    return tables.last_checkpoint


def set_ingest_offset(tables: Tables, new: op.SetIngestOffset, undo: Undo) -> None:
    if new.before is None:
        _open(tables, new.session_key)
    known = tables.ingests.get(new.path)
    if known != new.before:
        raise IngestConflictError(f"{new.path} was taken in by somebody else at the same moment: try again")
    _open(tables, new.session_key)
    if known is None:
        undo.append((tables.ingests.pop, new.path))
    else:
        undo.append((tables.ingests.__setitem__, new.path, known))
    tables.ingests[new.path] = (new.offset, new.anchor)


def _open(tables: Tables, session_key: str) -> Session:
    session = tables.sessions.get(session_key)
    if session is None:
        raise StoreError(f"the store refused this work: there is no session {session_key}, open it first")
    return session
