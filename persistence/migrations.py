"""Bringing a file to the current version: forward only, all or nothing, and never a file that is not ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from sqlite_utils import Database

from understudy.persistence.errors import ForeignStoreError
from understudy.persistence.schema import APPLICATION_ID, TABLES, VIEWS

if TYPE_CHECKING:
    import sqlite3

Migration: TypeAlias = Callable[[Database], None]


def first_release(db: Database) -> None:
    """Everything that survives, as first released."""
    for statement in TABLES:
        db.execute(statement)
    for name, select in VIEWS.items():
        db.create_view(name, select)


def compaction(db: Database) -> None:
    """Histories that were compacted, and what a session is for."""
    db.execute("ALTER TABLE sessions ADD COLUMN objective TEXT")
    db.execute(
        """
        CREATE TABLE compactions (
            id INTEGER PRIMARY KEY,
            session_id INTEGER NOT NULL REFERENCES sessions (id),
            at INTEGER NOT NULL,
            summary TEXT NOT NULL,
            first_kept_turn_id INTEGER NOT NULL
        )
        """
    )
    db.execute("CREATE INDEX compactions_by_session ON compactions (session_id)")


def lineage(db: Database) -> None:
    """Whether a session's parent is known, or only the best guess: harnesses do not always tell at once."""
    db.execute("ALTER TABLE sessions ADD COLUMN parent_inferred INTEGER NOT NULL DEFAULT 0")


MIGRATIONS: tuple[Migration, ...] = (first_release, compaction, lineage)
"""Every step in order; how many of them a file has seen is its version (SQLite's ``user_version``)."""


def version(connection: sqlite3.Connection) -> int:
    """How many migrations the file has seen."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def refuse_foreign(connection: sqlite3.Connection, path: str, migrations: Sequence[Migration]) -> None:
    """Only reading: raise if the file is a newer version's, or another program's."""
    found = version(connection)
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    # An empty database that nobody has marked is as good as a new file.
    if application != APPLICATION_ID and (tables or application):
        raise ForeignStoreError(f"{path} is the database of another program: give another path")
    if found > len(migrations):
        raise ForeignStoreError(
            f"{path} has version {found} and this Understudy knows versions up to {len(migrations)}: "
            "upgrade Understudy, or give another path"
        )


def migrate(connection: sqlite3.Connection, path: str, migrations: Sequence[Migration]) -> None:
    """Apply what is pending, in one transaction: a crash leaves the old version, not something in between."""
    if version(connection) == len(migrations):
        return
    # Immediate: of two processes that open a new file together, the second waits and finds it done.
    connection.execute("BEGIN IMMEDIATE")
    try:
        refuse_foreign(connection, path, migrations)
        db = Database(connection, execute_plugins=False)
        for apply in migrations[version(connection) :]:
            apply(db)
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
