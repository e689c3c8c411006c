"""Reading what was said: a session's turns in order, and the tail of them, at a cost that does not grow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from understudy.persistence.records import Compaction, StoredTurn
from understudy.protocol import RunId
from understudy.protocol.model import ToolCall, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from understudy.persistence._reader import Reader
    from understudy.persistence.redaction import Redactor


# Longer than most secrets: so much more is read, that one is taken out whole before the tail is cut, not cut in two.
_MARGIN = 512

NEWEST = 2**63 - 1
"""A turn's number that none is above."""


class Transcripts:
    """Reads turns."""

    def __init__(self, reader: Reader, redactor: Redactor) -> None:
        self._reader = reader
        self._redactor = redactor

    def turns(self, session_key: str, *, after: int = 0, limit: int = -1) -> list[StoredTurn]:
        """A session's turns in order, from the one after number ``after``; at most ``limit`` if one is given."""
        rows: list[Any] = self._reader.rows(
            """
            SELECT id, at, run_id, role, text, tool_calls, tool_call_id FROM turns
            WHERE session_id = (SELECT id FROM sessions WHERE session_key = ?) AND id > ?
            ORDER BY id LIMIT ?
            """,
            (session_key, after, limit),
        )
        return [turn_of(row) for row in rows]

    def latest(self, session_key: str, limit: int, *, before: int = NEWEST) -> list[StoredTurn]:
        """The last ``limit`` turns before number ``before``, in order."""
        rows: list[Any] = self._reader.rows(
            """
            SELECT id, at, run_id, role, text, tool_calls, tool_call_id FROM turns
            WHERE session_id = (SELECT id FROM sessions WHERE session_key = ?) AND id < ?
            ORDER BY id DESC LIMIT ?
            """,
            (session_key, before, limit),
        )
        return [turn_of(row) for row in reversed(rows)]

    def tail(self, session_key: str, chars: int, *, after: int = 0, until: int = NEWEST) -> str:
        """The last ``chars`` characters of what was said, as ``role: text`` lines.

        Of turns after number ``after``, up to and with number ``until``. Read backwards along an index: the length
        of the session does not matter. A secret is taken out also if it became known after it was written.
        """
        with self._reader.cursor() as cursor:
            cursor.execute(
                """
                SELECT role, substr(text, -?1) FROM turns
                WHERE session_id = (SELECT id FROM sessions WHERE session_key = ?2) AND id > ?3 AND id <= ?4
                ORDER BY id DESC
                """,
                (max(chars, 1) + _MARGIN, session_key, after, until),
            )
            # Row by row: a tail needs a few turns, not the session.
            return tail_of(cursor, chars, self._redactor)

    def compaction(self, session_key: str) -> Compaction | None:
        """The session's last compaction; None while its history is all of its turns."""
        row: Any = self._reader.row(
            """
            SELECT at, summary, first_kept_turn_id FROM compactions
            WHERE session_id = (SELECT id FROM sessions WHERE session_key = ?) ORDER BY id DESC LIMIT 1
            """,
            (session_key,),
        )
        return None if row is None else Compaction(*row)

    def last(self, session_key: str) -> StoredTurn | None:
        """A session's newest turn."""
        return next(iter(self.latest(session_key, 1)), None)

    def taken_in(self, path: str) -> tuple[int, str] | None:
        """How far a transcript file was taken in, and the fingerprint of what lay before; None for a new one."""
        row: Any = self._reader.row("SELECT offset, anchor FROM ingests WHERE path = ?", (path,))
        return None if row is None else (int(row[0]), str(row[1]))

    def text(self, session_key: str) -> str:
        """The whole transcript, as ``role: text`` lines."""
        return "\n".join(f"{stored.turn.role}: {stored.turn.text}" for stored in self.turns(session_key))


def tail_of(said: Iterator[tuple[str, str]], chars: int, redactor: Redactor) -> str:
    """The last ``chars`` characters of ``said``, roles and texts from the last one back; takes what it needs."""
    if chars <= 0:
        return ""
    lines: list[str] = []
    left = chars + _MARGIN
    while left > 0 and (turn := next(said, None)) is not None:
        line = "{}: {}".format(*turn)
        left -= len(line) + (1 if lines else 0)  # and the line break before the next
        lines.append(line)
    lines.reverse()
    return redactor.text("\n".join(lines))[-chars:]


def turn_of(row: Any) -> StoredTurn:
    """A row of the turns."""
    number, at, run_id, role, text, calls, call_id = row
    tool_calls = () if calls is None else tuple(ToolCall(**call) for call in json.loads(calls))
    return StoredTurn(number, at, run_id and RunId(run_id), Turn(role, text, tool_calls, call_id))
