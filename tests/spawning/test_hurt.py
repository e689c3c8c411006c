"""Where users were hurt: each of these happened to somebody, elsewhere. None of it can happen here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from _stage import MAIN, a_host, answer, delegate, died, hang, later, notes, running

from understudy.actors.testing import CrashPoint
from understudy.protocol import EndReason, Failure, Spawn, SpawnRejected
from understudy.protocol.model import TextDelta, Turn
from understudy.protocol.runner import Final, Said

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from understudy.actors import Runtime
    from understudy.actors.runners import AsyncFunctionContext, FunctionContext, RunContext
    from understudy.actors.testing import ManualClock
    from understudy.protocol import SpawnPacket, SubAgentResult
    from understudy.protocol.commit_points import CommitPoint
    from understudy.protocol.runner import RunnerEvent

# docs/promises.md has the whole list. What is not here stands where it belongs: processes in tests/processes and
# tests/cli, compaction in tests/turns, long and forged results in tests/results.


@pytest.mark.parametrize("point", ["terminal.after", "merge.before", "merge.after"])
def test_results_silently_lost_on_restart(point: CommitPoint, manual_clock: ManualClock, tmp_path: Path) -> None:
    """Whenever the host dies after the end of a run, the next start has its result in the parent, once."""
    strike = CrashPoint(point, "delay")
    with a_host(manual_clock, commit_hook=strike) as runtime:
        # Long enough to be shortened, so that the end is committed by itself, and the merge after it.
        runtime.session(MAIN).spawn(Spawn(task="x " * 10_000, label="x"))
        assert strike.reached.wait(30)
        crashed = died(runtime, tmp_path)
        strike.release()
    with a_host(later(), store=crashed) as runtime:
        assert notes(runtime.session(MAIN).transcript()) == ["[Subagent Result: x]"]
        (record,) = runtime.runs().items
        assert (record.facts.end_reason, record.facts.delivered_at is not None) == (EndReason.COMPLETED, True)


def test_the_same_announcement_100_times(manual_clock: ManualClock, tmp_path: Path) -> None:
    """Through a day of sweeps, restarts and replays the parent is told once."""
    calls: list[int] = []

    def on_results(results: tuple[SubAgentResult, ...]) -> None:
        calls.append(len(results))

    config = {"ghost_sweep_interval_ms": 600_000}
    with a_host(manual_clock, config=config, store=tmp_path / "s.db") as runtime:
        session = runtime.session(MAIN, on_results=on_results)
        result = session.spawn(Spawn(task="x", announce=True)).result(timeout=30)
        manual_clock.advance(86_400)
        session.ref.tell(result)
        manual_clock.advance(60)
    for _ in range(3):
        with a_host(manual_clock, config=config, store=tmp_path / "s.db") as runtime:
            session = runtime.session(MAIN, on_results=on_results)
            manual_clock.advance(60)
            assert notes(session.transcript()) == ["[Subagent Result: x]"]
    assert calls == [1]


def test_delivered_then_failed_bookkeeping_so_delivered_thrice(manual_clock: ManualClock) -> None:
    """Delivery and its books are one commit: what is heard of that commit cannot make it happen again."""

    def fail_after_every_merge(point: CommitPoint, /) -> None:
        if point == "merge.after":
            raise OSError("the books could not be written")

    with a_host(manual_clock, commit_hook=fail_after_every_merge) as runtime:
        session = runtime.session(MAIN)
        for task in ("one", "two"):
            session.spawn(Spawn(task=task)).result(timeout=30)
        manual_clock.advance(3_600)
        assert notes(session.transcript()) == ["[Subagent Result: one]", "[Subagent Result: two]"]
        assert runtime.dead_letters() == []


@pytest.mark.parametrize("kind", ["async", "sync", "deaf"])
def test_timeout_accepted_and_never_enforced(kind: str, manual_clock: ManualClock) -> None:
    """At the millisecond it was given, also where the child blocks a thread or will not be cancelled."""
    gate = manual_clock.gate()

    def block(packet: SpawnPacket, context: FunctionContext) -> str:
        gate.wait()
        return "late"

    async def deaf(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        while True:
            try:
                await gate
            except asyncio.CancelledError:
                continue
            return "late"

    children: dict[str, Callable[..., object]] = {"async": hang, "sync": block, "deaf": deaf}
    with a_host(manual_clock, children[kind]) as runtime:
        session = runtime.session(MAIN)
        handle = session.spawn(Spawn(task="x", timeout_ms=7_500))
        manual_clock.advance(7.499)
        assert handle.status == "running"
        manual_clock.advance(0.001)
        result = handle.result(timeout=30)
        assert (result.end_reason, result.runtime_ms) == (EndReason.WATCHDOG_TIMEOUT, 7_500)
        assert running(runtime) == 0
        gate.open()
        manual_clock.run_until_idle()
        assert runtime.store.runs.result(handle.run_id) == result
        assert len(notes(session.transcript())) == 1


@pytest.mark.parametrize("late", ["kill", "timeout", "close", "sweep"])
def test_good_work_reported_as_cancelled(late: str, manual_clock: ManualClock) -> None:
    """The answer was given before somebody lost patience: it stands, although it was not committed yet."""
    strike = CrashPoint("terminal.before", "delay")
    with a_host(manual_clock, commit_hook=strike) as runtime:
        session = runtime.session(MAIN)
        handle = session.spawn(Spawn(task="x", timeout_ms=1_000))
        assert strike.reached.wait(30)
        acts: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "kill": lambda: session._kill(handle.run_id, "too slow"),
            "close": session._close,
            "sweep": lambda: _sweep(runtime),
        }
        # Not waited for: none of these returns before the end is committed, which is held up.
        asked = [asyncio.run_coroutine_threadsafe(acts[late](), runtime._kernel.asyncio_loop)] if late in acts else []
        strike.release()
        for future in asked:
            future.result(30)
        manual_clock.advance(60)
        result = handle.result(timeout=30)
        assert (result.status, result.output) == ("completed", "done: x")


async def _sweep(runtime: Runtime) -> object:
    return await runtime._sweep.ask("sweep", block=False)


@pytest.mark.parametrize("reopened", [False, True])
def test_no_end_time_read_as_running_for_ever(reopened: bool, manual_clock: ManualClock, tmp_path: Path) -> None:
    """After a crash every run that had no end has one, nested and queued ones and those of reopened sessions too."""
    config = {"max_children_per_agent": 1, "max_queued_per_agent": 1, "queue_timeout_ms": 1_000}
    with a_host(manual_clock, delegate, config=config, runners={"grandchild": hang}) as runtime:
        session = runtime.session(MAIN)
        if reopened:
            session.close()
            session = runtime.session(MAIN)
        session.spawn(Spawn(task="nested"))
        session.spawn(Spawn(task="queued"))
        manual_clock.run_until_idle()
        crashed = died(runtime, tmp_path)
    clock = later()
    with a_host(clock, answer, config=config, store=crashed) as runtime:
        clock.advance(120)
        records = runtime.runs().items
        assert len(records) == 3
        assert [record.facts.status for record in records if record.facts.ended_at is None] == []
        nested = [record for record in records if record.label == "nested"]
        assert {record.facts.failure.kind for record in nested if record.facts.failure} == {"host_lost"}
        session = runtime.session(MAIN)
        assert len(notes(session.transcript())) == 3
        assert session.children() == []
        assert running(runtime) == 0


@pytest.mark.parametrize("said", ["", "  \n", "\u00a0\t"])
def test_completed_with_empty_output(said: str, manual_clock: ManualClock) -> None:
    """Nothing is no answer."""

    async def say(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        return said

    with a_host(manual_clock, say) as runtime:
        result = runtime.session(MAIN).spawn(Spawn(task="x")).result(timeout=30)
        assert (result.status, result.partial) == ("failed", False)
        assert result.failure is not None
        assert result.failure.kind == "empty_output"


def test_completed_with_half_a_sentence(manual_clock: ManualClock) -> None:
    """A stream without a final answer, a crash, a step limit: partial, with the text kept and not praised."""

    class Half:
        async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
            if packet.task == "steps":
                for number in range(3):
                    yield Said(Turn("assistant", f"step {number}"))
                return
            if packet.task == "admits":
                yield Final("The loader", Failure(kind="context_full", message="no room left"))
                return
            yield TextDelta("The loader")
            if packet.task == "crash":
                raise RuntimeError("connection reset")

    with a_host(manual_clock, Half()) as runtime:
        session = runtime.session(MAIN)
        ends = {
            task: session.spawn(Spawn(task=task, max_steps=2)).result(timeout=30)
            for task in ("breaks off", "crash", "steps", "admits")
        }
    assert {task: (result.status, result.output) for task, result in ends.items()} == {
        "breaks off": ("partial", "The loader"),
        "crash": ("partial", "The loader"),
        "steps": ("partial", "step 2"),
        "admits": ("partial", "The loader"),
    }
    kinds = [result.failure.kind for result in ends.values() if result.failure]
    assert kinds == ["invalid_output", "runner_crash", "step_limit", "context_full"]


def test_one_request_becomes_280_sub_agents(manual_clock: ManualClock) -> None:
    """However eager each of them is: depth and number bound the tree, and each refusal says so."""
    refusals: list[str] = []

    async def eager(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        for number in range(280):
            try:
                await context.spawn(Spawn(task=f"{number}"))
            except SpawnRejected as refusal:
                refusals.append(refusal.rejection.reason)
        await asyncio.get_running_loop().create_future()
        return "never"

    with a_host(manual_clock, eager, config={"max_total_children": 12}) as runtime:
        runtime.session(MAIN).spawn(Spawn(task="x"))
        manual_clock.run_until_idle()
        assert len(runtime.runs(limit=300).items) == running(runtime) <= 12
        assert set(refusals) == {"depth_exceeded", "children_exceeded"}


@pytest.mark.parametrize("end", ["finish", "crash", "kill", "timeout"])
def test_finished_children_keep_their_slots(end: str, manual_clock: ManualClock) -> None:
    """One child after the other through a single slot."""

    async def crash(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        raise RuntimeError("crashed")

    child = {"finish": answer, "crash": crash}.get(end, hang)
    with a_host(manual_clock, child, config={"max_children_per_agent": 1}) as runtime:
        session = runtime.session(MAIN)
        for _ in range(30 if end in {"finish", "crash"} else 10):
            handle = session.spawn(Spawn(task="x", timeout_ms=1_000))
            if end == "kill":
                session.kill(handle.run_id)
            if end == "timeout":
                manual_clock.advance(1)
            handle.result(timeout=30)
        assert running(runtime) == 0


def test_one_failing_child_discards_its_siblings(manual_clock: ManualClock) -> None:
    """Four of five results are as good as five of five."""

    async def fail_one(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        if packet.task == "2":
            raise RuntimeError("crashed")
        return packet.task

    with a_host(manual_clock, fail_one) as runtime:
        session = runtime.session(MAIN)
        handles = [session.spawn(Spawn(task=f"{number}")) for number in range(5)]
        results = session.wait([handle.run_id for handle in handles])
        assert [results[handle.run_id].status for handle in handles] == [
            "completed",
            "completed",
            "failed",
            "completed",
            "completed",
        ]
        assert len(notes(session.transcript())) == 5


@pytest.mark.parametrize("stop", ["close", "ref.stop", "kill", "parent fails", "runtime"])
def test_stop_of_the_parent_leaves_children_running(stop: str, manual_clock: ManualClock, tmp_path: Path) -> None:
    """When the stop returns, every descendant has its end."""
    gate = manual_clock.gate()

    async def parent(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        for _ in range(2):
            await context.spawn(Spawn(task="y", runner="hang"))
        await gate
        raise RuntimeError("the parent failed")

    store = tmp_path / "s.db"
    with a_host(manual_clock, parent, store=store) as runtime:
        session = runtime.session(MAIN)
        handle = session.spawn(Spawn(task="x"))
        manual_clock.run_until_idle()
        assert running(runtime) == 3
        if stop == "close":
            session.close()
        elif stop == "ref.stop":
            session.ref.stop(timeout=30)
        elif stop == "kill":
            session.kill(handle.run_id)
        elif stop == "parent fails":
            gate.open()
            handle.result(timeout=30)
        if stop != "runtime":
            assert (running(runtime), runtime._backstage.live) == (0, {})
    with a_host(later(), store=store) as runtime:
        records = runtime.runs().items
        ends = {record.label: record.facts.end_reason for record in records}
        assert len(records) == 3
        assert ends == {"x": EndReason.FAILED if stop == "parent fails" else EndReason.KILLED, "y": EndReason.KILLED}
        assert runtime.store.problems() == []
