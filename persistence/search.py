"""Finding what was said: exact session key, then full text, then substring; never another agent's rows.

The text of a query is data. It reaches SQLite as a bound value, and full-text search as quoted tokens, so no
text can become syntax. Who may see a row is decided in SQL's WHERE and nowhere else.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from understudy.persistence.transcripts import NEWEST
from understudy.protocol import SessionKey

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from understudy.persistence._reader import Reader
    from understudy.persistence.operations import Visibility

_MOST_HITS = 20
_MOST_TOKENS = 16
# SQLite refuses patterns beyond 50,000 bytes; nobody searches for more than this.
_LONGEST_QUERY = 1_000
# Matches are looked at in windows of so many, the newest first: ranking costs no more than a window, however
# common a word is. A window in which more than half of the turns match is not worth ranking.
WINDOW = 1_000
COMMON = 2
# A named session of at most so many turns is asked turn by turn once a window full of others' did not do.
SHORT = 1_000
# A substring has no index: so many of the newest turns are read for one, unless a session is named.
SUBSTRING_WINDOW = 20_000
_EXCERPT_BEFORE, _EXCERPT = 80, 240
# A word may stand inside other words so often before an excerpt is content with one of those.
_PATIENCE = 100

Hit: TypeAlias = tuple[str, int, str, str, int]
"""Session, time, role, text and number of a turn that was found."""

# An accent written as a character of its own belongs to its word, as it does for the index.
_MARKS = "\u0300-\u036f"
_MARK = re.compile(f"[{_MARKS}]")
_WORD = re.compile(rf"\w[\w{_MARKS}]*")
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


@dataclass(frozen=True, slots=True)
class Question:
    """A query as it is looked for: storable, and bounded in every direction."""

    text: str
    words: list[str]
    limit: int


def asked(query: str, agent_id: str, session_key: str | None, limit: int) -> Question | None:
    """What ``query`` asks; None when it asks nothing, or is asked by or about somebody who cannot be."""
    text = _UNSTORABLE.sub(" ", query[:_LONGEST_QUERY]).strip()
    # Who asks, and about which session, is never cleaned: what cannot be stored has no rows.
    if not text or _UNSTORABLE.search(agent_id) or _UNSTORABLE.search(session_key or ""):
        return None
    words = [word for word in _WORD.findall(text) if word.strip("_")][:_MOST_TOKENS]
    return Question(text, words, max(1, min(limit, _MOST_HITS)))


def hits_of(found: Sequence[Hit], question: Question) -> list[SearchHit]:
    """What was found, the best first, with the text around the match."""
    wanted = [_MARK.sub("", _folded(part)) for part in (question.text, *question.words)]
    return [
        SearchHit(SessionKey(key), at, role, _excerpt(said, wanted), rank, number)
        for rank, (key, at, role, said, number) in enumerate(found, 1)
    ]


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
        question = asked(query, agent_id, session_key, limit)
        if question is None:
            return []
        given = {
            "agent": agent_id,
            "shared": visibility == "shared",
            "key": session_key,
            "limit": question.limit,
            "text": question.text,
        }
        words = question.words
        with self._reader.cursor() as cursor:
            rows = _by_key(cursor, given)
            # All words first; where no turn has them all, any of them.
            for junction in (" AND ", " OR ")[: min(len(words), 2)]:
                rows = rows or _by_words(cursor, given, junction.join(f'"{word}"' for word in words))
            rows = rows or _by_substring(cursor, given)
        return hits_of(rows, question)


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
        window = {**given, "match": match, "first": first, "last": last, "size": WINDOW}
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
        common = count == WINDOW and newest - oldest < COMMON * WINDOW
        order = "turns_fts.rowid DESC" if common else "turns_fts.rank"
        window |= {"oldest": oldest, "newest": newest, "limit": given["limit"] - len(rows)}
        rows += cursor.execute(f"{_IN_WINDOW} ORDER BY {order} LIMIT :limit", window).fetchall()
        if count == WINDOW and len(rows) < given["limit"] and _is_short(cursor, given):
            return _along_session(cursor, {**given, "match": match})
        last = oldest - 1 if count == WINDOW and len(rows) < given["limit"] else None
    return rows


def _bounds(cursor: sqlite3.Cursor, given: dict[str, Any]) -> tuple[int, int | None]:
    """The numbers between which a named session's turns lie: its matches are then found without a detour."""
    if given["key"] is None:
        return 0, NEWEST
    first, last = cursor.execute(
        """
        SELECT (SELECT min(id) FROM turns WHERE session_id = sessions.id),
               (SELECT max(id) FROM turns WHERE session_id = sessions.id)
        FROM sessions WHERE session_key = :key UNION ALL SELECT NULL, NULL LIMIT 1
        """,
        given,
    ).fetchone()
    return first or 0, last


def _is_short(cursor: sqlite3.Cursor, given: dict[str, Any]) -> bool:
    """Whether a session is named, and so short that asking turn by turn is cheaper than everybody's matches."""
    if given["key"] is None:
        return False
    (count,) = cursor.execute(
        """
        SELECT count(*) FROM (SELECT 1 FROM turns WHERE session_id = (
            SELECT id FROM sessions WHERE session_key = :key) LIMIT :most + 1)
        """,
        {**given, "most": SHORT},
    ).fetchone()
    return bool(count <= SHORT)


def _along_session(cursor: sqlite3.Cursor, given: dict[str, Any]) -> list[Any]:
    """The newest matches of a named session, by its own index. CROSS JOIN is SQLite's way to fix that order."""
    return cursor.execute(
        f"""
        {_HIT} FROM turns CROSS JOIN turns_fts CROSS JOIN sessions
        WHERE turns.session_id = (SELECT id FROM sessions WHERE session_key = :key)
              AND turns_fts.rowid = turns.id AND turns_fts MATCH :match
              AND sessions.id = turns.session_id AND {_VISIBLE}
        ORDER BY turns.id DESC LIMIT :limit
        """,  # noqa: S608 - conditions of our own
        given,
    ).fetchall()


def _by_substring(cursor: sqlite3.Cursor, given: dict[str, Any]) -> list[Any]:
    """What no token finds: punctuation, parts of words."""
    escaped = re.sub(r"([\\%_])", r"\\\1", given["text"])
    if given["key"] is None:
        where = "turns.id > (SELECT coalesce(max(id), 0) FROM turns) - :window"
    else:
        where = "turns.session_id = (SELECT id FROM sessions WHERE session_key = :key)"
    return cursor.execute(
        f"""
        {_HIT} FROM turns JOIN sessions ON sessions.id = turns.session_id
        WHERE {where} AND turns.text LIKE :pattern ESCAPE '\\' AND {_VISIBLE}
        ORDER BY turns.id DESC LIMIT :limit
        """,
        {**given, "window": SUBSTRING_WINDOW, "pattern": f"%{escaped}%"},
    ).fetchall()


class _Folding(dict[int, str]):
    """Each character as the index sees it, without case and accent: one for one, so that places stay places."""

    def __missing__(self, code: int) -> str:
        folded = unicodedata.normalize("NFD", chr(code))[0].lower()[0]
        self[code] = folded
        return folded


_FOLDING = _Folding()


def _folded(text: str) -> str:
    return text.lower() if text.isascii() else text.translate(_FOLDING)


def _excerpt(text: str, wanted: list[str]) -> str:
    """The text around what was wanted: best all of it, then a word of it, then part of a word; else the beginning."""
    bare = _folded(text)
    places: Sequence[int] = range(len(bare) + 1)
    if not bare.isascii() and _MARK.search(bare):
        places = [place for place, character in enumerate(bare) if not _MARK.match(character)]
        bare = _MARK.sub("", bare)
    found = next((place for part in wanted if (place := _word(bare, part)) >= 0), -1)
    if found < 0:
        found = next((place for part in wanted if (place := bare.find(part)) >= 0), 0)
    start = max(0, (places[found] if found else 0) - _EXCERPT_BEFORE)
    end = start + _EXCERPT
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


def _word(text: str, part: str) -> int:
    """Where ``part`` stands by itself; -1 where it does not."""
    place = text.find(part)
    for _ in range(_PATIENCE):
        if place < 0:
            break
        end = place + len(part)
        if not (text[place - 1 : place].isalnum() or text[end : end + 1].isalnum()):
            return place
        place = text.find(part, place + 1)
    return -1
