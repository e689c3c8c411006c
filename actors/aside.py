"""What a session's next model call gets besides the history, gathered from who is alive and what the store has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.actors import control
from understudy.persistence import StoreError
from understudy.protocol.next_context import Active, Awaiting, next_context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from understudy.actors.session import SessionActor


def aside(session: SessionActor) -> str:
    """Files, sub-agents, results on their way, objective; empty when there is nothing to say. From any thread."""
    backstage = session.backstage
    return next_context(
        session.context,
        [
            Active(child.run_id, child.label, child.state, child.age_ms, child.steps)
            for child in control.children(session)
        ],
        list(_awaiting(session)),
        session.objective,
        max_tokens=backstage.config.next_context_max_tokens,
        estimate=backstage.estimator,
    )


def _awaiting(session: SessionActor) -> Iterator[Awaiting]:
    """Results that are not in the history, oldest first: those that could not be delivered, those on their way."""
    stuck, roster, store = tuple(session.stuck), session.roster, session.backstage.store
    if stuck:
        try:
            for entry in store.outbox.undelivered(session.key, dead=True):
                if entry.run_id in stuck:
                    record = store.runs.get(entry.run_id)
                    why = f"not delivered so far: {entry.last_error or 'the store could not take it'}"
                    if entry.dead_at is not None:
                        why = "could not be delivered: set aside as a dead letter, which can be replayed"
                    yield Awaiting(entry.run_id, "" if record is None else record.label, why)
        except StoreError as error:
            for run_id in stuck:
                yield Awaiting(run_id, "", f"not delivered so far: {error}")
    for run_id, run in tuple(roster.unsettled.items()):
        if run_id not in roster.unfinished and run_id not in stuck:
            yield Awaiting(run_id, run.packet.label, "finished, its result is on its way")
