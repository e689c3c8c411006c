"""Where a child's agent left off, for agents that keep their conversations themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.protocol._value import value
from understudy.protocol.usage import NO_USAGE

if TYPE_CHECKING:
    from understudy.persistence import Ledger
    from understudy.protocol import RunId, SpawnPacket, Usage


@value
class Resumable:
    """A conversation that earlier work of the same child began."""

    id: str
    """The agent's own name for it."""
    run_id: RunId
    """The run that told it; the run itself where it lives on after a restart of its host."""
    cwd: str
    """Where it was held: agents keep their conversations by folder."""
    spent: Usage
    """What all runs of the child have used so far."""


def find_resumable(store: Ledger, packet: SpawnPacket) -> Resumable | None:
    """The newest conversation that a run of this child's session has told of."""
    found: Resumable | None = None
    spent = NO_USAGE
    for record in store.runs.find(session_key=packet.session_key).items:  # the newest first
        spent += record.usage
        if found is None:
            told = [event.data["resume_id"] for event in store.runs.events(record.run_id) if "resume_id" in event.data]
            if told:
                found = Resumable(str(told[-1]), record.run_id, record.packet.cwd, NO_USAGE)
    return None if found is None else Resumable(found.id, found.run_id, found.cwd, spent)
