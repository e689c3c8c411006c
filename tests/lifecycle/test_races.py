"""Every two ends of a run that can meet: one of them wins, and nobody can tell that there was another."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pytest

from understudy.actors import AsyncRuntime, FunctionRunner, Runtime
from understudy.actors._kernel.actor import LoopActor
from understudy.actors._kernel.loop import actor_of, mailbox_of
from understudy.actors.handles import AsyncRunHandle
from understudy.actors.testing import CrashPoint, ManualClock, ScriptedRunner
from understudy.persistence import Store
from understudy.protocol import RuntimeConfig, Spawn
from understudy.protocol.runner import Final, Touched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from understudy.actors.live_run import LiveRun
    from understudy.actors.runners import AsyncFunctionContext, RunContext
    from understudy.actors.testing import Gate
    from understudy.actors.testing.scripted_runner import RunnerStep
    from understudy.protocol import SpawnPacket, SubAgentResult
    from understudy.protocol.runner import RunnerEvent

KEY = "agent:atlas:main"
When = Literal["at once", "claimed", "held", "delivered"]
Where = Literal["running", "queued", "nested", "followed up", "behind"]


@dataclass
class Scene:
    """One run about to end, and everything that can end it."""

    runtime: AsyncRuntime
    clock: ManualClock
    verdict: list[Final | Exception]
    gate: Gate
    handle: AsyncRunHandle
    run: LiveRun
    blocker: Gate | None = None
    strikes: list[asyncio.Task[None]] = field(default_factory=list)

    def strike(self, name: str) -> None:
        """Begin an end; its first step is taken in the loop's next turn, right behind whatever was struck before."""
        self.strikes.append(asyncio.ensure_future(STRIKES[name](self)))

    async def turn_until(self, happened: Callable[[], bool]) -> None:
        """Turn the loop until something has happened that needs no time to pass."""
        for _ in range(1_000):
            if happened():
                return
            await asyncio.sleep(0)
        raise AssertionError("it did not happen")


async def finish(scene: Scene) -> None:
    scene.verdict.append(Final("all done"))
    scene.gate.open()


async def fail(scene: Scene) -> None:
    scene.verdict.append(ValueError("broken"))
    scene.gate.open()


async def timeout(scene: Scene) -> None:
    watchdog = scene.runtime._backstage.watchdog
    watchdog._add(scene.clock.monotonic(), scene.run, "deadline")
    watchdog.on_receive("due")


async def queue_timeout(scene: Scene) -> None:
    watchdog = scene.runtime._backstage.watchdog
    watchdog._add(scene.clock.monotonic(), scene.run, "queue")
    watchdog.on_receive("due")


async def ghost_sweep(scene: Scene) -> None:
    run = scene.run
    past = run.backstage.now() - run.backstage.config.ghost_grace_ms - 1
    run.packet = run.packet.model_copy(update={"deadline_at": past})  # as if the watchdog had missed it
    actor_of(scene.runtime._sweep)._look_at_the_living()


async def kill(scene: Scene) -> None:
    session = await scene.runtime.session(KEY)
    await session.kill(scene.handle.run_id)


async def parent_stop(scene: Scene) -> None:
    owner = scene.run.session.owner
    session = scene.runtime._backstage.sessions[scene.run.packet.root_session_key]
    if owner is None:
        await session.shut("parent_stopped")
    else:
        above = await scene.runtime.session(KEY)
        await above.kill(owner.packet.run_id)


async def host_stop(scene: Scene) -> None:
    await scene.runtime.close()


async def grant(scene: Scene) -> None:
    assert scene.blocker is not None
    scene.blocker.open()


STRIKES: dict[str, Callable[[Scene], Awaitable[None]]] = {
    function.__name__: function
    for function in (finish, fail, timeout, queue_timeout, ghost_sweep, kill, parent_stop, host_stop, grant)
}
ENDS = {
    "finish": ("completed", None),
    "fail": ("failed", "runner_crash"),
    "timeout": ("watchdog_timeout", "deadline"),
    "queue_timeout": ("failed", "queue_timeout"),
    "ghost_sweep": ("ghost_sweep", "deadline"),
    "kill": ("killed", "killed"),
    "parent_stop": ("killed", "parent_stopped"),
    "host_stop": ("killed", "host_stopped"),
}
"""How a run ends that was struck like this, and by nothing else."""
RUNNING = ["finish", "fail", "timeout", "ghost_sweep", "kill", "parent_stop", "host_stop"]
ITS_OWN = {"finish", "fail"}
"""Ends of the runner's own making: there is one of them, and it takes the runner a few turns."""


class Delegating:
    """Spawns one grandchild, and then has nothing to say."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.spawned: list[LiveRun] = []

    async def run(self, _packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        run = await context.spawn(Spawn(task="below", label="target", runner="target"))
        assert not isinstance(run, str)
        self.spawned.append(run)
        await self.gate
        yield Final("nobody waits for this")


class Kept:
    """Does its first task at once, or when the gate opens; what it is told later is the target's business."""

    def __init__(self, target: ScriptedRunner, gate: Gate | None) -> None:
        self.target = target
        self.gate = gate

    async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        if packet.task != "first":
            async for event in self.target.run(packet, context):
                yield event
            return
        if self.gate is not None:
            await self.gate
        yield Final("the first task is done")


async def begun(
    runtime: AsyncRuntime, clock: ManualClock, where: Where, above: Delegating
) -> tuple[AsyncRunHandle, LiveRun]:
    """The run that is about to end, as far as it gets by itself."""
    session = await runtime.session(KEY)
    if where == "nested":
        await session.spawn(Spawn(task="above", label="owner", runner="above"))
        await clock.run_until_idle_async()
        run = above.spawned[0]
        return runtime.run(run.packet.run_id), run
    if where in {"followed up", "behind"}:
        before = await session.spawn(Spawn(task="first", label="target", runner="kept", cleanup="keep"))
        if where == "followed up":
            await before.result()
        handle = await session.follow_up(before.session_key, "work")
        assert isinstance(handle, AsyncRunHandle)
    else:
        if where == "queued":
            await session.spawn(Spawn(task="in the way", label="blocker", runner="blocking"))
        handle = await session.spawn(Spawn(task="work", label="target", runner="target"))
    run = runtime._backstage.live[handle.run_id]
    await clock.run_until_idle_async()
    return handle, run


async def race(path: Path, first: str, second: str, *, when: When, where: Where = "running") -> tuple[str, str | None]:
    """Let two ends meet; everything that must hold whoever wins is checked here. Gives the one that won."""
    clock = ManualClock()
    gate, never = clock.gate(), clock.gate()
    verdict: list[Final | Exception] = []
    script: list[RunnerStep] = [Touched("a.py"), gate, lambda _packet, _context: verdict[0]]
    target, above, blocking = ScriptedRunner(script), Delegating(never), ScriptedRunner([never, Final("freed")])
    held = CrashPoint("terminal.before", "delay", hit=2 if where == "followed up" else 1) if when == "held" else None
    kept = Kept(target, never if where == "behind" else None)
    runtime = AsyncRuntime(
        path / "agents.db",
        clock=clock,
        runners={"target": target, "above": above, "blocking": blocking, "kept": kept},
        config=RuntimeConfig(max_children_per_agent=1, max_queued_per_agent=1),
        commit_hook=held,
    )
    await runtime.__aenter__()
    await runtime.session(KEY, workspace=path)
    events = runtime.events()
    handle, run = await begun(runtime, clock, where, above)
    blocker = never if where in {"queued", "behind"} else None
    scene = Scene(runtime, clock, verdict, gate, handle, run, blocker=blocker)

    scene.strike(first)
    if when == "claimed":
        await scene.turn_until(lambda: run.ending is not None)
    elif held is not None:
        assert await asyncio.get_running_loop().run_in_executor(None, held.reached.wait, 30)
    elif when == "delivered":
        await handle.result()
    if not (first in ITS_OWN and second in ITS_OWN):
        scene.strike(second)
    if held is not None:
        for _ in range(30):  # as far as it gets without the commit
            await asyncio.sleep(0)
        held.release()
    result = await handle.result()
    await asyncio.gather(*scene.strikes)
    backstage = runtime._backstage
    if "host_stop" not in {first, second}:
        await clock.run_until_idle_async()
        assert backstage.running == len([run for run in backstage.live.values() if not run.queued])
        await runtime.close()
    assert (backstage.live, backstage.running, backstage.sessions) == ({}, 0, {})
    assert await handle.result() == result, "the handle settles once"
    told = Counter(event.name.removeprefix("session:sub_agent_") for event in events if event.run_id == handle.run_id)
    assert (told["completed"], told["lifecycle_ended"], told["delivered"]) == (1, 1, 1)
    check_store(path / "agents.db", result)
    return result.end_reason.value, None if result.failure is None else result.failure.kind


def check_store(database: Path, result: SubAgentResult) -> None:
    """One end, one result, one delivery, one note in one transcript."""
    with Store.open(database, wall_ms=lambda: 0) as store:
        assert store.problems() == []
        assert store.runs.unfinished() == []
        assert store.outbox.undelivered(dead=True) == []
        assert store.runs.result(result.run_id) == result
        record = store.runs.get(result.run_id)
        assert record is not None
        assert (record.facts.end_reason, record.facts.failure) == (result.end_reason, result.failure)
        assert record.facts.delivered_at is not None
        runs = store.runs.find().items
        keys = {KEY, *(run.parent_session_key for run in runs)}
        texts = [stored.turn.text for key in keys for stored in store.transcripts.turns(key)]
        for label, count in Counter(run.label for run in runs).items():
            assert sum(text.startswith(f"[Subagent Result: {label}]") for text in texts) == count
        files = store.sessions.working_context(KEY)
        if record.facts.started_at is not None:
            assert files is not None
            assert [path.rpartition("/")[2] for path in files.recent_files] == ["a.py"]


PAIRS = [pair for pair in itertools.product(RUNNING, repeat=2) if not (pair[0] == pair[1] and pair[0] in ITS_OWN)]
NAMES = ["-".join(pair) for pair in PAIRS]


@pytest.fixture(autouse=True)
def nothing_goes_wrong_unseen(caplog: pytest.LogCaptureFixture) -> object:
    """A second settling of a handle, a task that failed: all of that would be logged as an error."""
    caplog.set_level(logging.WARNING, logger="understudy")
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=NAMES)
def test_two_ends_in_the_same_tick(first: str, second: str, tmp_path: Path) -> None:
    """Nothing else runs between them: one of the two is the end, whole."""
    winner = asyncio.run(race(tmp_path, first, second, when="at once"))
    assert winner in {ENDS[first], ENDS[second]}
    if first not in {*ITS_OWN, "host_stop"} and second in ITS_OWN:
        assert winner == ENDS[first], "an end from outside is one step, the runner's own takes a few"


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=NAMES)
def test_the_first_end_to_be_claimed_wins(first: str, second: str, tmp_path: Path) -> None:
    """Its commit is not even begun when the second strikes."""
    assert asyncio.run(race(tmp_path, first, second, when="claimed")) == ENDS[first]


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=NAMES)
def test_an_end_whose_commit_is_held_up_still_wins(first: str, second: str, tmp_path: Path) -> None:
    """The second strikes while the first is on its way to the disk."""
    assert asyncio.run(race(tmp_path, first, second, when="held")) == ENDS[first]


AFTERWARDS = [pair for pair in PAIRS if pair[0] != "host_stop"]
"""Nothing can strike in a runtime that is gone."""


@pytest.mark.parametrize(("first", "second"), AFTERWARDS, ids=map("-".join, AFTERWARDS))
def test_an_end_after_delivery_changes_nothing(first: str, second: str, tmp_path: Path) -> None:
    """The loser is ignored, whoever it is."""
    assert asyncio.run(race(tmp_path, first, second, when="delivered")) == ENDS[first]


@pytest.mark.parametrize("when", ["at once", "held"])
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=NAMES)
def test_two_ends_of_a_grandchild(first: str, second: str, when: When, tmp_path: Path) -> None:
    """Its parent is a run itself: the files reach the top all the same, and each result one transcript."""
    winner = asyncio.run(race(tmp_path, first, second, when=when, where="nested"))
    # To a grandchild, a session that stops with the host is a parent that stopped.
    ends = {name: ENDS["parent_stop" if name == "host_stop" else name] for name in (first, second)}
    assert winner == ends[first] if when == "held" else winner in ends.values()


WAITING = ["queue_timeout", "kill", "parent_stop", "host_stop"]
QUEUED: list[tuple[str, str, When]] = [
    *((first, second, "at once") for first, second in itertools.product(["grant", *WAITING], repeat=2)),
    *((first, second, "claimed") for first, second in itertools.product(WAITING, ["grant", *WAITING])),
]


@pytest.mark.parametrize(("first", "second", "when"), QUEUED[1:], ids=map("-".join, QUEUED[1:]))
def test_two_ends_of_a_run_that_still_waits_for_a_slot(first: str, second: str, when: When, tmp_path: Path) -> None:
    """Also when the slot comes in that very moment: it is used, or free for the next one."""
    winner = asyncio.run(race(tmp_path, first, second, when=when, where="queued"))
    ends = {ENDS[name] for name in (first, second) if name != "grant"}
    assert winner == ENDS[first] if when == "claimed" else winner in ends


@pytest.mark.parametrize("when", ["at once", "held"])
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=NAMES)
def test_two_ends_of_a_follow_up(first: str, second: str, when: When, tmp_path: Path) -> None:
    """A kept child's second run ends like its first: once, with one result, and one note beside the first one's."""
    winner = asyncio.run(race(tmp_path, first, second, when=when, where="followed up"))
    assert winner == ENDS[first] if when == "held" else winner in {ENDS[first], ENDS[second]}


BEHIND = [pair for pair in QUEUED[1:] if "queue_timeout" not in pair]


@pytest.mark.parametrize(("first", "second", "when"), BEHIND, ids=map("-".join, BEHIND))
def test_two_ends_of_a_follow_up_that_waits_for_its_child(first: str, second: str, when: When, tmp_path: Path) -> None:
    """Also when the child is free in that very moment."""
    winner = asyncio.run(race(tmp_path, first, second, when=when, where="behind"))
    ends = {ENDS[name] for name in (first, second) if name != "grant"}
    assert winner == ENDS[first] if when == "claimed" else winner in ends


def test_a_parent_that_finishes_while_a_result_is_merged_into_it_takes_it_along(tmp_path: Path) -> None:
    """The merge is on its way to the disk: what the grandchild touched is the child's, and so the session's."""

    async def main() -> None:
        clock = ManualClock()
        gate, held = clock.gate(), CrashPoint("merge.before", "delay")

        async def work(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
            context.touch(f"{packet.label}.py")
            if packet.label == "child":
                await context.spawn(Spawn(task="below", label="grandchild"))
                await gate
            return "done"

        runners = {"default": FunctionRunner(work)}
        async with AsyncRuntime(tmp_path / "agents.db", clock=clock, runners=runners, commit_hook=held) as runtime:
            session = await runtime.session(KEY, workspace=tmp_path)
            child = await session.spawn(Spawn(task="above", label="child"))
            assert await asyncio.get_running_loop().run_in_executor(None, held.reached.wait, 30)
            gate.open()
            for _ in range(30):
                await asyncio.sleep(0)
            held.release()
            result = await child.result()
            assert [file.path for file in result.recent_files] == [
                str(tmp_path / "child.py"),
                str(tmp_path / "grandchild.py"),
            ]
            assert session.working_context.recent_files == (
                str(tmp_path / "grandchild.py"),
                str(tmp_path / "child.py"),
            )

    asyncio.run(main())


def test_closing_a_runtime_twice_is_closing_it_once(manual_clock: ManualClock) -> None:
    """From one thread or from several, one after the other or at the same time."""
    with Runtime(clock=manual_clock) as runtime:
        threads = [threading.Thread(target=runtime.close) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        runtime.close()


def test_an_actor_that_is_just_leaving_does_not_disturb_the_close() -> None:
    """Stopped, but its mailbox has not noticed yet: there is nothing left to ask of it."""

    class Leaving(LoopActor):
        pass

    async def main() -> None:
        async with AsyncRuntime(clock=ManualClock()) as runtime:
            leaving = actor_of(runtime.start_actor(Leaving))
            await asyncio.sleep(0)
            leaving.leave("stopped")
            mailbox_of(leaving).rouse()
            await runtime._kernel.stop(leaving)

    asyncio.run(main())
