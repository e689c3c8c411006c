"""The memory store: decides at once, on dicts, in the calling thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, cast

from understudy.persistence._commit import Settled, each
from understudy.persistence.ingest import Ingest
from understudy.persistence.memory._carry_out import carry_out
from understudy.persistence.memory._runs import MemoryRuns
from understudy.persistence.memory._search import MemorySearch
from understudy.persistence.memory._sessions import MemoryDeadLetters, MemoryHosts, MemoryOutbox, MemorySessions
from understudy.persistence.memory._tables import Tables
from understudy.persistence.memory._transcripts import MemoryTranscripts
from understudy.persistence.redaction import Redactor
from understudy.persistence.results import Results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import TracebackType

    from understudy.persistence._commit import Commit, Points
    from understudy.persistence.memory._carry_out import Undo
    from understudy.persistence.operations import Operation
    from understudy.persistence.runs import Runs
    from understudy.persistence.search import Search
    from understudy.persistence.sessions import DeadLetters, Hosts, Outbox, Sessions
    from understudy.persistence.transcripts import Transcripts
    from understudy.protocol.commit_points import CommitHook, CommitPoint


class MemoryStore:
    """Everything a :class:`~understudy.persistence.Store` does, except that nothing survives the process.

    A transaction is decided before :meth:`transaction` returns, whoever calls it. Secrets are taken out when a
    text is read: it never leaves in any other way, and writing costs next to nothing.

    Example:
        >>> from understudy.persistence.operations import OpenSession
        >>> from understudy.protocol import SessionKey
        >>> with MemoryStore(wall_ms=lambda: 0) as store:
        ...     opened = store.transaction(OpenSession(SessionKey("agent:atlas:main"), at=1))
        ...     opened.done, store.sessions.get("agent:atlas:main").created_at
        (True, 1)
    """

    def __init__(
        self,
        *,
        wall_ms: Callable[[], int],
        commit_hook: CommitHook | None = None,
        results_dir: Path | None = None,
        secrets: Iterable[str] = (),
    ) -> None:
        """``results_dir`` must be given for results to be exported: without a file there is no place beside it."""
        self.redactor = Redactor(secrets)
        self._hook = commit_hook
        self.version = 0
        """Moves with every transaction: what was read since it last moved is still so."""
        self._tables = tables = Tables()
        # Declared as the questions they answer, so that nobody depends on where the answers come from.
        self.runs: Runs = MemoryRuns(tables, self.redactor)
        self.sessions: Sessions = MemorySessions(tables, self.redactor)
        self.hosts: Hosts = MemoryHosts(tables)
        self.outbox: Outbox = MemoryOutbox(tables, self.redactor)
        self.dead_letters: DeadLetters = MemoryDeadLetters(tables, self.redactor)
        self.transcripts: Transcripts = MemoryTranscripts(tables, self.redactor)
        self.search: Search = MemorySearch(tables, self.redactor)
        self.ingest = Ingest(self, wall_ms)
        self.results = Results(self, results_dir, wall_ms)

    def transaction(self, *operations: Operation, point: Points = None) -> Commit:
        """Carry ``operations`` out together or not at all, now: the commit that comes back is decided.

        The hook is called as by a durable store: what it raises before the commit undoes this transaction, what
        it raises after it reaches the caller, and the commit stands.
        """
        hook = None if point is None else self._hook
        undo: Undo = []
        tables = self._tables
        with tables.turn:
            self.version += 1
            if tables.closed:
                tables.refuse_if_closed()
            try:
                answers = carry_out(tables, operations, undo)
                if hook is not None:
                    for each_point in each(point):
                        hook(cast("CommitPoint", f"{each_point}.before"))
            except BaseException as error:  # noqa: BLE001 - handed to the caller as it is
                for take_back, *given in reversed(undo):
                    take_back(*given)
                return Settled(error)
            if hook is not None:
                try:
                    for each_point in each(point):
                        hook(cast("CommitPoint", f"{each_point}.after"))
                except BaseException as error:  # noqa: BLE001 - handed to the caller as it is
                    return Settled(error)
        return Settled(answers)

    def problems(self) -> list[str]:
        """None: there is no file that could be damaged."""
        with self._tables:
            return []

    def close(self) -> None:
        """Let everything go. Later calls fail with StoreClosedError."""
        self._tables.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
