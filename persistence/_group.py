"""Group commit: many transactions, one COMMIT, and a failure that reaches only whom it concerns."""

from __future__ import annotations

import sqlite3
from itertools import chain
from typing import TYPE_CHECKING, cast

from understudy.persistence._apply import apply
from understudy.persistence._commit import each
from understudy.persistence.errors import explained, primary_code

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from understudy.persistence._commit import Outcome, Pending
    from understudy.persistence.redaction import Redactor
    from understudy.protocol.commit_points import CommitHook, CommitPoint

# After these the connection is not trusted any more: it is closed, and opened anew for the next try.
_SUSPECT = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN}
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class GroupCommit:
    """Commits groups of transactions on a connection of its own. Used by one thread at a time.

    A group is first tried as a whole, optimistically. When that fails, each half of it is tried by itself, and so
    on down to the single transaction: so a failing one takes no neighbour down and costs a few commits, and no
    disk error can undo a neighbour afterwards, as it could with savepoints (SQLite rolls the whole transaction
    back on a full disk).
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], redactor: Redactor, hook: CommitHook | None) -> None:
        self._connect = connect
        self._redactor = redactor
        self._hook = hook
        self._connection: sqlite3.Connection | None = connect()
        self.commits = 0
        """How many there were; counted before anybody is told of one."""

    def commit(self, group: Sequence[Pending]) -> list[tuple[Pending, Outcome]]:
        """Commit what can be committed; says of each transaction how it went. Never raises."""
        outcomes: dict[Pending, Outcome] = {}
        parts = [list(group)]
        while parts:
            part = parts.pop()
            error = self._attempt(part, outcomes)
            if error is None:
                continue
            if primary_code(error) in _LOCKED:
                # A lock that outlasted the timeout would outlast it for each of the others again.
                outcomes.update((pending, explained(error)) for pending in chain(part, *parts))
                break
            if len(part) == 1:
                outcomes[part[0]] = explained(error)
            else:
                half = len(part) // 2
                parts += [part[half:], part[:half]]
        self._after(outcomes)
        return [(pending, outcomes[pending]) for pending in group]

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, opened anew where the last one had to be given up."""
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _attempt(self, left: list[Pending], outcomes: dict[Pending, Outcome]) -> BaseException | None:
        """One COMMIT for all of ``left``; those struck by their own hook are taken out of it first."""
        try:
            while left:
                cursor = self.connection.cursor()
                cursor.execute("BEGIN IMMEDIATE")
                answers = apply(cursor, self._redactor, [pending.operations for pending in left])
                if self._struck(left, outcomes):
                    # What they wrote must go: the rest is written once more without them.
                    cursor.execute("ROLLBACK")
                    continue
                cursor.execute("COMMIT")
                self.commits += 1
                outcomes.update(zip(left, answers, strict=True))
                return None
        except BaseException as error:  # noqa: BLE001 - whatever it is, the callers must hear of it
            self._recover(error)
            return error
        return None

    def _struck(self, left: list[Pending], outcomes: dict[Pending, Outcome]) -> bool:
        """Call the hook before the commit of each; whom it strikes moves from ``left`` to ``outcomes``."""
        if self._hook is None:
            return False
        before = len(left)
        for pending in left.copy():
            if pending.points is not None and not pending.hooked:
                pending.hooked = True
                try:
                    for point in each(pending.points):
                        self._hook(cast("CommitPoint", f"{point}.before"))
                except BaseException as error:  # noqa: BLE001 - handed to the caller as it is
                    outcomes[pending] = error
                    left.remove(pending)
        return len(left) < before

    def _after(self, outcomes: dict[Pending, Outcome]) -> None:
        """Call the hook after the commit of each. What it raises reaches the caller; the commit stands."""
        if self._hook is None:
            return
        for pending, outcome in list(outcomes.items()):
            if pending.points is not None and not isinstance(outcome, BaseException):
                try:
                    for point in each(pending.points):
                        self._hook(cast("CommitPoint", f"{point}.after"))
                except BaseException as error:  # noqa: BLE001 - handed to the caller as it is
                    outcomes[pending] = error

    def _recover(self, error: BaseException) -> None:
        """Leave the connection without a transaction, or leave it for good."""
        connection = self._connection
        if connection is None:
            return
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()
        if primary_code(error) in _SUSPECT:
            self.close()
