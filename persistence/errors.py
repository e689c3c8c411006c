"""What can go wrong with the store, each in one clear sentence."""

from __future__ import annotations

import sqlite3


class StoreError(Exception):
    """The store could not do what was asked."""


class StoreUnavailableError(StoreError):
    """Nothing of this work was acknowledged: the file is locked, full, unreadable or damaged. It may be tried again."""


class StoreClosedError(StoreError):
    """The store was closed before the work was handed in."""


class CorruptStoreError(StoreError):
    """The file is no healthy database. It is left exactly as it was found."""


class ForeignStoreError(StoreError):
    """The file is a newer Understudy's, or another program's. It is left exactly as it was found."""


class DuplicateRunError(StoreError):
    """The session already accepted a run under this idempotency key."""

    def __init__(self, run_id: str, digest: str | None) -> None:
        super().__init__(f"run {run_id} was already accepted under this idempotency key: use that run")
        self.run_id = run_id
        self.digest = digest


class IngestConflictError(StoreError):
    """Somebody else took the same transcript file in at the same moment; nothing was stored twice."""


_SENTENCES = {
    sqlite3.SQLITE_BUSY: "the database is locked by another process: try again when it has finished",
    sqlite3.SQLITE_LOCKED: "the database is locked by another connection: try again when it has finished",
    sqlite3.SQLITE_FULL: "the disk is full: free some space and try again",
    sqlite3.SQLITE_IOERR: "the disk reports an input/output error: check the volume of the database",
    sqlite3.SQLITE_READONLY: "the database is read-only: check its permissions and those of its folder",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened: check its path and the permissions of its folder",
    sqlite3.SQLITE_CORRUPT: "the database is damaged; it was left as it is: restore a copy of it",
    sqlite3.SQLITE_NOTADB: "the file is no SQLite database; it was left as it is",
}
_PRIMARY = 0xFF  # extended result codes carry the primary one in their low byte


def primary_code(error: BaseException) -> int | None:
    """SQLite's primary result code in ``error``, where it has one."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & _PRIMARY


def explained(error: BaseException) -> BaseException:
    """``error`` as what a caller should see: SQLite's own errors in a sentence, everything else as it is."""
    if not isinstance(error, sqlite3.Error):
        return error
    sentence = _SENTENCES.get(primary_code(error) or 0)
    if sentence is None:
        told: StoreError = StoreError(f"the store refused this work: {error}")
    else:
        told = StoreUnavailableError(f"{sentence} ({error})")
    told.__cause__ = error
    return told
