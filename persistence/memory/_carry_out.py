"""Carrying a transaction out on the tables; each step says how it is taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from understudy.persistence import operations as op
from understudy.persistence.memory import _runs_steps as runs
from understudy.persistence.memory import _session_steps as sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from understudy.persistence.memory._tables import Tables

Undo: TypeAlias = "list[tuple[Any, ...]]"
"""Functions with their arguments; called from the last to the first they restore what was."""

# Any: each step takes the operations of its own kind, which the dictionary's key guarantees.
_Step: TypeAlias = "Callable[[Tables, Any, Undo], op.Answer]"

# In the order in which kinds take effect, which is the order of definition in operations.py.
_STEPS: dict[type[op.Operation], _Step] = {
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
    op.MergeResult: runs.merge_result,
    op.DeliveryFailed: runs.delivery_failed,
    op.DeadLetter: runs.dead_letter,
    op.ReplayDeadLetter: runs.replay_dead_letter,
    op.SaveContext: sessions.nothing_yet,
    op.RecordEvent: runs.record_event,
    op.DeleteRun: runs.delete_run,
    op.MarkExported: runs.mark_exported,
    op.MarkSwept: runs.mark_swept,
    op.SetIngestOffset: sessions.set_ingest_offset,
    op.AppendTurns: sessions.nothing_yet,
    op.SaveCheckpoint: sessions.nothing_yet,
}
_RANK = {kind: rank for rank, kind in enumerate(_STEPS)}
# Contexts and turns of one session may come from several operations: they are written when all else is, as given.
_TELLING = frozenset({op.MergeResult, op.SaveContext, op.AppendTurns})


def carry_out(tables: Tables, operations: Sequence[op.Operation], undo: Undo) -> tuple[op.Answer, ...]:
    """Carry ``operations`` out; gives their answers, in the order given."""
    if len(operations) == 1:
        (alone,) = operations
        kind = type(alone)
        answer = _STEPS[kind](tables, alone, undo)
        if kind in _TELLING:
            _tell(tables, operations, (answer,), undo)
        elif isinstance(alone, op.SaveCheckpoint):
            return (sessions.save_checkpoint(tables, alone, undo),)
        return (answer,)
    kinds = [type(operation) for operation in operations]
    answers: list[op.Answer] = [None] * len(operations)
    for place in _order(kinds):
        answers[place] = _STEPS[kinds[place]](tables, operations[place], undo)
    if not _TELLING.isdisjoint(kinds):
        _tell(tables, operations, answers, undo)
    if op.SaveCheckpoint in kinds:
        # Last: a checkpoint covers the turns of its own transaction.
        for place, new in enumerate(operations):
            if isinstance(new, op.SaveCheckpoint):
                answers[place] = sessions.save_checkpoint(tables, new, undo)
    return tuple(answers)


def _order(kinds: list[type[op.Operation]]) -> Sequence[int]:
    """The places in the order in which they take effect: as they stand, nearly always."""
    last = -1
    for kind in kinds:
        rank = _RANK[kind]
        if rank < last:
            return sorted(range(len(kinds)), key=lambda place: _RANK[kinds[place]])
        last = rank
    return range(len(kinds))


def _tell(tables: Tables, operations: Sequence[op.Operation], answers: Sequence[op.Answer], undo: Undo) -> None:
    """Contexts, then turns; those of a merge only if it was one."""
    for new, answer in zip(operations, answers, strict=True):
        if type(new) is op.SaveContext or (type(new) is op.MergeResult and answer and new.context is not None):
            assert new.context is not None
            sessions.save_context(tables, new.session_key, new.context, undo)
    for new, answer in zip(operations, answers, strict=True):
        if type(new) is op.AppendTurns:
            sessions.append_turns(tables, new.session_key, new.at, new.turns, new.run_id, undo)
        elif type(new) is op.MergeResult and answer:
            sessions.append_turns(tables, new.session_key, new.at, new.turns, None, undo)
