"""A store that commits in the loop when the simulation says so, fails when it says so, and survives its hosts."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

from understudy.persistence import MemoryStore, Store, StoreClosedError, StoreError
from understudy.persistence._commit import Pending, settle
from understudy.persistence.operations import AcceptRun, FinishRun, MergeResult
from understudy.persistence.results import Results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from random import Random

    from _seeded import Trace

    from understudy.persistence import Commit, Ledger, RunRecord
    from understudy.persistence._commit import Outcome, Points
    from understudy.persistence.operations import Operation
    from understudy.protocol import RunId
    from understudy.protocol.commit_points import CommitPoint


class DiskError(StoreError):
    """What a failing disk says here."""


@dataclass
class Books:
    """What reached the disk, whichever host wrote it: counted by whoever has no part in it."""

    accepted: set[RunId] = field(default_factory=set)
    ends: dict[RunId, tuple[object, ...]] = field(default_factory=dict)
    delivered: Counter[RunId] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """What must never happen, in words."""


class Disk:
    """What survives: one store for all lives. It is only written through a `Desk`."""

    def __init__(self, kind: Literal["memory", "sqlite"], chance: Random, trace: Trace) -> None:
        self._chance = chance
        self._trace = trace
        self.books = Books()
        self.strikes: Counter[str] = Counter()
        """How often the disk fails, still to come: by commit point, or "all" for whole groups."""
        self.struck = 0
        self.inner: Ledger = (
            MemoryStore(wall_ms=lambda: 0, commit_hook=self._hook)
            if kind == "memory"
            else Store.open(":memory:", wall_ms=lambda: 0, commit_hook=self._hook, inline=True)
        )

    def _hook(self, point: CommitPoint, /) -> None:
        if self.strikes[point]:
            self.strikes[point] -= 1
            self.struck += 1
            self._trace.note(f"  struck {point}")
            raise DiskError(f"struck at {point}")

    def commit(self, group: list[Pending]) -> list[tuple[Pending, Outcome]]:
        """Write a group, as the writer does: together, and each with an outcome of its own."""
        if self.strikes["all"]:
            self.strikes["all"] -= 1
            self.struck += 1
            self._trace.note(f"  struck a group of {len(group)}")
            return [(pending, DiskError("the disk is full")) for pending in group]
        merging = [run_id for pending in group for run_id in _merged(pending.operations)]
        before = {run_id: self._delivered_at(run_id) for run_id in merging}
        commits = [self.inner.transaction(*pending.operations, point=pending.points) for pending in group]
        outcomes: list[tuple[Pending, Outcome]] = []
        for pending, commit in zip(group, commits, strict=True):
            try:
                outcomes.append((pending, commit.result()))
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                outcomes.append((pending, error))
        for pending, outcome in outcomes:
            self._enter(pending.operations, outcome)
        for run_id, earlier in before.items():
            now = self._delivered_at(run_id)
            if earlier is None and now is not None:
                self.books.delivered[run_id] += 1
            elif earlier != now:
                self.books.wrong.append(f"twice: {run_id} was delivered at {earlier}, and again at {now}")
        return outcomes

    def _delivered_at(self, run_id: RunId) -> int | None:
        record = self.inner.runs.get(run_id)
        return None if record is None else record.facts.delivered_at

    def _enter(self, operations: Sequence[Operation], outcome: Outcome) -> None:
        """Keep the books, by what the store has now: a commit that failed after the fact has happened too."""
        for operation in operations:
            if isinstance(operation, AcceptRun):
                if self.inner.runs.get(operation.packet.run_id) is not None:
                    self.books.accepted.add(operation.packet.run_id)
            elif isinstance(operation, FinishRun):
                self._ended(operation)
        failed = isinstance(outcome, BaseException)
        names = " ".join(_named(operation) for operation in operations)
        self._trace.note(f"  {'failed' if failed else 'stored'} {names}")

    def _ended(self, operation: FinishRun) -> None:
        books, run_id = self.books, operation.result.run_id
        record, result = self.inner.runs.get(run_id), self.inner.runs.result(run_id)
        if record is None or record.facts.ended_at is None or result is None:
            if run_id in books.ends:
                books.wrong.append(f"lost: {run_id} had an end, and has none now")
            return
        facts = record.facts
        end = (facts.ended_at, facts.end_reason, facts.failure, facts.partial)
        if books.ends.setdefault(run_id, end) != end:
            books.wrong.append(f"twice: {run_id} ended as {books.ends[run_id]}, and then as {end}")
        if facts.end_reason != "completed":
            unfinished = self.inner.runs.unfinished(root_session_key=record.root_session_key)
            alive = [run.run_id for run in unfinished if run_id in self._above(run)]
            if alive:
                books.wrong.append(f"leaked: {alive} live on below {run_id}, which ended as {facts.end_reason}")

    def _above(self, run: RunRecord) -> Iterator[RunId]:
        """The runs above this one."""
        above: RunRecord | None = run
        while above is not None and above.parent_run_id is not None:
            yield above.parent_run_id
            above = self.inner.runs.get(above.parent_run_id)


class Desk:
    """The store as one host sees it; when the host dies, what was not written is gone."""

    def __init__(self, disk: Disk, wall_ms: Callable[[], int]) -> None:
        self._inner = disk.inner
        self._disk = disk
        self._lock = threading.Lock()
        self._closed = False
        self.queue: list[Pending] = []
        inner = disk.inner
        self.redactor = inner.redactor
        self.runs, self.sessions, self.hosts = inner.runs, inner.sessions, inner.hosts
        self.outbox, self.dead_letters = inner.outbox, inner.dead_letters
        self.transcripts, self.search, self.ingest = inner.transcripts, inner.search, inner.ingest
        # No files: a simulation is about order, and files are written beside the road.
        self.results = Results(cast("Store", self), None, wall_ms)

    @property
    def version(self) -> int:
        return self._inner.version

    def transaction(self, *operations: Operation, point: Points = None) -> Commit:
        """Queue it."""
        if self._closed:
            raise StoreClosedError("the store is closed")
        pending = Pending(operations, point, self._lock, lambda: self.write(len(self.queue)))
        self.queue.append(pending)
        return pending

    def write(self, most: int) -> bool:
        """Commit the oldest few as one group; whether there were any."""
        group, self.queue = self.queue[:most], self.queue[most:]
        if group:
            settle(self._disk.commit(group), self._lock)
        return bool(group)

    def problems(self) -> list[str]:
        return self._inner.problems()

    def lose(self) -> None:
        """The host is dead: nothing it says is heard."""
        self.queue = []
        self._closed = True

    def close(self) -> None:
        """An orderly end: what is queued is committed."""
        self.write(len(self.queue))
        self._closed = True


def _merged(operations: Sequence[Operation]) -> list[RunId]:
    return [
        operation.run_id if isinstance(operation, MergeResult) else operation.result.run_id
        for operation in operations
        if isinstance(operation, MergeResult) or (isinstance(operation, FinishRun) and operation.merge is not None)
    ]


def _named(operation: Operation) -> str:
    """The kind, and which run of its host."""
    name = type(operation).__name__
    if isinstance(operation, FinishRun):
        merge = "+merge" if operation.merge is not None else ""
        return f"{name}({operation.result.run_id}, {operation.result.end_reason}{merge})"
    packet = getattr(operation, "packet", None)
    run_id = getattr(operation, "run_id", None) if packet is None else f"{packet.run_id}, {packet.label}"
    return name if run_id is None else f"{name}({run_id})"
