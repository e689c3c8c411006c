"""What every store offers, wherever it keeps things: whoever works with one names this type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from understudy.persistence._commit import Commit, Points
    from understudy.persistence.ingest import Ingest
    from understudy.persistence.operations import Operation
    from understudy.persistence.redaction import Redactor
    from understudy.persistence.results import Results
    from understudy.persistence.runs import Runs
    from understudy.persistence.search import Search
    from understudy.persistence.sessions import DeadLetters, Hosts, Outbox, Sessions
    from understudy.persistence.transcripts import Transcripts


class Ledger(Protocol):
    """A :class:`~understudy.persistence.Store` or a :class:`~understudy.persistence.MemoryStore`."""

    redactor: Redactor
    runs: Runs
    sessions: Sessions
    hosts: Hosts
    outbox: Outbox
    dead_letters: DeadLetters
    transcripts: Transcripts
    search: Search
    ingest: Ingest
    results: Results

    @property
    def version(self) -> int:
        """Moves with every commit of this process: what was read since it last moved is still so."""

    def transaction(self, *operations: Operation, point: Points = None) -> Commit:
        """Commit ``operations`` together or not at all."""

    def problems(self) -> list[str]:
        """Everything that is wrong with what is kept, in words."""

    def close(self) -> None:
        """Let everything go."""
