"""The answers about turns, from the tables."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from understudy.persistence._round import calls_document
from understudy.persistence.transcripts import NEWEST, Transcripts, tail_of, turn_of
from understudy.protocol.model import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from understudy.persistence.memory._tables import Tables, TurnRow
    from understudy.persistence.records import Compaction, StoredTurn
    from understudy.persistence.redaction import Redactor


class MemoryTranscripts(Transcripts):
    def __init__(self, tables: Tables, redactor: Redactor) -> None:
        self._tables = tables
        self._redactor = redactor

    def turns(self, session_key: str, *, after: int = 0, limit: int = -1) -> list[StoredTurn]:
        with self._tables:
            rows = [row for row in self._rows(session_key) if row[0] > after]
            return [turn_of(self._discreet(row)) for row in (rows if limit < 0 else rows[:limit])]

    def latest(self, session_key: str, limit: int, *, before: int = NEWEST) -> list[StoredTurn]:
        with self._tables:
            rows = islice((row for row in reversed(self._rows(session_key)) if row[0] < before), limit)
            return [turn_of(self._discreet(row)) for row in rows][::-1]

    def tail(self, session_key: str, chars: int, *, after: int = 0, until: int = NEWEST) -> str:
        with self._tables:
            return tail_of(self._from_the_end(session_key, after, until), chars, self._redactor)

    def compaction(self, session_key: str) -> Compaction | None:
        with self._tables:
            session = self._tables.sessions.get(session_key)
            last = None if session is None else session.compaction
        return None if last is None else replace(last, summary=self._redactor.text(last.summary))

    def taken_in(self, path: str) -> tuple[int, str] | None:
        with self._tables:
            return self._tables.ingests.get(path)

    def _from_the_end(self, session_key: str, after: int, until: int) -> Iterator[tuple[str, str]]:
        for number, _, _, role, text, _, _ in reversed(self._rows(session_key)):
            if number <= after:
                return
            if number <= until:
                yield role, text

    def _rows(self, session_key: str) -> list[TurnRow]:
        session = self._tables.sessions.get(session_key)
        return [] if session is None else session.turns

    def _discreet(self, row: TurnRow) -> TurnRow:
        number, at, run_id, role, said, calls, answered = row
        text = self._redactor.text
        if calls is not None:
            calls = calls_document([ToolCall(*call) for call in json.loads(calls)], self._redactor)
        return number, at, run_id, role, text(said), calls, answered and text(answered)
