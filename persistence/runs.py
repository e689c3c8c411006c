"""Questions about runs: what a host asks after a restart, what a parent asks about its children."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from understudy.persistence._paging import OF_AGENT, page
from understudy.persistence.records import LateEnding, Page, RunRecord
from understudy.protocol import EndReason, Event, Failure, RunFacts, RunId, SessionKey, SubAgentResult, Usage

if TYPE_CHECKING:
    from understudy.persistence._bulk import Value
    from understudy.persistence._reader import Reader
    from understudy.protocol.run_facts import RunStatus

_SELECT = """
    SELECT run_id, accepted_at, generation, started_at, deadline_at, last_progress_at, cancel_requested_at,
           ended_at, end_reason, failure, partial, delivered_at, swept_at,
           session_key, parent_session_key, parent_run_id, root_session_key, depth, runner, label, spec_id,
           idempotency_key, digest, packet, announce, is_follow_up, host, queued_at, cancel_reason, restarted_at,
           input_tokens, output_tokens, cost_usd, steps, id
    FROM runs
"""

_STATUS = {
    "pending": "ended_at IS NULL AND started_at IS NULL",
    "running": "ended_at IS NULL AND started_at IS NOT NULL",
    "completed": "end_reason = 'completed'",
    "failed": "ended_at IS NOT NULL AND end_reason <> 'completed'",
}


class Runs:
    """Reads runs. A row whose facts cannot have happened raises IllegalFactsError: it is not believed."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def get(self, run_id: str) -> RunRecord | None:
        """The run of that name."""
        row = self._reader.row(f"{_SELECT} WHERE run_id = ?", (run_id,))
        return None if row is None else record_of(row)

    def by_idempotency_key(self, session_key: str, key: str) -> RunRecord | None:
        """The run that ``session_key`` accepted under this key; compare its ``digest``."""
        row = self._reader.row(f"{_SELECT} WHERE parent_session_key = ? AND idempotency_key = ?", (session_key, key))
        return None if row is None else record_of(row)

    def find(
        self,
        *,
        runner: str | None = None,
        status: RunStatus | None = None,
        since: int | None = None,
        spec_id: str | None = None,
        session_key: str | None = None,
        parent_session_key: str | None = None,
        parent_run_id: str | None = None,
        root_session_key: str | None = None,
        agent_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[RunRecord]:
        """Runs by any of these, the newest first; ``since`` is the earliest time of acceptance."""
        conditions: list[str] = []
        values: list[Value] = []
        for column, value in (
            ("runner", runner),
            ("spec_id", spec_id),
            ("session_key", session_key),
            ("parent_session_key", parent_session_key),
            ("parent_run_id", parent_run_id),
            ("root_session_key", root_session_key),
        ):
            if value is not None:
                conditions.append(f"{column} = ?")
                values.append(value)
        if agent_id is not None:
            conditions.append(OF_AGENT.format("runs.parent_session_key"))
            values.append(agent_id)
        if status is not None:
            conditions.append(_STATUS[status])
        if since is not None:
            conditions.append("accepted_at >= ?")
            values.append(since)
        return page(self._reader, _SELECT, "id", conditions, values, limit, cursor, record_of)

    def children(self, session_key: str, *, unfinished: bool = False) -> list[RunRecord]:
        """The runs a session has spawned, in order of acceptance."""
        open_only = "AND ended_at IS NULL" if unfinished else ""
        return self._list(f"WHERE parent_session_key = ? {open_only} ORDER BY id", (session_key,))

    def unfinished(self, *, host: str | None = None, root_session_key: str | None = None) -> list[RunRecord]:
        """Runs without an end, of one host incarnation, of one tree, or of all, in order of acceptance."""
        asked = {"host": host, "root_session_key": root_session_key}
        chosen = {column: value for column, value in asked.items() if value is not None}
        conditions = " AND ".join(["ended_at IS NULL", *(f"{column} = ?" for column in chosen)])
        return self._list(f"WHERE {conditions} ORDER BY id", tuple(chosen.values()))

    def abandoned(self, *, stale_before: int) -> list[RunRecord]:
        """Runs without an end whose host has stopped, is unknown, or has not been heard of since that time."""
        return self._list(
            """
            WHERE ended_at IS NULL AND host NOT IN (
                SELECT incarnation FROM hosts WHERE stopped_at IS NULL AND heartbeat_at >= ?)
            ORDER BY id
            """,
            (stale_before,),
        )

    def queued(self, session_key: str | None = None) -> list[RunRecord]:
        """Runs that still wait for a slot, first in first."""
        waiting = "ended_at IS NULL AND started_at IS NULL AND queued_at IS NOT NULL"
        if session_key is None:
            return self._list(f"WHERE {waiting} ORDER BY id")
        return self._list(f"WHERE {waiting} AND parent_session_key = ? ORDER BY id", (session_key,))

    def result(self, run_id: str) -> SubAgentResult | None:
        """The run's one result, as it was committed with its end."""
        row = self._reader.row(
            "SELECT result FROM results JOIN runs ON runs.id = results.run WHERE run_id = ?", (run_id,)
        )
        return None if row is None else SubAgentResult.model_validate_json(str(row[0]))

    def full_output(self, run_id: str) -> str | None:
        """Everything the run said in the end; the result's ``output`` may be a condensation of it."""
        row = self._reader.row(
            """
            SELECT coalesce(full_output, json_extract(result, '$.output'), '')
            FROM results JOIN runs ON runs.id = results.run WHERE run_id = ?
            """,
            (run_id,),
        )
        return None if row is None else str(row[0])

    def late_endings(self, run_id: str) -> list[LateEnding]:
        """The ends that came too late."""
        rows: list[Any] = self._reader.rows(
            """
            SELECT late_endings.generation, at, late_endings.end_reason
            FROM late_endings JOIN runs ON runs.id = late_endings.run WHERE run_id = ? ORDER BY late_endings.id
            """,
            (run_id,),
        )
        return [LateEnding(generation, at, EndReason(reason)) for generation, at, reason in rows]

    def usage(self, root_session_key: str) -> Usage:
        """What a whole tree has used."""
        return self._usage("FROM runs WHERE root_session_key = ?", (root_session_key,))

    def usage_below(self, session_key: str) -> Usage:
        """What the runs spawned by a session, and everything below them, have used."""
        return self._usage(
            """
            FROM runs WHERE id IN (
                WITH RECURSIVE below (id, session_key) AS (
                    SELECT id, session_key FROM runs WHERE parent_session_key = ?
                    UNION SELECT runs.id, runs.session_key FROM runs
                    JOIN below ON runs.parent_session_key = below.session_key)
                SELECT id FROM below)
            """,
            (session_key,),
        )

    def events(self, run_id: str) -> list[Event]:
        """The recorded history of a run."""
        rows: list[Any] = self._reader.rows(
            """
            SELECT name, at, session_key, run_id, parent_run_id, depth, data
            FROM events WHERE run_id = ? ORDER BY id
            """,
            (run_id,),
        )
        return [event_of(row) for row in rows]

    def unexported(self, *, after: RunId | None = None, limit: int | None = None) -> list[RunId]:
        """Delivered runs whose result has no file yet, in order of acceptance: at most ``limit``, from ``after`` on."""
        rows: list[Any] = self._reader.rows(
            """
            SELECT run_id FROM results JOIN runs ON runs.id = results.run
            WHERE exported_at IS NULL AND delivered_at IS NOT NULL AND swept_at IS NULL
              AND results.run > coalesce((SELECT id FROM runs WHERE run_id = ?), 0)
            ORDER BY results.run LIMIT ?
            """,
            (after, -1 if limit is None else limit),
        )
        return [RunId(row[0]) for row in rows]

    def sweepable(self, *, ended_before: int) -> list[RunId]:
        """Delivered runs that ended before that time and were not swept yet, in order of acceptance."""
        rows: list[Any] = self._reader.rows(
            """
            SELECT run_id FROM runs
            WHERE ended_at < ? AND delivered_at IS NOT NULL AND swept_at IS NULL ORDER BY id
            """,
            (ended_before,),
        )
        return [RunId(row[0]) for row in rows]

    def _list(self, where: str, values: tuple[Value, ...] = ()) -> list[RunRecord]:
        return [record_of(row) for row in self._reader.rows(f"{_SELECT} {where}", values)]

    def _usage(self, source: str, values: tuple[Value, ...]) -> Usage:
        row: Any = self._reader.row(f"SELECT sum(input_tokens), sum(output_tokens), sum(cost_usd) {source}", values)
        return Usage(input_tokens=row[0] or 0, output_tokens=row[1] or 0, cost_usd=row[2] or 0.0)


def event_of(row: Any) -> Event:
    """A row of the events."""
    name, at, key, run, parent, depth, data = row
    return Event(name, at, SessionKey(key), RunId(run), parent and RunId(parent), depth, json.loads(data))


def record_of(row: Any) -> RunRecord:
    """A row of ``_SELECT``; the first thirteen columns are the facts."""
    run_id, accepted, generation, started, deadline, progress, cancelled, ended, reason, *rest = row
    failure, partial, delivered, swept, session, parent, parent_run, root, *rest = rest
    depth, runner, label, spec, key, digest, packet, announce, follow_up, *rest = rest
    host, queued, cancel_reason, restarted, tokens_in, tokens_out, cost, steps, _ = rest
    return RunRecord(
        facts=RunFacts(
            run_id=RunId(run_id),
            accepted_at=accepted,
            generation=generation,
            started_at=started,
            deadline_at=deadline,
            last_progress_at=progress,
            cancel_requested_at=cancelled,
            ended_at=ended,
            end_reason=None if reason is None else EndReason(reason),
            failure=None if failure is None else Failure.model_validate_json(failure),
            partial=bool(partial),
            delivered_at=delivered,
            swept_at=swept,
        ),
        session_key=SessionKey(session),
        parent_session_key=SessionKey(parent),
        parent_run_id=None if parent_run is None else RunId(parent_run),
        root_session_key=SessionKey(root),
        depth=depth,
        runner=runner,
        label=label,
        spec_id=spec,
        idempotency_key=key,
        digest=digest,
        packet_json=packet,
        announce=bool(announce),
        is_follow_up=bool(follow_up),
        host=host,
        queued_at=queued,
        cancel_reason=cancel_reason,
        restarted_at=restarted,
        usage=Usage(input_tokens=tokens_in, output_tokens=tokens_out, cost_usd=cost),
        steps=steps,
    )
