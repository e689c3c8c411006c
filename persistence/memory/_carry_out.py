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
    op.SetLineage: sessions.set_lineage,
    op.SetObjective: sessions.set_objective,
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
    op.SaveContext: sessions.nothing_yet,
    op.RecordEvent: runs.record_event,
    op.DeleteRun: runs.delete_run,
    op.MarkExported: runs.mark_exported,
    op.MarkSwept: runs.mark_swept,
    op.SetIngestOffset: sessions.set_ingest_offset,
    op.AppendTurns: sessions.nothing_yet,
    op.CompactHistory: sessions.compact_history,
    op.SaveCheckpoint: sessions.save_checkpoint,
}
_RANK = {kind: rank for rank, kind in enumerate(_STEPS)}
# What has a context or turns in it.
_TELLING = frozenset({op.FinishRun, op.MergeResult, op.SaveContext, op.AppendTurns})
# What is about turns, those of its own transaction included.
_AFTER_TURNS = frozenset({op.CompactHistory, op.SaveCheckpoint})


def carry_out(tables: Tables, operations: Sequence[op.Operation], undo: Undo) -> tuple[op.Answer, ...]:
    """Carry ``operations`` out; gives their answers, in the order given."""
    last = -1
    for new in operations:
        rank = _RANK[type(new)]
        if rank < last:
            return _in_order(tables, operations, undo)
        last = rank
    answers: list[op.Answer] = []
    for new in operations:
        kind = type(new)
        answer = _STEPS[kind](tables, new, undo)
        if kind in _TELLING:
            _tell(tables, new, answer, undo)
        answers.append(answer)
    return tuple(answers)


def _in_order(tables: Tables, operations: Sequence[op.Operation], undo: Undo) -> tuple[op.Answer, ...]:
    """The same for operations that do not stand in the order in which they take effect."""
    places = sorted(range(len(operations)), key=lambda place: _RANK[type(operations[place])])
    answers: list[op.Answer] = [None] * len(operations)
    after = [place for place in places if type(operations[place]) in _AFTER_TURNS]
    for place in places:
        if place not in after:
            answers[place] = _STEPS[type(operations[place])](tables, operations[place], undo)
    # Contexts and turns of one session may come from several operations: they are written as given.
    for new, answer in zip(operations, answers, strict=True):
        if type(new) in _TELLING:
            _tell(tables, new, answer, undo)
    for place in after:
        answers[place] = _STEPS[type(operations[place])](tables, operations[place], undo)
    return tuple(answers)


def _tell(tables: Tables, new: Any, answer: op.Answer, undo: Undo) -> None:
    """The context and the turns in an operation; those of a merge only if it was one."""
    kind = type(new)
    if kind is op.AppendTurns:
        sessions.append_turns(tables, new.session_key, new.at, new.turns, new.run_id, undo)
    elif kind is op.SaveContext:
        sessions.save_context(tables, new.session_key, new.context, undo)
    elif kind is op.FinishRun:
        if new.merge is not None:
            _tell(tables, new.merge, answer, undo)
    elif answer:
        if new.context is not None:
            sessions.save_context(tables, new.session_key, new.context, undo)
        sessions.append_turns(tables, new.session_key, new.at, new.turns, None, undo)
