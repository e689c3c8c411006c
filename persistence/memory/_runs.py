"""The answers about runs, from the tables; rows become records exactly as those of a database do."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from understudy.persistence._paging import cursor_number, cut
from understudy.persistence._storable import plain_document
from understudy.persistence.memory._tables import unpack, unpack_packet
from understudy.persistence.records import LateEnding, Page, RunRecord
from understudy.persistence.runs import Runs, event_of, record_of
from understudy.protocol import Event, RunId, SubAgentResult, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from understudy.persistence.memory._tables import Run, Tables, Values
    from understudy.persistence.redaction import Redactor
    from understudy.protocol.run_facts import RunStatus


class MemoryRuns(Runs):
    def __init__(self, tables: Tables, redactor: Redactor) -> None:
        self._tables = tables
        self._redactor = redactor

    def get(self, run_id: str) -> RunRecord | None:
        with self._tables:
            run = self._tables.runs.get(run_id)
            return None if run is None else self._record(run)

    def by_idempotency_key(self, session_key: str, key: str) -> RunRecord | None:
        with self._tables:
            run_id = self._tables.idempotency.get((session_key, key))
            return None if run_id is None else self._record(self._tables.runs[run_id])

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
        before = cursor_number(limit, cursor)
        given = {
            "runner": runner,
            "spec_id": spec_id,
            "session_key": session_key,
            "parent_session_key": parent_session_key,
            "parent_run_id": parent_run_id,
            "root_session_key": root_session_key,
        }
        wanted = {name: value for name, value in given.items() if value is not None}
        found: list[Values] = []
        with self._tables:
            mine = {} if parent_session_key is None else self._tables.children.get(parent_session_key, {})
            among = self._tables.runs if parent_session_key is None else mine
            for run in reversed(among.values()):
                if (
                    run.number < before
                    and all(run.value(name) == value for name, value in wanted.items())
                    and (status is None or _status(run) == status)
                    and (since is None or run.accepted_at >= since)
                    and (agent_id is None or self._tables.agent_of(run.parent_session_key) == agent_id)
                ):
                    found.append(self._row(run))
                    if len(found) > limit:
                        break
        return cut(found, limit, record_of)

    def children(self, session_key: str, *, unfinished: bool = False) -> list[RunRecord]:
        with self._tables:
            if unfinished:
                mine = (run for run in self._tables.open_runs.values() if run.parent_session_key == session_key)
                return self._records(mine)
            return self._records(self._tables.children.get(session_key, {}).values())

    def unfinished(self, *, host: str | None = None, root_session_key: str | None = None) -> list[RunRecord]:
        with self._tables:
            return self._records(
                run
                for run in self._tables.open_runs.values()
                if (host is None or run.host == host)
                and (root_session_key is None or run.value("root_session_key") == root_session_key)
            )

    def abandoned(self, *, stale_before: int) -> list[RunRecord]:
        with self._tables:
            alive = {
                host.host
                for host in self._tables.hosts.values()
                if host.stopped_at is None and host.heartbeat_at >= stale_before
            }
            return self._records(run for run in self._tables.open_runs.values() if run.host not in alive)

    def queued(self, session_key: str | None = None) -> list[RunRecord]:
        with self._tables:
            return self._records(
                run
                for run in self._tables.open_runs.values()
                if run.started_at is None
                and run.queued_at is not None
                and (session_key is None or run.parent_session_key == session_key)
            )

    def result(self, run_id: str) -> SubAgentResult | None:
        with self._tables:
            run = self._tables.runs.get(run_id)
            if run is None or run.result is None:
                return None
            document, _ = self._redactor.document(unpack(SubAgentResult, run.result))
            return SubAgentResult.model_validate_json(document)

    def full_output(self, run_id: str) -> str | None:
        with self._tables:
            run = self._tables.runs.get(run_id)
            if run is not None and run.full_output is not None:
                return self._redactor.text(run.full_output)
            result = self.result(run_id)
            return None if result is None else result.output

    def late_endings(self, run_id: str) -> list[LateEnding]:
        with self._tables:
            run = self._tables.runs.get(run_id)
            return [] if run is None else [LateEnding(*ending) for ending in run.late]

    def usage(self, root_session_key: str) -> Usage:
        with self._tables:
            return _sum(run for run in self._tables.runs.values() if run.value("root_session_key") == root_session_key)

    def usage_below(self, session_key: str) -> Usage:
        with self._tables:
            return _sum(self._below(session_key))

    def _below(self, session_key: str) -> Iterator[Run]:
        seen, waiting = {session_key}, [session_key]
        while waiting:
            for run in self._tables.children.get(waiting.pop(), {}).values():
                yield run
                if run.session_key not in seen:  # a follow-up runs in the session of the run before it
                    seen.add(run.session_key)
                    waiting.append(run.session_key)

    def events(self, run_id: str) -> list[Event]:
        with self._tables:
            return [
                event_of((*row, self._redactor.json(plain_document(data))))
                for *row, data in self._tables.events.get(run_id, ())
            ]

    def unexported(self, *, after: RunId | None = None, limit: int | None = None) -> list[RunId]:
        with self._tables:
            runs = self._tables.runs
            first = runs[after].number if after in runs else 0
            waiting = (
                RunId(run_id)
                for run_id, run in runs.items()
                if run.number > first
                and run.delivered_at is not None
                and run.exported_at is None
                and run.swept_at is None
            )
            return list(islice(waiting, limit))

    def sweepable(self, *, ended_before: int) -> list[RunId]:
        with self._tables:
            return [
                RunId(run_id)
                for run_id, run in self._tables.runs.items()
                if run.ended_at is not None
                and run.ended_at < ended_before
                and run.delivered_at is not None
                and run.swept_at is None
            ]

    def _records(self, runs: Iterable[Run]) -> list[RunRecord]:
        return [self._record(run) for run in runs]

    def _record(self, run: Run) -> RunRecord:
        return record_of(self._row(run))

    def _row(self, run: Run) -> Values:
        """The columns that a query for records selects."""
        redactor = self._redactor
        packet = unpack_packet(run.packet)
        end = None if run.result is None else unpack(SubAgentResult, run.result)
        failure = None if end is None or end.failure is None else redactor.document(end.failure)[0]
        return (
            *(packet.run_id, run.accepted_at, run.generation, run.started_at, run.deadline_at, run.last_progress_at),
            *(run.cancel_requested_at, run.ended_at, end and end.end_reason, failure, end is not None and end.partial),
            *(run.delivered_at, run.swept_at, packet.session_key, packet.parent_session_key, packet.parent_run_id),
            *(
                packet.root_session_key,
                packet.depth,
                packet.runner,
                redactor.text(packet.label),
                packet.spec_id,
                run.idempotency_key,
            ),
            *(run.digest, redactor.document(packet)[0], run.announce, run.is_follow_up, run.host, run.queued_at),
            *(run.cancel_reason and redactor.text(run.cancel_reason), run.restarted_at, run.usage.input_tokens),
            *(run.usage.output_tokens, run.usage.cost_usd, run.steps, run.number),
        )


def _status(run: Run) -> RunStatus:
    if run.result is not None:
        return "completed" if unpack(SubAgentResult, run.result).end_reason == "completed" else "failed"
    return "pending" if run.started_at is None else "running"


def _sum(runs: Iterable[Run]) -> Usage:
    tokens_in, tokens_out, cost = 0, 0, 0.0
    for run in runs:
        tokens_in += run.usage.input_tokens
        tokens_out += run.usage.output_tokens
        cost += run.usage.cost_usd
    return Usage(input_tokens=tokens_in, output_tokens=tokens_out, cost_usd=cost)
