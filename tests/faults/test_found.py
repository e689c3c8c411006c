"""What the seeds of the simulation have found: each history once more, by hand."""

from __future__ import annotations

import asyncio
import gc
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from _lives import Lives
from _stage import MAIN, a_host, hang, notes
from pykka import ActorRegistry

from understudy.actors import AsyncRuntime, FunctionRunner, Runtime, SessionClosedError
from understudy.actors.runners import ModelRunner
from understudy.actors.testing import CrashPoint, ManualClock, ScriptedModel, ScriptedRunner
from understudy.actors.tools import tool
from understudy.persistence import StoreUnavailableError
from understudy.persistence._commit import Settled
from understudy.persistence.operations import FinishRun, HostStopped, MergeResult
from understudy.protocol import Spawn
from understudy.protocol.model import TextDelta, ToolCall
from understudy.protocol.runner import Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from pathlib import Path

    from understudy.actors.runners import RunContext, Runner
    from understudy.persistence import Commit
    from understudy.persistence.operations import Operation
    from understudy.protocol import SpawnPacket
    from understudy.protocol.commit_points import CommitPoint
    from understudy.protocol.model import ModelEvent, ModelRequest
    from understudy.protocol.runner import RunnerEvent

WAIT = 30


def test_a_child_is_ended_while_a_result_waits_for_its_tools(manual_clock: ManualClock, tmp_path: Path) -> None:
    """The result was told already and is not merged yet: whoever takes it in waits for it, and stops nobody else."""
    never = manual_clock.gate()

    @tool
    async def strike() -> str:
        """Take for ever."""
        await never
        return "struck"

    delegate = ToolCall("d", "sessions_spawn", {"task": "look", "label": "looker", "agent": "below"})
    child = ModelRunner(ScriptedModel([[delegate, ToolCall("s", "strike", {})], "never"]), tools=[strike])
    below = ModelRunner(ScriptedModel(["found it"]))
    with a_host(manual_clock, child, runners={"below": below}) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        handle = session.spawn(Spawn(task="work", label="worker"))
        manual_clock.run_until_idle()
        session.kill(handle.run_id)
        assert handle.result(timeout=WAIT).end_reason == "killed"
        manual_clock.run_until_idle()
        assert runtime.store.runs.unfinished() == []
        assert runtime.store.outbox.undelivered() == []


@pytest.mark.parametrize("how", ["killed", "out of patience"])
def test_a_follow_up_behind_a_child_that_never_starts_takes_its_place(how: str, manual_clock: ManualClock) -> None:
    """The child it waits for ends in the queue: then it is next, and does not wait for ever."""
    config = {"max_children_per_agent": 1, "max_queued_per_agent": 2, "queue_timeout_ms": 10_000}
    gate = manual_clock.gate()
    blocker = ScriptedRunner([gate, Final("out of the way")])
    with a_host(manual_clock, runners={"blocker": blocker}, config=config) as runtime:
        session = runtime.session(MAIN)
        session.spawn(Spawn(task="in the way", runner="blocker"))
        first = session.spawn(Spawn(task="one", cleanup="keep"))
        second = session.follow_up(first.session_key, "two")
        manual_clock.run_until_idle()
        if how == "killed":
            session.kill(first.run_id)
        else:
            manual_clock.advance(9)
            third = session.follow_up(first.session_key, "three")
            manual_clock.advance(1)
        gate.open()
        manual_clock.run_until_idle()
        if how == "killed":
            assert runtime.run(second.run_id).result(timeout=WAIT).output == "done: two"
        else:
            failure = runtime.run(second.run_id).result(timeout=WAIT).failure
            assert failure is not None
            assert failure.kind == "queue_timeout"
            assert runtime.run(third.run_id).result(timeout=WAIT).output == "done: three"
        assert (runtime._backstage.lines, runtime._backstage.live) == ({}, {})


@pytest.fixture
def lives(tmp_path: Path) -> Lives:
    return Lives(tmp_path)


def lost(runtime: Runtime | AsyncRuntime) -> list[tuple[str, str | None]]:
    """How all runs ended."""
    assert runtime.store.runs.unfinished() == []
    assert runtime.store.outbox.undelivered() == []
    runs = runtime.runs().items
    return sorted((run.label, None if run.facts.failure is None else run.facts.failure.kind) for run in runs)


def left_by_a_dead_host(lives: Lives) -> None:
    """Two runs in the middle of their work."""
    with lives.host(ScriptedRunner([lives.clock.gate()])) as runtime:
        session = runtime.session(MAIN, workspace=lives.folder)
        for label in "ab":
            session.spawn(Spawn(task="work", label=label))
        lives.clock.run_until_idle()
        lives.crash()


def test_a_recovery_that_failed_half_way_is_tried_again(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session is open by then: that does not keep the next sweep from the rest."""
    left_by_a_dead_host(lives)
    monkeypatch.setattr("understudy.actors.recovery.surely_dead", lambda host: lives.clock.monotonic() > 1)
    strike = CrashPoint("terminal.before", hit=2)
    with lives.host(ScriptedRunner([]), hook=strike) as runtime:
        lives.clock.advance(31)
        assert strike.reached.is_set()
        assert len(runtime.store.runs.unfinished()) == 1
        lives.clock.advance(31)
        assert lost(runtime) == [("a", "host_lost"), ("b", "host_lost")]


def test_who_gives_up_waiting_for_a_session_leaves_no_run_unrecovered(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened to the end, whoever still wants it."""
    left_by_a_dead_host(lives)
    monkeypatch.setattr("understudy.actors.recovery.in_need", lambda _backstage: [])

    async def main() -> None:
        async with AsyncRuntime(lives.database, clock=lives.clock) as runtime:
            asking = asyncio.ensure_future(runtime.session(MAIN))
            while MAIN not in runtime._backstage.sessions:
                await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await lives.clock.run_until_idle_async()
            assert lost(runtime) == [("a", "host_lost"), ("b", "host_lost")]

    asyncio.run(main())


def test_a_session_that_is_asked_for_while_the_runtime_closes_is_closed_or_refused(tmp_path: Path) -> None:
    """Nothing stays open behind it."""

    async def main() -> None:
        clock = ManualClock()
        async with AsyncRuntime(tmp_path / "agents.db", clock=clock) as runtime:
            early = asyncio.ensure_future(runtime.session("agent:atlas:early"))
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(runtime.close())
            await asyncio.sleep(0)
            late = asyncio.ensure_future(runtime.session("agent:atlas:late"))
            await closing
            backstage = runtime._backstage
            assert (backstage.sessions, list(runtime._kernel._actors)) == ({}, [])
            await early
            with pytest.raises(RuntimeError, match="the runtime is closed"):
                await late

    asyncio.run(main())


def test_an_announcement_that_waits_for_a_better_moment_does_not_outlive_its_runtime(tmp_path: Path) -> None:
    """What is left on the host's loop when a runtime has closed is the host's."""

    async def main() -> None:
        clock = ManualClock()
        async with AsyncRuntime(
            tmp_path / "agents.db", clock=clock, runners={"default": ScriptedRunner([Final("x")])}
        ) as runtime:
            session = await runtime.session(MAIN, on_results=lambda results: False)
            await session.spawn(Spawn(task="work", announce=True))
            await clock.advance_async(3)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_callback_may_close_the_runtime(tmp_path: Path) -> None:
    """It is not among those that the close ends."""
    closed: list[object] = []

    async def main() -> None:
        clock = ManualClock()
        runners: dict[str, Runner] = {"default": ScriptedRunner([Final("x")])}
        async with AsyncRuntime(tmp_path / "agents.db", clock=clock, runners=runners) as runtime:

            async def enough(results: object) -> None:
                await runtime.close()
                closed.append(results)

            session = await runtime.session(MAIN, on_results=enough)
            await session.spawn(Spawn(task="work", announce=True))
            await clock.advance_async(3)
        assert len(closed) == 1

    asyncio.run(main())


def test_the_sweep_of_a_runtime_that_has_signed_off_finds_nothing_wrong(
    manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its timer may go off while the last actors leave: nobody has taken the host for dead."""
    caplog.set_level(logging.ERROR, logger="understudy")
    with a_host(manual_clock) as runtime:
        backstage = runtime._backstage
        backstage.closing = True
        backstage.store.transaction(HostStopped(backstage.host, backstage.now())).result(WAIT)
        assert runtime.sweep() == 0
    assert [record.getMessage() for record in caplog.records] == []


def test_a_child_that_is_thrown_away_with_its_loop_has_not_failed(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Nobody will ever run that loop again: its coroutine ends quietly, as every other does."""
    loop = asyncio.new_event_loop()
    held = CrashPoint("accept.before", "delay")
    runtime = AsyncRuntime(tmp_path / "agents.db", runners={"default": FunctionRunner(hang)}, commit_hook=held)

    async def main() -> list[asyncio.Task[Any]]:
        await runtime.__aenter__()
        session = await runtime.session(MAIN)
        ActorRegistry.unregister(session.ref)  # nobody will close it: no other test is to find it
        spawning = asyncio.ensure_future(session.spawn(Spawn(task="work")))
        while not held.reached.is_set():
            await asyncio.sleep(0)
        return [spawning, *(task for task in asyncio.all_tasks() if "_life" in repr(task))]

    tasks = loop.run_until_complete(main())
    loop.close()
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is meant to be
        task.get_coro().close()  # what the garbage collector does
    held.release()
    runtime.store.close()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_summary_that_is_given_up_before_it_has_begun_leaves_no_coroutine_behind(manual_clock: ManualClock) -> None:
    """Python warns of one that nobody has ever awaited, and warnings are errors here."""
    model = ScriptedModel(["it is long " * 200])
    with a_host(manual_clock, ModelRunner(model), config={"max_result_tokens": 100}) as runtime:
        session = runtime.session(MAIN)
        begun = runtime._backstage.kernel.create_task

        def hurried(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            task = begun(work)
            if "summar" in repr(work) or "within" in repr(work):
                task.cancel()
            return task

        runtime._backstage.kernel.create_task = hurried  # type: ignore[method-assign]
        result = session.spawn(Spawn(task="work")).result(timeout=WAIT)
        assert result.condensation.level == 3
    gc.collect()


def test_a_session_that_is_being_closed_follows_nobody_up(manual_clock: ManualClock, tmp_path: Path) -> None:
    """What it told a kept child now would outlive it."""
    gate = manual_clock.gate()
    kept = ScriptedRunner([lambda packet, _context: gate if packet.task == "wait" else None, Final("done")])

    async def main() -> None:
        async with AsyncRuntime(tmp_path / "agents.db", clock=manual_clock, runners={"default": kept}) as runtime:
            session = await runtime.session(MAIN)
            first = await (await session.spawn(Spawn(task="once", cleanup="keep"))).result()
            await session.spawn(Spawn(task="wait"))
            closing = asyncio.ensure_future(session.close())
            await asyncio.sleep(0)
            with pytest.raises(SessionClosedError):
                await session.follow_up(first.session_key, "wait")
            await closing
            assert runtime._backstage.live == {}

    asyncio.run(main())


class OnceFailing:
    """A commit hook that fails the first merge that comes with a tool's answer."""

    def __init__(self) -> None:
        self.armed = False

    def __call__(self, point: CommitPoint, /) -> None:
        if self.armed and point == "merge.before":
            self.armed = False
            raise OSError("disk on fire")


def test_a_tools_answer_that_cannot_be_stored_loses_no_result(manual_clock: ManualClock, tmp_path: Path) -> None:
    """The prompt fails; the child's result comes in all the same."""
    hook = OnceFailing()
    delegate = ToolCall("d", "sessions_spawn", {"task": "look", "label": "looker", "agent": "below", "wait": True})

    def arm(_packet: SpawnPacket, _context: RunContext) -> None:
        hook.armed = True

    runners = {"below": ScriptedRunner([arm, Final("found it")])}
    mind = ModelRunner(ScriptedModel([delegate, "never"]))
    with a_host(manual_clock, mind, runners=runners, store=tmp_path / "agents.db", commit_hook=hook) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        with pytest.raises(OSError, match="disk on fire"):
            session.prompt("Look")
        manual_clock.run_until_idle()
        assert runtime.store.outbox.undelivered() == []
        assert notes(session.transcript()) == ["[Subagent Result: looker]"]


def test_a_childs_tools_answer_that_cannot_be_stored_loses_no_result(
    manual_clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grandchild's result is merged with the child's end at the latest."""
    delegate = ToolCall("d", "sessions_spawn", {"task": "look", "label": "looker", "agent": "below", "wait": True})
    child = ModelRunner(ScriptedModel([delegate, "done"]))
    with a_host(
        manual_clock, child, runners={"below": ScriptedRunner([Final("found it")])}, store=tmp_path / "agents.db"
    ) as runtime:
        store = runtime.store
        transaction = store.transaction

        def failing(*operations: Operation, **point: Any) -> Commit:
            answers = any(isinstance(each, MergeResult) and not each.turns for each in operations)
            if answers and not any(isinstance(each, FinishRun) for each in operations):
                return Settled(StoreUnavailableError("the disk is full"))
            return transaction(*operations, **point)

        monkeypatch.setattr(store, "transaction", failing)
        handle = runtime.session(MAIN, workspace=tmp_path).spawn(Spawn(task="work"))
        assert handle.result(timeout=WAIT).output == "done"
        assert store.outbox.undelivered() == []


def test_killing_what_has_just_ended_still_gives_its_result(manual_clock: ManualClock, tmp_path: Path) -> None:
    """It is being condensed: the answer of the tool that kills is where the model reads it, and the only place."""
    gate = manual_clock.gate()

    class Impatient:
        """Starts a run, and kills it when it has ended already."""

        def __init__(self) -> None:
            self.requests: list[ModelRequest] = []

        async def complete(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            self.requests.append(request)
            if len(self.requests) == 1:
                yield ToolCall("d", "sessions_spawn", {"task": "look", "label": "looker", "agent": "below"})
            elif len(self.requests) == 2:
                await started
                told = next(turn.text for turn in reversed(request.turns) if turn.role == "tool")
                yield ToolCall("k", "sessions_kill", {"run_id": told.split()[3].rstrip(".")})
            else:
                yield TextDelta("thanks")

    started = manual_clock.gate()
    mind = Impatient()
    below = ScriptedRunner([Final("found it " * 200)])
    summarizer = ScriptedModel([[gate, "never"]])
    config = {"max_result_tokens": 100}
    with a_host(
        manual_clock, ModelRunner(mind), runners={"below": below}, config=config, summarizer=summarizer
    ) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        with ThreadPoolExecutor() as pool:
            asking = pool.submit(session.prompt, "Look")
            while not runtime.runs(status="completed").items:
                manual_clock.run_until_idle()
            started.open()
            assert asking.result(WAIT).output == "thanks"
        assert "[Subagent Result: looker]" in mind.requests[2].turns[-1].text
        assert runtime.store.outbox.undelivered() == []


def test_a_child_whose_parent_gave_up_before_it_was_accepted_is_not_anybodys_answer(
    manual_clock: ManualClock, tmp_path: Path
) -> None:
    """Its result comes as any other, and not unseen with the next answer of some tool."""
    held = CrashPoint("accept.before", "delay")
    delegate = ToolCall("d", "sessions_spawn", {"task": "look", "label": "looker", "agent": "below", "wait": True})
    mind = ModelRunner(ScriptedModel([delegate, "well then", "and now"]))
    runners: dict[str, Runner] = {"default": mind, "below": ScriptedRunner([Final("found it")])}

    async def main() -> None:
        async with AsyncRuntime(tmp_path / "a.db", clock=manual_clock, runners=runners, commit_hook=held) as runtime:
            session = await runtime.session(MAIN, workspace=tmp_path)
            asking = asyncio.ensure_future(session.prompt("Look"))
            while not held.reached.is_set():
                await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            held.release()
            await manual_clock.run_until_idle_async()
            assert notes(session.transcript()) == ["[Subagent Result: looker]"]
            assert runtime.store.outbox.undelivered() == []

    asyncio.run(main())


def test_a_run_that_is_lost_takes_along_what_lives_below_its_finished_children(lives: Lives) -> None:
    """As it does when it ends in any other way; a grandchild that may resume has nobody left to work for."""
    config = {"max_spawn_depth": 4}

    class Family:
        async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
            if packet.depth < 3:
                await context.spawn(Spawn(task="below", label=f"{packet.label}'s child", restart="resume"))
            if packet.depth != 2:
                await lives.clock.gate()
            yield Final("done")

    with lives.host(Family(), config=config) as runtime:
        runtime.session(MAIN, workspace=lives.folder).spawn(Spawn(task="work", label="a"))
        lives.clock.run_until_idle()
        assert len(runtime.store.runs.unfinished()) == 2
        lives.crash()
    with lives.host(Family(), config=config) as runtime:
        lives.clock.run_until_idle()
        assert lost(runtime) == [("a", "host_lost"), ("a's child", None), ("a's child's child", "host_lost")]
