"""The answers about sessions, hosts and deliveries, from the tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from understudy.persistence._paging import cursor_number, cut
from understudy.persistence.records import Checkpoint, DeadLetterRecord, HostRecord, OutboxEntry, Page, SessionRecord
from understudy.persistence.sessions import DeadLetters, Hosts, Outbox, Sessions, session_of
from understudy.persistence.transcripts import NEWEST
from understudy.protocol import RunId, SessionKey

if TYPE_CHECKING:
    from understudy.persistence.memory._tables import Session, Tables, Values
    from understudy.persistence.redaction import Redactor
    from understudy.protocol import WorkingContext


class MemorySessions(Sessions):
    def __init__(self, tables: Tables, redactor: Redactor) -> None:
        self._tables = tables
        self._redactor = redactor

    def get(self, session_key: str) -> SessionRecord | None:
        with self._tables:
            session = self._tables.sessions.get(session_key)
            return None if session is None else session_of(self._row(session))

    def find(self, *, agent_id: str | None = None, limit: int = 100, cursor: str | None = None) -> Page[SessionRecord]:
        before = cursor_number(limit, cursor)
        found: list[Values] = []
        with self._tables:
            for session in reversed(self._tables.sessions.values()):
                if session.number < before and (agent_id is None or session.opened.agent_id == agent_id):
                    found.append(self._row(session))
                    if len(found) > limit:
                        break
        return cut(found, limit, session_of)

    def children(self, session_key: str) -> list[SessionRecord]:
        with self._tables:
            return [
                session_of(self._row(session))
                for session in self._tables.sessions.values()
                if session.opened.parent_session_key == session_key
            ]

    def most_recent(self, *, project: str, harness: str, agent_id: str, other_than: str) -> SessionRecord | None:
        with self._tables:
            fitting = [
                session
                for session in self._tables.sessions.values()
                if session.opened.project == project
                and session.opened.harness == harness
                and session.opened.agent_id == agent_id
                and session.opened.session_key != other_than
            ]
            newest = max(fitting, key=lambda session: (session.updated_at, session.number), default=None)
            return None if newest is None else session_of(self._row(newest))

    def working_context(self, session_key: str) -> WorkingContext | None:
        with self._tables:
            session = self._tables.sessions.get(session_key)
            return None if session is None else session.context

    def mark(self, session_key: str) -> tuple[int, int]:
        tables = self._tables
        with tables.turn:  # and not `with tables`, which costs more: this is asked for every spawn
            if tables.closed:
                tables.refuse_if_closed()
            session = tables.sessions.get(session_key)
            if session is None:
                return 0, 0
            checkpoints = session.checkpoints
            return session.turns[-1][0] if session.turns else 0, checkpoints[-1].id if checkpoints else 0

    def checkpoint(self, session_key: str, *, until: int = NEWEST) -> Checkpoint | None:
        text = self._redactor.text
        with self._tables:
            session = self._tables.sessions.get(session_key)
            kept = () if session is None else session.checkpoints
        last = next((one for one in reversed(kept) if one.last_turn_id <= until), None)
        if last is None:
            return None
        return replace(
            last,
            digest=text(last.digest),
            entities=tuple(text(entity) for entity in last.entities),
            constraints=tuple(text(constraint) for constraint in last.constraints),
        )

    def _row(self, session: Session) -> Values:
        """The columns that a query for records selects."""
        new = session.opened
        return (
            *(new.session_key, new.agent_id, new.visibility, new.parent_session_key),
            *(new.root_session_key or new.session_key, new.depth, new.runner, new.workspace_dir, new.cwd, new.harness),
            *(new.project, new.title and self._redactor.text(new.title), session.holder, new.at),
            *(session.updated_at, session.completed_at),
            *(session.objective and self._redactor.text(session.objective), session.parent_inferred, session.number),
        )


class MemoryHosts(Hosts):
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def get(self, host: str) -> HostRecord | None:
        with self._tables:
            return self._tables.hosts.get(host)

    def running(self) -> list[HostRecord]:
        with self._tables:
            alive = [host for host in self._tables.hosts.values() if host.stopped_at is None]
        return sorted(alive, key=lambda host: (host.started_at, host.host))


class MemoryOutbox(Outbox):
    def __init__(self, tables: Tables, redactor: Redactor) -> None:
        self._tables = tables
        self._redactor = redactor

    def undelivered(self, session_key: str | None = None, *, dead: bool = False) -> list[OutboxEntry]:
        with self._tables:
            keys = list(self._tables.undelivered) if session_key is None else [session_key]
            waiting = [
                (run.ended_at or 0, run.number, run_id, key, run)
                for key in keys
                for run_id, run in self._tables.undelivered.get(key, {}).items()
                if dead or run.dead_at is None
            ]
            waiting.sort(key=lambda entry: entry[:2])
            return [
                OutboxEntry(
                    run_id=RunId(run_id),
                    generation=run.generation,
                    session_key=SessionKey(key),
                    created_at=created_at,
                    attempts=run.attempts,
                    next_attempt_at=run.next_attempt_at,
                    last_error=run.last_error and self._redactor.text(run.last_error),
                    dead_at=run.dead_at,
                )
                for created_at, _, run_id, key, run in waiting
            ]

    def backlog(self, session_key: str) -> int:
        with self._tables:
            return len(self._tables.undelivered.get(session_key, ()))


class MemoryDeadLetters(DeadLetters):
    def __init__(self, tables: Tables, redactor: Redactor) -> None:
        self._tables = tables
        self._redactor = redactor

    def get(self, dead_letter_id: int) -> DeadLetterRecord | None:
        with self._tables:
            letter = self._tables.dead_letters.get(dead_letter_id)
            return None if letter is None else self._discreet(letter)

    def find(
        self,
        *,
        session_key: str | None = None,
        agent_id: str | None = None,
        replayed: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[DeadLetterRecord]:
        before = cursor_number(limit, cursor)
        with self._tables:
            found = [
                (letter, letter.id)
                for letter in reversed(self._tables.dead_letters.values())
                if letter.id < before
                and (replayed or letter.replayed_at is None)
                and (session_key is None or letter.session_key == session_key)
                and (agent_id is None or self._tables.agent_of(letter.session_key) == agent_id)
            ]
        return cut(found[: limit + 1], limit, lambda row: self._discreet(row[0]))

    def _discreet(self, letter: DeadLetterRecord) -> DeadLetterRecord:
        text = self._redactor.text
        return replace(letter, reason=text(letter.reason), payload=text(letter.payload))
