"""Looking at a store that somebody else keeps: nothing is created, brought forward or written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

from understudy.persistence._connection import connect_onlooker, look, watched
from understudy.persistence._reader import Reader
from understudy.persistence.check import problems
from understudy.persistence.errors import ForeignStoreError
from understudy.persistence.migrations import MIGRATIONS, version
from understudy.persistence.news import News
from understudy.persistence.redaction import Redactor
from understudy.persistence.runs import Runs
from understudy.persistence.search import Search
from understudy.persistence.sessions import DeadLetters, Hosts, Outbox, Sessions
from understudy.persistence.transcripts import Transcripts

if TYPE_CHECKING:
    import sqlite3
    from types import TracebackType

_BUSY_TIMEOUT_MS = 5_000


class StoreView:
    """A store to be read while others use it, or nobody does. Open it with :meth:`open`, and close it."""

    def __init__(self, path: Path, reader: Reader) -> None:
        self.path = path
        self.redactor = Redactor()
        self._reader = reader
        self.runs = Runs(reader)
        self.sessions = Sessions(reader)
        self.hosts = Hosts(reader)
        self.outbox = Outbox(reader)
        self.dead_letters = DeadLetters(reader)
        self.transcripts = Transcripts(reader, self.redactor)
        self.search = Search(reader)
        self.news = News(reader)

    @classmethod
    def open(cls, path: Path | str, *, busy_timeout_ms: int = _BUSY_TIMEOUT_MS) -> Self:
        """Look at the database at ``path``.

        Raises FileNotFoundError where there is none, CorruptStoreError where it is damaged, and ForeignStoreError
        where it is another program's, or of another version: bringing it forward is a host's business.
        """
        file = Path(path).absolute()
        if not file.is_file():
            what = "is no file" if file.exists() else "does not exist"
            raise FileNotFoundError(f"{path} {what}: give the path of a database that a runtime has made")
        look(file, busy_timeout_ms=busy_timeout_ms, migrations=MIGRATIONS)
        reader = _Onlooker(file, busy_timeout_ms)
        with reader.cursor() as cursor:
            found = version(cursor.connection)
        if found < len(MIGRATIONS):
            reader.close()
            raise ForeignStoreError(
                f"{path} has version {found} of {len(MIGRATIONS)}: open it once with a runtime, which brings it forward"
                if found
                else f"{path} is empty: give the path of a database that a runtime has made"
            )
        return cls(file, reader)

    def problems(self) -> list[str]:
        """Everything that is wrong with the file, in words; empty when it is whole. Reads all of it."""
        return problems(self._reader)

    def close(self) -> None:
        """Let everything go."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Onlooker(Reader):
    """Reads without locks while it is alone, and notices when a writer comes: then everything is opened anew."""

    def __init__(self, file: Path, busy_timeout_ms: int) -> None:
        super().__init__(self._look_in)
        self._file = file
        self._busy_timeout_ms = busy_timeout_ms
        self._alone = False

    def _look_in(self) -> sqlite3.Connection:
        self._alone = not watched(self._file)
        return connect_onlooker(self._file, alone=self._alone, busy_timeout_ms=self._busy_timeout_ms)

    def _take(self) -> sqlite3.Connection:
        if self._alone and watched(self._file):
            with self._lock:
                idle, self._idle = self._idle, []
            for connection in idle:
                connection.close()
        return super()._take()
