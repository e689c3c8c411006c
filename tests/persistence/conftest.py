"""A parent session and its runs, in a few words; and ways to strike between them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from understudy.persistence import Store
from understudy.persistence.operations import AcceptRun, FinishRun, MergeResult, OpenSession, StartRun
from understudy.protocol import EndReason, Failure, RunId, SessionKey, SpawnPacket, SubAgentResult, WorkingContext
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from understudy.persistence._commit import Point
    from understudy.persistence.operations import Operation
    from understudy.protocol.commit_points import CommitHook, CommitPoint

PARENT = SessionKey("agent:atlas:main")
HOST = "host-1"


class Given:
    """Runs 1, 2, 3 … of one parent; run N lives through the milliseconds 1000 × N and after.

    A task weighs ``weight`` characters, so that a test can make a commit need room on the disk. An answer weighs
    four times that: it must not fit into the room that rewriting a run's own row has set free.
    """

    parent = PARENT
    host = HOST

    def __init__(self, weight: int = 10) -> None:
        self._weight = weight

    def run_id(self, number: int) -> RunId:
        return RunId(f"run-{number}")

    def child(self, number: int) -> SessionKey:
        return SessionKey(f"agent:atlas:subagent:{number}")

    def packet(self, number: int) -> SpawnPacket:
        return SpawnPacket(
            run_id=self.run_id(number),
            session_key=self.child(number),
            parent_session_key=PARENT,
            root_session_key=PARENT,
            depth=1,
            max_depth=3,
            task=f"task {number} {'x' * self._weight}",
            label=f"label {number}",
            runner="default",
            workspace_dir="/w",
            cwd="/w",
            max_steps=50,
            timeout_ms=600_000,
            artifact_refs=("a.md", "b.md"),
            spec_id="spec-7",
        )

    def result(
        self, number: int, reason: EndReason = EndReason.COMPLETED, *, generation: int = 1, output: str = ""
    ) -> SubAgentResult:
        return SubAgentResult(
            run_id=self.run_id(number),
            generation=generation,
            session_key=self.child(number),
            parent_session_key=PARENT,
            label=f"label {number}",
            end_reason=reason,
            failure=None if reason is EndReason.COMPLETED else Failure(kind="runner_crash", message="it fell over"),
            output=output or f"answer {number} {'x' * 4 * self._weight}",
            steps=3,
        )

    def opened(self) -> OpenSession:
        """The parent session."""
        return OpenSession(PARENT, at=1)

    def accept(
        self, number: int, *, idempotency_key: str | None = None, digest: str | None = None, queued: bool = False
    ) -> tuple[Operation, ...]:
        return (
            OpenSession(self.child(number), at=1000 * number, parent_session_key=PARENT, root_session_key=PARENT),
            AcceptRun(
                self.packet(number), 1000 * number, HOST, queued=queued, idempotency_key=idempotency_key, digest=digest
            ),
        )

    def start(self, number: int) -> StartRun:
        return StartRun(self.run_id(number), 1000 * number + 1, HOST)

    def finish(
        self, number: int, reason: EndReason = EndReason.COMPLETED, *, generation: int = 1, at: int | None = None
    ) -> FinishRun:
        return FinishRun(self.result(number, reason, generation=generation), at or 1000 * number + 2)

    def merge(self, number: int, *, generation: int = 1) -> MergeResult:
        return MergeResult(
            self.run_id(number),
            PARENT,
            1000 * number + 3,
            generation=generation,
            context=WorkingContext((f"/w/{number}.py",)),
            turns=(Turn("user", f"result {number} {'x' * 4 * self._weight}"),),
        )

    def at(self, point: Point, number: int) -> tuple[Operation, ...]:
        """What run ``number`` commits at ``point``."""
        if point == "accept":
            return self.accept(number)
        return (self.finish(number),) if point == "terminal" else (self.merge(number),)

    def until(self, point: Point, number: int) -> tuple[Operation, ...]:
        """Everything run ``number`` has behind it when it comes to ``point``."""
        if point == "accept":
            return ()
        begun = (*self.accept(number), self.start(number))
        return begun if point == "terminal" else (*begun, self.finish(number))

    def written(self, store: Store, point: Point, number: int) -> bool:
        """Whether the commit at ``point`` is there: all of it, or nothing of it; anything else fails here."""
        run = store.runs.get(self.run_id(number))
        if point == "accept":
            traces = [run is not None, store.sessions.get(self.child(number)) is not None]
        elif point == "terminal":
            assert run is not None
            waiting = [entry.run_id for entry in store.outbox.undelivered()]
            sent = self.run_id(number) in waiting or run.facts.delivered_at is not None
            result = store.runs.result(self.run_id(number))
            traces = [run.facts.ended_at is not None, result is not None, sent]
        else:
            assert run is not None
            told = [row.turn.text.split()[1] for row in store.transcripts.turns(PARENT)]
            assert told.count(str(number)) <= 1
            waiting = [entry.run_id for entry in store.outbox.undelivered()]
            traces = [run.facts.delivered_at is not None, str(number) in told, self.run_id(number) not in waiting]
        assert len(set(traces)) == 1, f"half-written at {point}: {traces}"
        return traces[0]


class Doorstop:
    """A commit hook that holds the writer up *after* its first commit, so that what is queued is one group.

    The lock of the file is free meanwhile. Every later point is handed to ``then``.
    """

    def __init__(self) -> None:
        self.then: CommitHook | None = None
        self._held = threading.Event()
        self._let_go = threading.Event()

    def __call__(self, point: CommitPoint, /) -> None:
        if self._let_go.is_set():
            if self.then is not None:
                self.then(point)
        elif point.endswith(".after"):
            self._held.set()
            self._let_go.wait()

    def hold(self, store: Store) -> None:
        """Have the writer stand still; the parent session is open then."""
        store.transaction(OpenSession(PARENT, at=1), point="accept")
        assert self._held.wait(10)

    def release(self) -> None:
        """Let it go on."""
        self._let_go.set()


@pytest.fixture
def given() -> Given:
    """A parent and its runs."""
    return Given()


@pytest.fixture
def heavy() -> Given:
    """The same with tasks of 10 kB, so that each commit needs new room on the disk."""
    return Given(weight=10_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store of this test is."""
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path, given: Given) -> Iterator[Store]:
    """A store with the parent session in it; whatever a test did to it, it is whole in the end."""
    with Store.open(path, wall_ms=lambda: 0) as opened:
        opened.transaction(given.opened()).result(10)
        yield opened
        assert opened.problems() == []


@pytest.fixture
def doorstop() -> Iterator[Doorstop]:
    """A held-up writer is let go, whatever became of the test."""
    stop = Doorstop()
    yield stop
    stop.release()
