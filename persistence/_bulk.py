"""Multi-row statements: one step of SQLite for many rows.

Python's sqlite3 gives up the interpreter lock for each step, and gets it back late while an event loop is
busy. A statement over many rows pays that once, and SQLite's part of the work runs beside the loop.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

Value: TypeAlias = str | int | float | None
Row: TypeAlias = tuple[Value, ...]

# Few sizes, so that every statement stays prepared; the largest is far below SQLite's limit of variables.
_SIZES = (256, 64, 16, 4, 1)


@cache
def _with_rows(sql: str, row: str, size: int) -> str:
    return sql.replace("{rows}", ",".join([row] * size))


def run(cursor: sqlite3.Cursor, sql: str, row: str, rows: Sequence[Row]) -> list[Row]:
    """Execute ``sql``, whose ``{rows}`` stands for one ``row`` of placeholders each; gives what it returns."""
    returned: list[Row] = []
    position, left = 0, len(rows)
    for size in _SIZES:
        while left >= size:
            part = rows[position : position + size]
            cursor.execute(_with_rows(sql, row, size), tuple(chain.from_iterable(part)))
            if cursor.description is not None:
                returned += cursor.fetchall()
            position, left = position + size, left - size
    return returned
