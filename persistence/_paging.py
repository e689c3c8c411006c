"""One way to page: newest first, by row number, so that new rows never shift a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from understudy.persistence.records import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from understudy.persistence._bulk import Value
    from understudy.persistence._reader import Reader

T = TypeVar("T")
_LARGEST = 2**63 - 1  # of SQLite's integers
OF_AGENT = "(SELECT agent_id FROM sessions WHERE sessions.session_key = {}) = ?"
"""Whose session a column names, asked row by row: a page needs a few rows, an agent may have any number of sessions."""


def page(
    reader: Reader,
    select: str,
    number: str,
    conditions: Sequence[str],
    values: Sequence[Value],
    limit: int,
    cursor: str | None,
    record: Callable[[Any], T],
) -> Page[T]:
    """One page of ``select``, whose last column is ``number``."""
    before = cursor_number(limit, cursor)
    limit = min(limit, _LARGEST - 1)
    where, given = list(conditions), list(values)
    if cursor is not None:
        where.append(f"{number} < ?")
        given.append(before)
    clause = f"WHERE {' AND '.join(where)}" if where else ""
    return cut(reader.rows(f"{select} {clause} ORDER BY {number} DESC LIMIT ?", (*given, limit + 1)), limit, record)


def cursor_number(limit: int, cursor: str | None) -> int:
    """The number below which a page begins; refuses a limit or a cursor that cannot be."""
    if limit < 1:
        raise ValueError(f"limit = {limit} is not allowed: use 1 or more")
    if cursor is None:
        return _LARGEST
    if not (cursor.isascii() and cursor.isdigit()):
        raise ValueError(f"cursor {cursor[:40]!r} is not one of ours: pass back what a page gave")
    return min(int(cursor), _LARGEST)


def cut(rows: Sequence[Any], limit: int, record: Callable[[Any], T]) -> Page[T]:
    """A page of ``rows``, of which there is one more than ``limit`` when there is another page."""
    more = len(rows) > limit
    return Page(tuple(record(row) for row in rows[:limit]), str(rows[limit - 1][-1]) if more else None)
