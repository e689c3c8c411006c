"""Carrying transactions out, inside a database transaction that somebody else begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from understudy.persistence import _apply_runs as runs
from understudy.persistence import _apply_sessions as sessions
from understudy.persistence import operations as op
from understudy.persistence._round import Item, Round

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from understudy.persistence.redaction import Redactor

# Any: each handler takes the items of its own kind, which the dictionary's key guarantees.
_Handler: TypeAlias = Callable[[Round, list[Item[Any]]], None]
Operations: TypeAlias = "Sequence[op.Operation]"
Answers: TypeAlias = tuple[op.Answer, ...]


# In the order in which kinds take effect, which is the order of definition in operations.py.
_HANDLERS: dict[type[op.Operation], _Handler] = {
    op.HostStarted: sessions.host_started,
    op.HostHeartbeat: sessions.host_heartbeat,
    op.HostStopped: sessions.host_stopped,
    op.OpenSession: sessions.open_session,
    op.ClaimSession: sessions.claim_session,
    op.ReleaseSession: sessions.release_session,
    op.CompleteSession: sessions.complete_session,
    op.AcceptRun: runs.accept_run,
    op.StartRun: runs.start_run,
    op.RestartRun: runs.restart_run,
    op.Progress: runs.progress,
    op.RequestCancel: runs.request_cancel,
    op.FinishRun: runs.finish_run,
    op.CondenseResult: runs.condense_result,
    op.MergeResult: runs.merge_result,
    op.DeliveryFailed: runs.delivery_failed,
    op.DeadLetter: runs.dead_letter,
    op.ReplayDeadLetter: runs.replay_dead_letter,
    op.SaveContext: sessions.save_context,
    op.RecordEvent: runs.record_event,
    op.DeleteRun: runs.delete_run,
    op.MarkExported: runs.mark_exported,
    op.MarkSwept: runs.mark_swept,
    op.SetIngestOffset: sessions.set_ingest_offset,
    op.AppendTurns: sessions.append_turns,
}

# What a round may hold of several transactions. Everything else is rare, and gets a round of its own.
_SHARED = frozenset(
    {
        op.OpenSession,
        op.AcceptRun,
        op.StartRun,
        op.Progress,
        op.FinishRun,
        op.MergeResult,
        op.SaveContext,
        op.RecordEvent,
        op.AppendTurns,
    }
)
# The run an operation concerns. Kinds take effect in order, so a round may hold several operations on one run
# as long as each comes after the last in that order too; else the round is closed, and the first one wins.
_RUN_OF: dict[type[op.Operation], Callable[[Any], str]] = {
    op.AcceptRun: attrgetter("packet.run_id"),
    op.StartRun: attrgetter("run_id"),
    op.Progress: attrgetter("run_id"),
    op.FinishRun: attrgetter("result.run_id"),
    op.MergeResult: attrgetter("run_id"),
}
_RANK = {kind: rank for rank, kind in enumerate(_HANDLERS)}
_EXAMINED = {kind: (_RANK[kind], run_of) for kind, run_of in _RUN_OF.items()}
# Far above the number of operations of any transaction; orders stay unique across a round.
_STRIDE = 1 << 20


def apply(cursor: sqlite3.Cursor, redactor: Redactor, transactions: Iterable[Operations]) -> list[Answers]:
    """Carry ``transactions`` out in order; gives each one's answers. What fails leaves through an exception."""
    everything: list[list[Item[op.Operation]]] = []
    gathered: dict[type[op.Operation], list[Item[Any]]] = {}
    reached: dict[str, int] = {}
    for operations in transactions:
        order = len(everything) * _STRIDE
        items = [Item(operation, order + place) for place, operation in enumerate(operations)]
        everything.append(items)
        alone, late = _examine(operations, reached)
        if gathered and (alone or late):
            _carry_out(Round(cursor, redactor), gathered)
            reached.clear()
            _examine(operations, reached)
        for item in items:
            kind = type(item.operation)
            if kind in gathered:
                gathered[kind].append(item)
            else:
                gathered[kind] = [item]
        if alone:
            _carry_out(Round(cursor, redactor), gathered, singly=True)
            reached.clear()
    _carry_out(Round(cursor, redactor), gathered)
    return [tuple([item.answer for item in items]) for items in everything]


def _examine(operations: Operations, reached: dict[str, int]) -> tuple[bool, bool]:
    """Whether these need a round of their own, or come too late for this one; notes how far each run got."""
    alone = late = False
    furthest: dict[str, int] = {}
    for operation in operations:
        kind = type(operation)
        if kind in _EXAMINED:
            rank, run_of = _EXAMINED[kind]
            run = run_of(operation)
            if reached.get(run, -1) >= rank:
                late = True
            if furthest.get(run, -1) < rank:
                furthest[run] = rank
            else:
                # Twice the same of one run in a single transaction: the first one counts there too.
                alone = True
        elif kind not in _SHARED:
            alone = True
    reached.update(furthest)
    return alone, late


def _carry_out(work: Round, gathered: dict[type[op.Operation], list[Item[Any]]], *, singly: bool = False) -> None:
    """Carry a round out, many rows at a time; ``singly`` has each operation see what those before it did."""
    for kind, handler in _HANDLERS.items():
        if kind in gathered:
            for items in [[item] for item in gathered[kind]] if singly else [gathered[kind]]:
                handler(work, items)
    work.write_contexts()
    work.write_turns()
    if op.SaveCheckpoint in gathered:
        sessions.save_checkpoint(work, gathered[op.SaveCheckpoint])
    gathered.clear()
