"""Opening the file: what every connection is set to, and what is checked before anything is written."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from understudy.persistence.errors import CorruptStoreError, explained
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


def prepare(path: str, *, busy_timeout_ms: int, migrations: Sequence[Migration]) -> None:
    """Make sure that ``path`` is ours, healthy as far as a quick look tells, and of the current version.

    A damaged, newer or foreign file is reported before the first write, so it stays as it was found.
    """
    file = Path(path)
    if not file.exists():
        # A transcript is private: created for its owner only; SQLite gives -wal and -shm the same mode.
        os.close(os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    try:
        if file.stat().st_size:
            _look(file, busy_timeout_ms, migrations)
        connection = connect(path, synchronous="full", busy_timeout_ms=busy_timeout_ms)
        try:
            migrate(connection, path, migrations)
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        if _damaged(error):
            raise CorruptStoreError(
                f"{path} is damaged and was left as it is: restore a copy, or give another path ({error})"
            ) from error
        raise explained(error) from error


def _look(file: Path, busy_timeout_ms: int, migrations: Sequence[Migration]) -> None:
    connection = sqlite3.connect(
        _uri(str(file), "ro"),
        uri=True,
        isolation_level=None,
        timeout=busy_timeout_ms / 1000,
    )
    try:
        refuse_foreign(connection, str(file), migrations)
        # The root page of each table: a file cut short or overwritten shows here, at the cost of a few reads.
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
        for (name,) in names.fetchall():
            connection.execute(f'SELECT 1 FROM "{name}" LIMIT 1').fetchone()  # noqa: S608 - names of our own schema
    finally:
        connection.close()


def _uri(path: str, mode: str) -> str:
    return f"{Path(path).absolute().as_uri()}?mode={mode}"


def _damaged(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGED


def _open(path: str, busy_timeout_ms: int) -> sqlite3.Connection:
    # mode=rw: a file that vanished under us is an error, not an empty database.
    return sqlite3.connect(
        path if path == MEMORY else _uri(path, "rw"),
        uri=path != MEMORY,
        isolation_level=None,
        timeout=busy_timeout_ms / 1000,
        check_same_thread=False,  # one thread at a time uses it, though not always the same
        cached_statements=_PREPARED,
    )
