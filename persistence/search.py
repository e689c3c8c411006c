"""Finding what was said: exact session key, then full text, then substring; never another agent's rows.

The text of a query is data. It reaches SQLite as a bound value, and full-text search as quoted tokens, so no
text can become syntax. Who may see a row is decided in SQL's WHERE and nowhere else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from understudy.protocol import SessionKey

if TYPE_CHECKING:
    import sqlite3

    from understudy.persistence._reader import Reader
    from understudy.persistence.operations import Visibility

_MOST_HITS = 20
_MOST_TOKENS = 16
# SQLite refuses patterns beyond 50,000 bytes; nobody searches for more than this.
_LONGEST_QUERY = 1_000
# Matches are looked at in windows of so many, the newest first: ranking costs no more than a window, however
# common a word is. A window in which more than half of the turns match is not worth ranking.
_WINDOW = 1_000
_COMMON = 2
# A substring has no index: so many of the newest turns are read for one, unless a session is named.
_SUBSTRING_WINDOW = 20_000
_EXCERPT_BEFORE, _EXCERPT = 80, 240
_NEWEST = 2**63 - 1

_WORD = re.compile(r"\w+")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

_VISIBLE = """
    (sessions.agent_id = :agent OR (:shared AND sessions.visibility = 'shared'))
    AND (:key IS NULL OR sessions.session_key = :key)
"""
_HIT = "SELECT sessions.session_key, turns.at, turns.role, turns.text, turns.id"
_IN_WINDOW = f"""
    {_HIT} FROM turns_fts JOIN turns ON turns.id = turns_fts.rowid JOIN sessions ON sessions.id = turns.session_id
    WHERE turns_fts MATCH :match AND turns_fts.rowid BETWEEN :oldest AND :newest AND {_VISIBLE}
"""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A turn that was found: where, when, and the text around the match; ``rank`` counts from 1, the best."""

    session_key: SessionKey
    at: int
    role: str
    excerpt: str
    rank: int
    turn_id: int


class Search:
    """Searches turns on behalf of an agent."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __call__(
        self,
        query: str,
        *,
        agent_id: str,
        visibility: Visibility = "isolated",
        session_key: str | None = None,
        limit: int = 10,
    ) -> list[SearchHit]:
        """The best turns for ``query``, at most 20.

        An isolated agent sees its own sessions; a shared one also those of others that are shared. A key that
        does not exist and a key that may not be seen answer alike: with nothing.
        """
        text = _UNSTORABLE.sub(" ", query[:_LONGEST_QUERY]).strip()
        if not text:
            return []
        given = {
            "agent": _UNSTORABLE.sub("", agent_id),
            "shared": visibility == "shared",
            "key": None if session_key is None else _UNSTORABLE.sub(" ", session_key),
            "limit": max(1, min(limit, _MOST_HITS)),
            "text": text,
        }
        words = [word for word in _WORD.findall(text) if word.strip("_")][:_MOST_TOKENS]
        with self._reader.cursor() as cursor:
            rows = _by_key(cursor, given)
            # All words first; where no turn has them all, any of them.
            for junction in (" AND ", " OR ")[: min(len(words), 2)]:
                rows = rows or _by_words(cursor, given, junction.join(f'"{word}"' for word in words))
            rows = rows or _by_substring(cursor, given)
        return [
            SearchHit(SessionKey(key), at, role, _excerpt(said, [text, *words]), rank, number)
            for rank, (key, at, role, said, number) in enumerate(rows, 1)
        ]


def _by_key(cursor: sqlite3.Cursor, given: dict[str, Any]) -> list[Any]:
    """The newest turns of the session that the query names."""
    return cursor.execute(
        f"""
        {_HIT} FROM sessions JOIN turns ON turns.session_id = sessions.id
        WHERE sessions.session_key = :text AND {_VISIBLE} ORDER BY turns.id DESC LIMIT :limit
        """,
        given,
    ).fetchall()


def _by_words(cursor: sqlite3.Cursor, given: dict[str, Any], match: str) -> list[Any]:
    """Full text: window after window from the newest, until there are enough hits or no more matches."""
    first, last = _bounds(cursor, given)
    rows: list[Any] = []
    while last is not None:
        window = {**given, "match": match, "first": first, "last": last, "size": _WINDOW}
        count, oldest, newest = cursor.execute(
            """
            SELECT count(*), min(rowid), max(rowid) FROM (
                SELECT rowid FROM turns_fts WHERE turns_fts MATCH :match AND rowid BETWEEN :first AND :last
                ORDER BY rowid DESC LIMIT :size)
            """,
            window,
        ).fetchone()
        if not count:
            break
        common = count == _WINDOW and newest - oldest < _COMMON * _WINDOW
        order = "turns_fts.rowid DESC" if common else "turns_fts.rank"
        window |= {"oldest": oldest, "newest": newest, "limit": given["limit"] - len(rows)}
        rows += cursor.execute(f"{_IN_WINDOW} ORDER BY {order} LIMIT :limit", window).fetchall()
        last = oldest - 1 if count == _WINDOW and len(rows) < given["limit"] else None
    return rows


def _bounds(cursor: sqlite3.Cursor, given: dict[str, Any]) -> tuple[int, int | None]:
    """The numbers between which a named session's turns lie: its matches are then found without a detour."""
    if given["key"] is None:
        return 0, _NEWEST
    first, last = cursor.execute(
        """
        SELECT (SELECT min(id) FROM turns WHERE session_id = sessions.id),
               (SELECT max(id) FROM turns WHERE session_id = sessions.id)
        FROM sessions WHERE session_key = :key UNION ALL SELECT NULL, NULL LIMIT 1
        """,
        given,
    ).fetchone()
    return first or 0, last


def _by_substring(cursor: sqlite3.Cursor, given: dict[str, Any]) -> list[Any]:
    """What no token finds: punctuation, parts of words."""
    escaped = re.sub(r"([\\%_])", r"\\\1", given["text"])
    if given["key"] is None:
        (newest,) = cursor.execute("SELECT coalesce(max(id), 0) FROM turns").fetchone()
        first = newest - _SUBSTRING_WINDOW
    else:
        first = 0
    return cursor.execute(
        f"""
        {_HIT} FROM turns JOIN sessions ON sessions.id = turns.session_id
        WHERE turns.id > :first AND turns.text LIKE :pattern ESCAPE '\\' AND {_VISIBLE}
        ORDER BY turns.id DESC LIMIT :limit
        """,
        {**given, "first": first, "pattern": f"%{escaped}%"},
    ).fetchall()


def _excerpt(text: str, wanted: list[str]) -> str:
    """The text around the first thing that matched; its beginning where only a folded form did."""
    lowered = text.lower()
    found = next((place for place in (lowered.find(word.lower()) for word in wanted) if place >= 0), 0)
    start = max(0, found - _EXCERPT_BEFORE)
    end = start + _EXCERPT
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
