"""What each operation does to runs, their results and their delivery.

As in a database, each time is at least that of the fact before it, whatever the wall clock says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from understudy.persistence.errors import DuplicateRunError, StoreError
from understudy.persistence.memory._tables import Run, pack, unpack
from understudy.persistence.records import DeadLetterRecord
from understudy.protocol import EndReason, SubAgentResult

if TYPE_CHECKING:
    from understudy.persistence import operations as op
    from understudy.persistence.memory._carry_out import Undo
    from understudy.persistence.memory._tables import Tables
    from understudy.protocol import Usage


def accept_run(tables: Tables, new: op.AcceptRun, undo: Undo) -> None:
    packet = new.packet
    run_id, parent = str(packet.run_id), packet.parent_session_key  # plain text as a key: see _tables
    if new.idempotency_key is not None:
        key = (parent, new.idempotency_key)
        if key in tables.idempotency:
            known = tables.idempotency[key]
            raise DuplicateRunError(known, tables.runs[known].digest)
        tables.idempotency[key] = run_id
        undo.append((tables.idempotency.pop, key))
    if run_id in tables.runs:
        raise StoreError(f"the store refused this work: run {run_id} was accepted before")
    number = tables.last_run + 1
    run = Run(number, new)
    siblings = tables.children[parent]
    tables.last_run = number
    tables.runs[run_id] = tables.open_runs[run_id] = siblings[run_id] = run
    undo.append((_forget_run, tables, run_id, siblings))


def _forget_run(tables: Tables, run_id: str, siblings: dict[str, Run]) -> None:
    del tables.runs[run_id], tables.open_runs[run_id], siblings[run_id]
    tables.last_run -= 1


def start_run(tables: Tables, new: op.StartRun, undo: Undo) -> bool:
    run = tables.open_runs.get(new.run_id)
    if run is None or run.generation != new.generation or run.started_at is not None:
        return False
    undo.append((_unstart, run, run.host, run.deadline_at))
    run.started_at, run.host = max(new.at, run.accepted_at), new.host
    if new.deadline_at is not None:
        run.deadline_at = new.deadline_at
    return True


def _unstart(run: Run, host: str, deadline_at: int | None) -> None:
    run.started_at, run.host, run.deadline_at = None, host, deadline_at


def restart_run(tables: Tables, new: op.RestartRun, undo: Undo) -> bool:
    run = tables.open_runs.get(new.run_id)
    if run is None or run.generation != new.generation - 1:
        return False
    _change(run, undo, generation=new.generation, host=new.host, restarted_at=new.at)
    return True


def progress(tables: Tables, new: op.Progress, undo: Undo) -> None:
    run = tables.open_runs.get(new.run_id)
    if run is None or run.generation != new.generation or run.started_at is None:
        return
    undo += [
        (setattr, run, "last_progress_at", run.last_progress_at),
        (setattr, run, "usage", run.usage),
        (setattr, run, "steps", run.steps),
    ]
    run.last_progress_at = max(new.at, run.last_fact_at)
    if new.usage is not None:
        run.usage = new.usage
    if new.steps is not None:
        run.steps = new.steps


def request_cancel(tables: Tables, new: op.RequestCancel, undo: Undo) -> bool:
    run = tables.open_runs.get(new.run_id)
    if run is None or run.cancel_requested_at is not None:
        return False
    _change(run, undo, cancel_requested_at=new.at, cancel_reason=new.reason)
    return True


def finish_run(tables: Tables, new: op.FinishRun, undo: Undo) -> bool:
    result = new.result
    run_id = result.run_id
    run = tables.open_runs.get(run_id)
    if run is None or run.generation != result.generation:
        late = tables.runs.get(run_id)
        if late is None:
            raise StoreError(f"the store refused this work: there is no run {run_id} to end")
        _change(late, undo, late=(*late.late, (result.generation, new.at, result.end_reason)))
        return False
    if run.started_at is None and result.end_reason == EndReason.COMPLETED:
        raise StoreError(f"the store refused this work: run {run_id} completed without a start")
    deliver_to = new.deliver_to or result.parent_session_key
    undo.append((_reopen, tables, run_id, run, run.usage, run.steps))
    run.ended_at = max(new.at, run.last_fact_at)
    run.result = pack(result)
    if new.full_output is not None:
        run.full_output = new.full_output
    run.usage = result.usage
    run.steps = result.steps
    run.deliver_to = deliver_to
    del tables.open_runs[run_id]
    if new.merge is None:
        tables.undelivered[deliver_to][run_id] = run
    else:
        run.delivered_at = run.ended_at
    return True


def _reopen(tables: Tables, run_id: str, run: Run, usage: Usage, steps: int) -> None:
    assert run.deliver_to is not None
    tables.undelivered[run.deliver_to].pop(run_id, None)
    run.ended_at = run.delivered_at = run.result = run.full_output = run.deliver_to = None
    run.usage, run.steps = usage, steps
    tables.open_runs[run_id] = run
    tables.open_runs = _in_order(tables.open_runs)


def condense_result(tables: Tables, new: op.CondenseResult, undo: Undo) -> bool:
    result = new.result
    run = _undelivered(tables, result.run_id)
    if run is None or run.generation != result.generation:
        return False
    assert run.result is not None
    before = unpack(SubAgentResult, run.result)
    if (before.end_reason, before.failure, before.partial) != (result.end_reason, result.failure, result.partial):
        return False
    full = before.output if run.full_output is None else run.full_output
    _change(run, undo, result=pack(result), full_output=full, usage=result.usage)
    return True


def merge_result(tables: Tables, new: op.MergeResult, undo: Undo) -> bool:
    run_id = new.run_id
    run = tables.runs.get(run_id)
    if run is None or run.generation != new.generation or run.ended_at is None or run.delivered_at is not None:
        return False
    assert run.deliver_to is not None
    waiting = tables.undelivered[run.deliver_to]
    undo.append((_take_delivery_back, run, run_id, run.dead_at, waiting))
    run.delivered_at = max(new.at, run.ended_at)
    if run.dead_at is not None:
        run.dead_at = None
    del waiting[run_id]
    return True


def _take_delivery_back(run: Run, run_id: str, dead_at: int | None, waiting: dict[str, Run]) -> None:
    run.delivered_at, run.dead_at = None, dead_at
    waiting[run_id] = run


def delivery_failed(tables: Tables, new: op.DeliveryFailed, undo: Undo) -> None:
    run = _undelivered(tables, new.run_id)
    if run is not None:
        _change(run, undo, attempts=run.attempts + 1, last_error=new.error, next_attempt_at=new.next_attempt_at)


def dead_letter(tables: Tables, new: op.DeadLetter, undo: Undo) -> int:
    letters = tables.dead_letters
    number = len(letters) + 1  # none is ever pruned
    letters[number] = DeadLetterRecord(number, new.session_key, new.run_id, new.at, new.reason, new.payload, None)
    undo.append((letters.pop, number))
    run = _undelivered(tables, new.run_id)
    if run is not None:
        _change(run, undo, dead_at=new.at)
    return number


def replay_dead_letter(tables: Tables, new: op.ReplayDeadLetter, undo: Undo) -> bool:
    letter = tables.dead_letters.get(new.dead_letter_id)
    if letter is None or letter.replayed_at is not None:
        return False
    undo.append((tables.dead_letters.__setitem__, letter.id, letter))
    tables.dead_letters[letter.id] = replace(letter, replayed_at=new.at)
    run = _undelivered(tables, letter.run_id)
    if run is not None:
        _change(run, undo, dead_at=None, attempts=0, next_attempt_at=None)
    return True


def record_event(tables: Tables, new: op.RecordEvent, undo: Undo) -> None:
    event = new.event
    if event.run_id is None:
        return  # nothing asks for those
    history = tables.events[event.run_id]
    history.append(
        (event.name, event.at, event.session_key, event.run_id, event.parent_run_id, event.depth, dict(event.data))
    )
    undo.append((history.pop,))


def delete_run(tables: Tables, new: op.DeleteRun, undo: Undo) -> bool:
    run = tables.runs.get(new.run_id)
    if run is None or run.ended_at is None or run.delivered_at is None:
        return False
    parent = run.parent_session_key
    undo.append((_remember_run, tables, new.run_id, run, tables.last_run))
    del tables.runs[new.run_id], tables.children[parent][new.run_id]
    tables.last_run = next((last.number for last in reversed(tables.runs.values())), 0)
    if run.idempotency_key is not None:
        del tables.idempotency[parent, run.idempotency_key]
    return True


def _remember_run(tables: Tables, run_id: str, run: Run, last_run: int) -> None:
    tables.last_run = last_run
    parent = run.parent_session_key
    tables.runs[run_id] = tables.children[parent][run_id] = run
    tables.runs, tables.children[parent] = _in_order(tables.runs), _in_order(tables.children[parent])
    if run.idempotency_key is not None:
        tables.idempotency[parent, run.idempotency_key] = run_id


def mark_exported(tables: Tables, new: op.MarkExported, undo: Undo) -> bool:
    run = tables.runs.get(new.run_id)
    if run is None or run.result is None or run.swept_at is not None:
        return False
    _change(run, undo, exported_at=new.at)
    return True


def mark_swept(tables: Tables, new: op.MarkSwept, undo: Undo) -> bool:
    run = tables.runs.get(new.run_id)
    if run is None or run.ended_at is None or run.delivered_at is None or run.swept_at is not None:
        return False
    _change(run, undo, swept_at=max(new.at, run.ended_at), full_output=None)
    session = tables.sessions.get(run.session_key)
    if session is not None and run.value("cleanup") == "delete":
        undo += [(setattr, session, "turns", session.turns), (setattr, tables, "last_turn", tables.last_turn)]
        swept, session.turns = session.turns, []
        if swept and swept[-1][0] == tables.last_turn:
            # As in a database, a number at the end is free again.
            tables.last_turn = max((kept.turns[-1][0] for kept in tables.sessions.values() if kept.turns), default=0)
        undo += [
            (setattr, session, "compaction", session.compaction),
            (setattr, session, "checkpoints", session.checkpoints),
            (setattr, tables, "last_checkpoint", tables.last_checkpoint),
        ]
        gone, session.compaction, session.checkpoints = session.checkpoints, None, ()
        if gone and gone[-1].id == tables.last_checkpoint:
            tables.last_checkpoint = max(
                (kept.checkpoints[-1].id for kept in tables.sessions.values() if kept.checkpoints), default=0
            )
    return True


def _undelivered(tables: Tables, run_id: str | None) -> Run | None:
    """The run, if it has an outbox entry that waits."""
    run = None if run_id is None else tables.runs.get(run_id)
    return None if run is None or run.ended_at is None or run.delivered_at is not None else run


def _change(run: Run, undo: Undo, **facts: Any) -> None:
    for name, value in facts.items():
        undo.append((setattr, run, name, getattr(run, name)))
        setattr(run, name, value)


def _in_order(runs: dict[str, Run]) -> dict[str, Run]:
    """What was taken back stands where it stood: in the order of acceptance."""
    return dict(sorted(runs.items(), key=lambda item: item[1].number))
