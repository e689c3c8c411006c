"""The store: one file, one writer, any number of readers."""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from understudy.persistence._connection import MEMORY, connect, connect_reader, prepare
from understudy.persistence._group import GroupCommit
from understudy.persistence._reader import InlineReader, Reader
from understudy.persistence._writer import InlineWriter, ThreadWriter
from understudy.persistence.check import problems
from understudy.persistence.ingest import Ingest
from understudy.persistence.migrations import MIGRATIONS, migrate
from understudy.persistence.redaction import Redactor
from understudy.persistence.results import Results
from understudy.persistence.runs import Runs
from understudy.persistence.search import Search
from understudy.persistence.sessions import DeadLetters, Hosts, Outbox, Sessions
from understudy.persistence.transcripts import Transcripts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from understudy.persistence._commit import Commit, Points
    from understudy.persistence._connection import Synchronous
    from understudy.persistence._writer import BusySignal
    from understudy.persistence.migrations import Migration
    from understudy.persistence.operations import Operation
    from understudy.protocol.commit_points import CommitHook

_BUSY_TIMEOUT_MS = 5_000
"""How long a lock of another process is waited for before the caller is told."""


class Store:
    """Everything that survives. Open it with :meth:`open`, and close it.

    Example:
        >>> from understudy.persistence.operations import OpenSession
        >>> from understudy.protocol import SessionKey
        >>> with Store.open(None, wall_ms=lambda: 0) as store:
        ...     opened = store.transaction(OpenSession(SessionKey("agent:atlas:main"), at=1))
        ...     answers = opened.result(timeout=10)
        ...     store.sessions.get("agent:atlas:main").created_at
        1
    """

    def __init__(
        self,
        path: Path,
        writer: ThreadWriter | InlineWriter,
        reader: Reader,
        group: GroupCommit,
        *,
        redactor: Redactor,
        results_dir: Path,
        wall_ms: Callable[[], int],
        temporary: Path | None,
    ) -> None:
        self.path = path
        self.redactor = redactor
        self._writer = writer
        self._reader = reader
        self._group = group
        self._temporary = temporary
        self.runs = Runs(reader)
        self.sessions = Sessions(reader)
        self.hosts = Hosts(reader)
        self.outbox = Outbox(reader)
        self.dead_letters = DeadLetters(reader)
        self.transcripts = Transcripts(reader, redactor)
        self.search = Search(reader)
        self.ingest = Ingest(self, wall_ms)
        self.results = Results(self, results_dir, wall_ms)

    @classmethod
    def open(
        cls,
        path: Path | str | None,
        *,
        wall_ms: Callable[[], int],
        synchronous: Synchronous = "full",
        commit_hook: CommitHook | None = None,
        busy: BusySignal | None = None,
        results_dir: Path | None = None,
        secrets: Iterable[str] = (),
        inline: bool = False,
        busy_timeout_ms: int = _BUSY_TIMEOUT_MS,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> Self:
        """Open, and bring to the current version, the database at ``path``; None is a private temporary file.

        ``inline`` commits in the calling thread on one connection, also in ":memory:"; ``busy`` is not told, as
        nothing is ever under way elsewhere. ``results_dir`` is by
        default the folder ``results`` beside the database. ``secrets`` are values that are never written.
        """
        if str(path) == MEMORY and not inline:
            raise ValueError('":memory:" has a single connection: open it with inline=True, or pass None')
        temporary = None
        if path is None:
            temporary = Path(tempfile.mkdtemp(prefix="understudy-"))
            path = temporary / "store.db"
        # Absolute: a connection opened after the host has changed its folder must find the same file.
        name = MEMORY if str(path) == MEMORY else str(Path(path).absolute())
        try:
            if name != MEMORY:
                prepare(name, busy_timeout_ms=busy_timeout_ms, migrations=migrations)
            opened = partial(connect, name, synchronous=synchronous, busy_timeout_ms=busy_timeout_ms)
            redactor = Redactor(secrets)
            group = GroupCommit(opened, redactor, commit_hook)
        except BaseException:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            raise
        if name == MEMORY:
            migrate(group.connection, name, migrations)
        writer: ThreadWriter | InlineWriter
        if inline:
            writer = InlineWriter(group)
            reader: Reader = InlineReader(lambda: group.connection, writer)
        else:
            writer = ThreadWriter(group, busy)
            reader = Reader(partial(connect_reader, name, busy_timeout_ms=busy_timeout_ms))
        return cls(
            Path(name),
            writer,
            reader,
            group,
            redactor=redactor,
            results_dir=results_dir or Path(name).absolute().parent / "results",
            wall_ms=wall_ms,
            temporary=temporary,
        )

    @property
    def version(self) -> int:
        """Moves with every commit of this process: what was read since it last moved is still so."""
        return self._group.commits

    def transaction(self, *operations: Operation, point: Points = None) -> Commit:
        """Queue ``operations`` to be committed together or not at all; never blocks on the disk.

        ``point`` names one of the three commit points everything relies on: the commit hook is called directly
        before and directly after the COMMIT. What it raises before it fails this transaction alone; what it
        raises after it reaches the caller, and the commit stands.
        """
        return self._writer.put(operations, point)

    def problems(self) -> list[str]:
        """Everything that is wrong with the file, in words; empty when it is whole. Reads all of it."""
        return problems(self._reader)

    def close(self) -> None:
        """Commit what is queued, then let everything go. Later calls fail with StoreClosedError."""
        self._writer.close()
        self._reader.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
