"""Search over the tables: the same three ways in the same order, reading every turn as there is no index."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import TYPE_CHECKING

from understudy.persistence.search import COMMON, SHORT, SUBSTRING_WINDOW, WINDOW, Search, SearchHit, asked, hits_of

if TYPE_CHECKING:
    from understudy.persistence.memory._tables import Session, Tables
    from understudy.persistence.operations import Visibility
    from understudy.persistence.redaction import Redactor
    from understudy.persistence.search import Hit, Question

_TOKEN = re.compile(r"[^\W_]+")
# The parameters of FTS5's bm25(), and what it takes a word for that more than half of all turns have.
_K1, _B = 1.2, 0.75
_LEAST_WEIGHT = 1e-6


class MemorySearch(Search):
    def __init__(self, tables: Tables, redactor: Redactor) -> None:
        self._tables = tables
        self._redactor = redactor

    def __call__(
        self,
        query: str,
        *,
        agent_id: str,
        visibility: Visibility = "isolated",
        session_key: str | None = None,
        limit: int = 10,
    ) -> list[SearchHit]:
        question = asked(query, agent_id, session_key, limit)
        if question is None:
            return []
        with self._tables:
            everything = [
                (session, (session.opened.session_key, at, role, self._redactor.text(text), number))
                for session in self._tables.sessions.values()
                for number, at, _, role, text, _, _ in session.turns
            ]
        everything.sort(key=lambda entry: -entry[1][-1])

        def visible(session: Session) -> bool:
            mine, new = session.opened.agent_id == agent_id, session.opened
            shared = visibility == "shared" and new.visibility == "shared"
            return (mine or shared) and (session_key is None or session_key == new.session_key)

        mine: dict[int, Hit] = {hit[-1]: hit for session, hit in everything if visible(session)}
        hits = [hit for hit in mine.values() if hit[0] == question.text][: question.limit]
        if mine and not hits and question.words:
            library = _Library([hit for _, hit in everything])
            for every in (True, False)[: min(len(question.words), 2)]:
                hits = hits or library.best(question, mine, every=every, named=session_key is not None)
        if not hits:
            oldest = 0 if session_key is not None or not everything else everything[0][1][-1] - SUBSTRING_WINDOW
            wanted = _folded_ascii(question.text)
            hits = [hit for hit in mine.values() if hit[-1] > oldest and wanted in _folded_ascii(hit[3])]
        return hits_of(hits[: question.limit], question)


class _Library:
    """All turns as tokens, the newest first; ranks as FTS5 does, which counts what its asker may not see too."""

    def __init__(self, turns: list[Hit]) -> None:
        self._tokens = {hit[-1]: _tokens(hit[3]) for hit in turns}
        self._average = sum(map(len, self._tokens.values())) / max(1, len(self._tokens))

    def best(self, question: Question, visible: dict[int, Hit], *, every: bool, named: bool) -> list[Hit]:
        """Window after window, as many as are asked for; ``named`` when all that is visible is of one session."""
        phrases = [phrase for phrase in map(_tokens, question.words) if phrase]
        counts = {number: [_count(phrase, said) for phrase in phrases] for number, said in self._tokens.items()}
        weights = [self._weight(sum(1 for count in counts.values() if count[place])) for place in range(len(phrases))]
        matches = [number for number, count in counts.items() if (all(count) if every else any(count))]
        if named:
            matches = [number for number in matches if min(visible) <= number <= max(visible)]
        hits: list[Hit] = []
        for start in range(0, len(matches), WINDOW):
            window = matches[start : start + WINDOW]
            if not (len(window) == WINDOW and window[0] - window[-1] < COMMON * WINDOW):
                # FTS5 visits from the oldest on: of equals that one comes first.
                window.sort(key=lambda number: (-self._score(number, counts[number], weights), number))
            hits += [visible[number] for number in window if number in visible]
            if len(hits) >= question.limit:
                break
            if named and len(window) == WINDOW and len(visible) <= SHORT:
                hits = [visible[number] for number in matches if number in visible]
                break
        return hits[: question.limit]

    def _weight(self, found: int) -> float:
        weight = math.log((len(self._tokens) - found + 0.5) / (found + 0.5))
        return weight if weight > 0 else _LEAST_WEIGHT

    def _score(self, number: int, counts: list[int], weights: list[float]) -> float:
        length = _K1 * (1 - _B + _B * len(self._tokens[number]) / self._average)
        return sum(
            weight * (count * (_K1 + 1.0) / (count + length)) for count, weight in zip(counts, weights, strict=True)
        )


def _tokens(text: str) -> list[str]:
    """Words without case and diacritics."""
    if not text.isascii():
        decomposed = unicodedata.normalize("NFD", text)
        text = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
    return _TOKEN.findall(text.lower())


def _count(phrase: list[str], said: list[str]) -> int:
    if len(phrase) == 1:
        return said.count(phrase[0])
    size = len(phrase)
    return sum(said[start : start + size] == phrase for start in range(len(said) - size + 1))


def _folded_ascii(text: str) -> str:
    """As LIKE compares: A to Z without case, everything else as it is."""
    return re.sub("[A-Z]+", lambda found: found[0].lower(), text)
