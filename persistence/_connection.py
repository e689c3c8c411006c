"""Opening the file: what every connection is set to, and what is checked before anything is written."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from understudy.persistence.errors import CorruptStoreError, ForeignStoreError, explained
from understudy.persistence.migrations import migrate, refuse_foreign

if TYPE_CHECKING:
    from collections.abc import Sequence

    from understudy.persistence.migrations import Migration

Synchronous = Literal["full", "normal"]
MEMORY = ":memory:"

# Each kind of bulk statement exists in a few sizes; all of them together should stay prepared.
_PREPARED = 256
_CACHE_KIB = 16_384
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def connect(path: str, *, synchronous: Synchronous, busy_timeout_ms: int) -> sqlite3.Connection:
    """A connection for writing; transactions are begun and ended by hand."""
    connection = _open(path, busy_timeout_ms)
    try:
        # WAL is refused for a database in memory, which has neither readers nor a crash to survive.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous.upper()}")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(path: str, *, busy_timeout_ms: int) -> sqlite3.Connection:
    """A connection that cannot write, whatever it is asked."""
    connection = _open(path, busy_timeout_ms)
    connection.execute("PRAGMA query_only = ON")
    return connection


def connect_onlooker(file: Path, *, alone: bool, busy_timeout_ms: int) -> sqlite3.Connection:
    """A connection that leaves the file as it is; and ``alone``, without locks, what lies beside it too."""
    return _open(str(file), busy_timeout_ms, mode=_mode(alone=alone))


def look(file: Path, *, busy_timeout_ms: int, migrations: Sequence[Migration]) -> None:
    """Raise if the file is not ours or not well, without a trace."""
    try:
        _look(file, busy_timeout_ms, migrations)
    except sqlite3.DatabaseError as error:
        raise _as_found(error, str(file)) from error


def watched(file: Path) -> bool:
    """Whether there is a log beside the file: somebody has it open, or died with it open."""
    return any(Path(f"{file}{log}").exists() for log in ("-wal", "-journal"))


def prepare(path: str, *, busy_timeout_ms: int, migrations: Sequence[Migration]) -> None:
    """Make sure that ``path`` is ours, healthy as far as a quick look tells, and of the current version.

    A damaged, newer or foreign file is reported before the first write, so it stays as it was found.
    """
    file = Path(path).resolve()
    try:
        if not file.exists():
            _create(file, busy_timeout_ms, migrations)
        if file.stat().st_size:
            _look(file, busy_timeout_ms, migrations)
        _bring_forward(str(file), busy_timeout_ms, migrations)
    except sqlite3.DatabaseError as error:
        raise _as_found(error, path) from error


def _as_found(error: sqlite3.DatabaseError, path: str) -> BaseException:
    if _damaged(error):
        return CorruptStoreError(
            f"{path} is damaged and was left as it is: restore a copy, or give another path ({error})"
        )
    return explained(error)


def _create(file: Path, busy_timeout_ms: int, migrations: Sequence[Migration]) -> None:
    """Make a new store under another name, and give it its own name when it is complete.

    So nobody finds it half-made. Made in place, two hosts that open it together would both change it to WAL,
    where SQLite tells one of them "locked" without waiting; and closing a file of our own, opened beside
    SQLite's, would drop the locks that another thread's SQLite has on it.
    """
    if not file.parent.is_dir():
        raise FileNotFoundError(f"{file.parent} is no folder: make it, or give another path")
    # A transcript is private: mkstemp creates for its owner only; SQLite gives -wal and -shm the same mode.
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    os.close(descriptor)
    try:
        _bring_forward(name, busy_timeout_ms, migrations)
        os.link(name, file)
    except FileExistsError:
        pass  # somebody else was faster: theirs is as good
    except OSError:  # of which kind depends on the volume
        file.touch(mode=0o600)  # it has no hard links: the store is made in place after all
    finally:
        for left in ("", "-wal", "-shm"):
            Path(f"{name}{left}").unlink(missing_ok=True)


def _bring_forward(path: str, busy_timeout_ms: int, migrations: Sequence[Migration]) -> None:
    connection = connect(path, synchronous="full", busy_timeout_ms=busy_timeout_ms)
    try:
        migrate(connection, path, migrations)
    finally:
        connection.close()


def _look(file: Path, busy_timeout_ms: int, migrations: Sequence[Migration]) -> None:
    """Raise if the file is not ours or not well, and leave nothing beside it either.

    Even a reader makes a log and its index beside a database in WAL mode. Where there is no log, nobody has the
    file open, and it is read as it lies there ("immutable").
    """
    try:
        _read_roots(file, _mode(alone=not watched(file)), busy_timeout_ms, migrations)
    except (ForeignStoreError, sqlite3.DatabaseError):
        # That is reading without locks, and somebody may have come and gone: only what shows twice is believed.
        _read_roots(file, _mode(alone=not watched(file)), busy_timeout_ms, migrations)


def _mode(*, alone: bool) -> str:
    return "ro&immutable=1" if alone else "ro"


def _read_roots(file: Path, mode: str, busy_timeout_ms: int, migrations: Sequence[Migration]) -> None:
    connection = sqlite3.connect(
        _uri(str(file), mode),
        uri=True,
        isolation_level=None,
        timeout=busy_timeout_ms / 1000,
    )
    try:
        refuse_foreign(connection, str(file), migrations)
        # The root page of each table: a file cut short or overwritten shows here, at the cost of a few reads.
        # NOT INDEXED: else SQLite would rather read the root of some index.
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
        for (name,) in names.fetchall():
            connection.execute(f'SELECT 1 FROM "{name}" NOT INDEXED LIMIT 1').fetchone()  # noqa: S608 - names of our own schema
    finally:
        connection.close()


def _uri(path: str, mode: str) -> str:
    return f"{Path(path).absolute().as_uri()}?mode={mode}"


def _damaged(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGED


def _open(path: str, busy_timeout_ms: int, mode: str = "rw") -> sqlite3.Connection:
    # mode=rw: a file that vanished under us is an error, not an empty database.
    return sqlite3.connect(
        path if path == MEMORY else _uri(path, mode),
        uri=path != MEMORY,
        isolation_level=None,
        timeout=busy_timeout_ms / 1000,
        check_same_thread=False,  # one thread at a time uses it, though not always the same
        cached_statements=_PREPARED,
    )
