"""Questions about sessions, hosts, and what waits to be delivered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from understudy.persistence._paging import OF_AGENT, page
from understudy.persistence.records import (
    Checkpoint,
    DeadLetterRecord,
    HostRecord,
    OutboxEntry,
    Page,
    SessionRecord,
)
from understudy.persistence.transcripts import NEWEST
from understudy.protocol import RunId, SessionKey, WorkingContext

if TYPE_CHECKING:
    from understudy.persistence._bulk import Value
    from understudy.persistence._reader import Reader

_SESSION = """
    SELECT session_key, agent_id, visibility, parent_session_key, root_session_key, depth, runner,
           workspace_dir, cwd, harness, project, title, holder, created_at, updated_at, completed_at,
           objective, parent_inferred, id
    FROM sessions
"""
_HOST = "SELECT incarnation, pid, process_started, started_at, heartbeat_at, stopped_at FROM hosts"
_LETTER = "SELECT id, session_key, run_id, at, reason, payload, replayed_at, id FROM dead_letters"


class Sessions:
    """Reads sessions and what belongs to them."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def get(self, session_key: str) -> SessionRecord | None:
        """The session of that key."""
        row = self._reader.row(f"{_SESSION} WHERE session_key = ?", (session_key,))
        return None if row is None else session_of(row)

    def find(self, *, agent_id: str | None = None, limit: int = 100, cursor: str | None = None) -> Page[SessionRecord]:
        """Sessions, the newest first."""
        conditions = [] if agent_id is None else ["agent_id = ?"]
        values: list[Value] = [] if agent_id is None else [agent_id]
        return page(self._reader, _SESSION, "id", conditions, values, limit, cursor, session_of)

    def children(self, session_key: str) -> list[SessionRecord]:
        """The sessions below a session, one level down, in order of creation."""
        rows = self._reader.rows(f"{_SESSION} WHERE parent_session_key = ? ORDER BY id", (session_key,))
        return [session_of(row) for row in rows]

    def most_recent(self, *, project: str, harness: str, agent_id: str, other_than: str) -> SessionRecord | None:
        """The harness session with the newest content in a project: the last resort for finding a parent."""
        row = self._reader.row(
            f"{_SESSION} WHERE project = ? AND harness = ? AND agent_id = ? AND session_key <> ?"
            " ORDER BY updated_at DESC, id DESC LIMIT 1",
            (project, harness, agent_id, other_than),
        )
        return None if row is None else session_of(row)

    def working_context(self, session_key: str) -> WorkingContext | None:
        """The session's working context as last committed."""
        row: Any = self._reader.row(
            """
            SELECT recent_files, working_contexts.project_dir, max_files FROM working_contexts
            JOIN sessions ON sessions.id = session_id WHERE session_key = ?
            """,
            (session_key,),
        )
        return None if row is None else WorkingContext(tuple(json.loads(row[0])), row[1], row[2])

    def mark(self, session_key: str) -> tuple[int, int]:
        """The numbers of the session's last turn and of its last checkpoint; 0 where there is none."""
        row: Any = self._reader.row(
            """
            SELECT coalesce((SELECT max(id) FROM turns WHERE session_id = sessions.id), 0),
                   coalesce((SELECT max(id) FROM checkpoints WHERE session_id = sessions.id), 0)
            FROM sessions WHERE session_key = ?
            """,
            (session_key,),
        )
        return (0, 0) if row is None else (row[0], row[1])

    def checkpoint(self, session_key: str, *, until: int = NEWEST) -> Checkpoint | None:
        """The session's last checkpoint; with ``until`` the last that covers no turn after that number."""
        row: Any = self._reader.row(
            """
            SELECT checkpoints.id, at, trigger, digest, entities, constraints, last_turn_id FROM checkpoints
            JOIN sessions ON sessions.id = session_id WHERE session_key = ? AND last_turn_id <= ?
            ORDER BY checkpoints.id DESC LIMIT 1
            """,
            (session_key, until),
        )
        if row is None:
            return None
        number, at, trigger, digest, entities, constraints, last_turn = row
        return Checkpoint(
            number, at, trigger, digest, tuple(json.loads(entities)), tuple(json.loads(constraints)), last_turn
        )


class Hosts:
    """Reads host incarnations."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def get(self, host: str) -> HostRecord | None:
        """The incarnation of that name."""
        row: Any = self._reader.row(f"{_HOST} WHERE incarnation = ?", (host,))
        return None if row is None else HostRecord(*row)

    def running(self) -> list[HostRecord]:
        """Incarnations that have not been stopped; whether they live, pid and heartbeat tell."""
        rows: list[Any] = self._reader.rows(f"{_HOST} WHERE stopped_at IS NULL ORDER BY started_at")
        return [HostRecord(*row) for row in rows]


class Outbox:
    """Reads what is on its way to a parent."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def undelivered(self, session_key: str | None = None, *, dead: bool = False) -> list[OutboxEntry]:
        """Results not merged yet, oldest first; with ``dead`` those set aside as dead letters too."""
        rows: list[Any] = self._reader.rows(
            f"""
            SELECT run_id, outbox.generation, outbox.session_key, created_at, attempts, next_attempt_at,
                   last_error, dead_at
            FROM outbox JOIN runs ON runs.id = outbox.run
            WHERE outbox.delivered_at IS NULL {"" if dead else "AND dead_at IS NULL"}
                  {"" if session_key is None else "AND outbox.session_key = ?"}
            ORDER BY created_at, run
            """,  # noqa: S608 - conditions of our own
            () if session_key is None else (session_key,),
        )
        return [
            OutboxEntry(RunId(run_id), generation, SessionKey(key), *rest) for run_id, generation, key, *rest in rows
        ]

    def backlog(self, session_key: str) -> int:
        """How many results wait for a session, dead letters included."""
        row: Any = self._reader.row(
            "SELECT count(*) FROM outbox WHERE session_key = ? AND delivered_at IS NULL", (session_key,)
        )
        return int(row[0])


class DeadLetters:
    """Reads dead letters."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def get(self, dead_letter_id: int) -> DeadLetterRecord | None:
        """The dead letter of that number."""
        row = self._reader.row(f"{_LETTER} WHERE id = ?", (dead_letter_id,))
        return None if row is None else _letter(row)

    def find(
        self,
        *,
        session_key: str | None = None,
        agent_id: str | None = None,
        replayed: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[DeadLetterRecord]:
        """Dead letters, the newest first; with ``replayed`` those put back on the road too."""
        conditions = [] if replayed else ["replayed_at IS NULL"]
        values: list[Value] = []
        if agent_id is not None:
            conditions.append(OF_AGENT.format("dead_letters.session_key"))
            values.append(agent_id)
        if session_key is not None:
            conditions.append("session_key = ?")
            values.append(session_key)
        return page(self._reader, _LETTER, "id", conditions, values, limit, cursor, _letter)


def session_of(row: Any) -> SessionRecord:
    """A row of ``_SESSION``."""
    key, agent_id, visibility, parent, root, depth, *rest = row
    runner, workspace_dir, cwd, harness, project, title, holder, *rest = rest
    created_at, updated_at, completed_at, objective, inferred, _ = rest
    return SessionRecord(
        session_key=SessionKey(key),
        agent_id=agent_id,
        visibility=visibility,
        parent_session_key=None if parent is None else SessionKey(parent),
        root_session_key=SessionKey(root),
        depth=depth,
        runner=runner,
        workspace_dir=workspace_dir,
        cwd=cwd,
        harness=harness,
        project=project,
        title=title,
        holder=holder,
        created_at=created_at,
        updated_at=updated_at,
        completed_at=completed_at,
        objective=objective,
        parent_inferred=bool(inferred),
    )


def _letter(row: Any) -> DeadLetterRecord:
    key = None if row[1] is None else SessionKey(row[1])
    run = None if row[2] is None else RunId(row[2])
    return DeadLetterRecord(row[0], key, run, *row[3:7])
