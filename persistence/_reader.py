"""Reading: on connections of its own, so that no read ever stands behind the writer."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from understudy.persistence.errors import StoreClosedError, explained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from understudy.persistence._bulk import Row, Value
    from understudy.persistence._writer import InlineWriter

# More threads than this may read at once; their connections are then closed instead of kept.
_KEPT = 8


class Reader:
    """Lends connections to whoever reads; each read sees everything committed before it, by any process."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    def rows(self, sql: str, parameters: tuple[Value, ...] = ()) -> list[Row]:
        """All rows of a query."""
        with self.cursor() as cursor:
            return cursor.execute(sql, parameters).fetchall()

    def row(self, sql: str, parameters: tuple[Value, ...] = ()) -> Row | None:
        """The first row of a query, if there is one."""
        found = self.rows(sql, parameters)
        return found[0] if found else None

    @contextmanager
    def cursor(self) -> Iterator[sqlite3.Cursor]:
        """A cursor for one or several queries; give it back soon, an open one keeps the log from shrinking."""
        connection = self._take()
        try:
            cursor = connection.cursor()
            try:
                yield cursor
            finally:
                cursor.close()
        except sqlite3.Error as error:
            connection.close()
            raise explained(error) from error
        except BaseException:
            self._give_back(connection)
            raise
        else:
            self._give_back(connection)

    def close(self) -> None:
        """Close what is idle; what is lent out is closed when it comes back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store is closed: open it again to read from it")
            if self._idle:
                return self._idle.pop()
        try:
            return self._connect()
        except sqlite3.Error as error:
            raise explained(error) from error

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _KEPT:
                self._idle.append(connection)
                return
        connection.close()


class InlineReader(Reader):
    """Reads on the writer's connection: a database in memory has no other."""

    def __init__(self, connection: Callable[[], sqlite3.Connection], writer: InlineWriter) -> None:
        super().__init__(connection)
        self._writer = writer

    @contextmanager
    def cursor(self) -> Iterator[sqlite3.Cursor]:
        """A cursor, once everything handed in is written and while nobody else writes."""
        with self._writer.turn:
            self._writer.flush()
            if self._closed:
                raise StoreClosedError("the store is closed: open it again to read from it")
            cursor = self._connect().cursor()
            try:
                yield cursor
            except sqlite3.Error as error:
                raise explained(error) from error
            finally:
                cursor.close()
