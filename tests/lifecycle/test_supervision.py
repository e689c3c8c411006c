"""Nothing runs for ever, nothing runs unseen: deadlines, silence, ghosts, budgets and slots."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from understudy.actors import FunctionRunner, Runtime
from understudy.actors._kernel.loop import actor_of
from understudy.actors.testing import ScriptedRunner
from understudy.protocol import Budget, EndReason, RuntimeConfig, Spawn, SpawnRejected
from understudy.protocol.model import TextDelta, Turn, UsageReport
from understudy.protocol.runner import Asking, Final, Keepalive, Noted, Said, ToolEnded, ToolStarted, Touched
from understudy.protocol.spawn import GraphNode
from understudy.protocol.usage import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from understudy.actors import Session
    from understudy.actors.handles import RunHandle
    from understudy.actors.runners import AsyncFunctionContext, FunctionContext, RunContext, Runner
    from understudy.actors.testing import Gate, ManualClock
    from understudy.actors.testing.scripted_runner import RunnerStep
    from understudy.protocol import SpawnPacket, SubAgentResult
    from understudy.protocol.runner import RunnerEvent

KEY = "agent:atlas:main"
WAIT = 30
"""Real seconds a test waits for what must come at once."""


def stage(clock: ManualClock, runner: Runner, *, others: dict[str, Runner] | None = None, **config: Any) -> Runtime:
    """A runtime with one runner, or several."""
    return Runtime(clock=clock, runners={"default": runner, **(others or {})}, config=RuntimeConfig(**config))


def ended(handle: RunHandle) -> tuple[str, str | None]:
    """How a run ended that must have."""
    result = handle.result(timeout=WAIT)
    return result.end_reason.value, None if result.failure is None else result.failure.kind


def is_running(handle: RunHandle) -> bool:
    return handle.status == "running"


def slots(runtime: Runtime) -> int:
    return runtime._backstage.running


def said(text: str) -> Said:
    return Said(Turn("assistant", text))


def tokens(count: int, cost: float = 0.0) -> UsageReport:
    return UsageReport(Usage(input_tokens=count, cost_usd=cost))


# -- the watchdog -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spawn", "config", "seconds"),
    [
        ({}, {}, 600),
        ({}, {"max_steps": 3, "per_step_timeout_ms": 5_000}, 15),
        ({}, {"max_steps": 3, "per_step_timeout_ms": 5_000, "max_run_timeout_ms": 9_000}, 9),
        ({"max_steps": 2}, {"per_step_timeout_ms": 5_000}, 10),
        ({"timeout_ms": 4_000}, {}, 4),
        ({"timeout_ms": 900_000}, {}, 600),
    ],
)
def test_the_deadline_is_steps_times_time_a_step_or_the_longest_run(
    spawn: dict[str, Any], config: dict[str, Any], seconds: int, manual_clock: ManualClock
) -> None:
    """Whichever is less; a spawn may ask for another time, and never for more than the longest run."""
    with stage(manual_clock, ScriptedRunner([manual_clock.gate()]), **config) as runtime:
        handle = runtime.session(KEY).spawn(Spawn(task="hang", **spawn))
        manual_clock.advance(seconds - 0.001)
        assert is_running(handle)
        manual_clock.advance(0.001)
        assert ended(handle) == ("watchdog_timeout", "deadline")
        assert handle.result().runtime_ms == seconds * 1000
        assert slots(runtime) == 0


def test_a_day_long_timeout_strikes_after_a_day(manual_clock: ManualClock) -> None:
    """No sooner and no later."""
    day = 86_400
    long: dict[str, Any] = {"max_run_timeout_ms": 2 * day * 1000, "ghost_sweep_interval_ms": day * 1000}
    with stage(manual_clock, ScriptedRunner([manual_clock.gate()]), **long) as runtime:
        handle = runtime.session(KEY).spawn(Spawn(task="hang", timeout_ms=day * 1000))
        manual_clock.advance(day - 1)
        assert is_running(handle)
        manual_clock.advance(1)
        assert ended(handle) == ("watchdog_timeout", "deadline")


def test_a_hung_sync_function_loses_its_slot_and_its_thread_is_counted(manual_clock: ManualClock) -> None:
    """A thread cannot be killed: the next child starts all the same."""
    gate = manual_clock.gate()

    def work(packet: SpawnPacket, _context: FunctionContext) -> str:
        if packet.task == "hang":
            gate.wait()
        return "done"

    with stage(manual_clock, FunctionRunner(work), max_children_per_agent=1) as runtime:
        session = runtime.session(KEY)
        hung = session.spawn(Spawn(task="hang"))
        manual_clock.advance(600)
        assert ended(hung) == ("watchdog_timeout", "deadline")
        assert (slots(runtime), runtime.abandoned_threads) == (0, 1)
        assert session.spawn(Spawn(task="work")).result(timeout=WAIT).output == "done"
        gate.open()


class Stubborn:
    """Will not be cancelled: it swallows the cancellation, waits again, and then goes on talking."""

    def __init__(self, gate: Gate, late: list[RunnerEvent]) -> None:
        self.gate = gate
        self.late = late
        self.told = 0

    async def run(self, _packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        yield Touched("early.py")
        yield said("half an answer")
        yield tokens(5)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await self.gate
        for event in self.late:
            context.emit(event)
            self.told += 1
        for event in self.late:
            yield event
        yield Final("late, and wrong")


LATE: list[RunnerEvent] = [Touched("late.py"), said("late"), TextDelta("late"), tokens(1_000), Noted("late")]


def test_a_child_that_ignores_its_cancellation_is_left_behind_and_not_heard(
    manual_clock: ManualClock, tmp_path: Path
) -> None:
    """Its slot is free at its end, and nothing it says afterwards reaches transcript, files, usage or output."""
    gate = manual_clock.gate()
    runner = Stubborn(gate, LATE)
    with stage(manual_clock, runner, max_children_per_agent=1) as runtime:
        session = runtime.session(KEY, workspace=tmp_path)
        handle = session.spawn(Spawn(task="hang"))
        manual_clock.advance(600)
        before = handle.result(timeout=WAIT)
        assert (ended(handle), slots(runtime)) == (("watchdog_timeout", "deadline"), 0)
        with runtime.events(run_id=handle.run_id) as events:
            gate.open()
            manual_clock.run_until_idle()
            assert runner.told == len(LATE)
            assert events.poll() == []
        after(runtime, session, before)


def test_a_function_that_returns_after_its_end_is_not_heard(manual_clock: ManualClock, tmp_path: Path) -> None:
    """The same from a thread nobody could stop: receipts, usage, progress and the answer are late."""
    gate = manual_clock.gate()
    told: list[bool] = []

    def work(_packet: SpawnPacket, context: FunctionContext) -> str:
        context.touch("early.py")
        context.usage(input_tokens=5)
        gate.wait()
        context.touch("late.py")
        context.usage(input_tokens=1_000)
        context.progress("late")
        told.append(context.cancelled)
        return "late, and wrong"

    with stage(manual_clock, FunctionRunner(work)) as runtime:
        session = runtime.session(KEY, workspace=tmp_path)
        handle = session.spawn(Spawn(task="hang"))
        manual_clock.advance(600)
        before = handle.result(timeout=WAIT)
        gate.open()
        manual_clock.run_until_idle()
        while runtime.abandoned_threads:
            manual_clock.run_until_idle()
        manual_clock.run_until_idle()
        assert told == [True]
        after(runtime, session, before)


def after(runtime: Runtime, session: Session, before: SubAgentResult) -> None:
    """Nothing has changed since the end."""
    store = runtime.store
    assert store.runs.result(before.run_id) == before
    assert (before.usage.total_tokens, [file.path.rpartition("/")[2] for file in before.recent_files]) == (
        5,
        ["early.py"],
    )
    texts = [stored.turn.text for key in (KEY, before.session_key) for stored in store.transcripts.turns(key)]
    assert not [text for text in texts if "late" in text]
    assert len(session.working_context.recent_files) == 1
    assert store.runs.usage(KEY).total_tokens == 5
    assert store.runs.late_endings(before.run_id) == []
    assert store.problems() == []


@pytest.mark.parametrize("delegated_before", [False, True])
def test_a_run_that_is_over_cannot_spawn(delegated_before: bool, manual_clock: ManualClock) -> None:
    """Not even from a thread nobody could stop: a child nobody waits for would never be taken in."""
    gate = manual_clock.gate()
    refused: list[Exception] = []

    def work(packet: SpawnPacket, context: FunctionContext) -> str:
        if packet.depth == 1:
            if delegated_before:
                context.spawn(Spawn(task="in time")).result(timeout=WAIT)
            gate.wait()
            try:
                context.spawn(Spawn(task="too late"))
            except Exception as error:  # noqa: BLE001 - looked at below
                refused.append(error)
        return "done"

    with stage(manual_clock, FunctionRunner(work)) as runtime:
        handle = runtime.session(KEY).spawn(Spawn(task="hang"))
        manual_clock.advance(600)
        assert ended(handle) == ("watchdog_timeout", "deadline")
        gate.open()
        while not refused and runtime.abandoned_threads:
            manual_clock.run_until_idle()
        assert [type(error).__name__ for error in refused] == ["SessionClosedError"]
        assert "too late" not in [run.packet.task for run in runtime.runs().items]
        assert (runtime._backstage.live, slots(runtime)) == ({}, 0)


# -- silence ------------------------------------------------------------------------------------------


def silence(clock: ManualClock, script: list[RunnerStep], **limits: Any) -> tuple[str, float]:
    """Let a run say what is written and then nothing; how it ended, and after how many seconds."""
    with stage(clock, ScriptedRunner([*script, clock.gate()]), **limits) as runtime:
        began = clock.monotonic()
        handle = runtime.session(KEY).spawn(Spawn(task="hang"))
        while is_running(handle):
            clock.advance(0.5)
        reason, kind = ended(handle)
        return f"{reason} {kind}", clock.monotonic() - began


def later(clock: ManualClock, seconds: float) -> list[RunnerStep]:
    """Steps that let so much time pass."""
    gate = clock.gate()

    def begin(_packet: SpawnPacket, _context: RunContext) -> None:
        clock.call_later(seconds, gate.open)

    return [begin, gate]


def test_silence_ends_a_run_only_where_idle_timeout_is_set(manual_clock: ManualClock) -> None:
    """Without it the deadline does."""
    assert silence(manual_clock, []) == ("watchdog_timeout deadline", 600)
    assert silence(manual_clock, [], idle_timeout_ms=7_000) == ("watchdog_timeout idle", 7)


def test_real_output_resets_the_idle_clock_and_a_keepalive_does_not(manual_clock: ManualClock) -> None:
    """Five seconds of silence after the last word, however often it says that it lives."""
    clock = manual_clock
    words: list[RunnerStep] = [
        *later(clock, 4),
        TextDelta("a"),
        *later(clock, 4),
        Noted("b"),
        *later(clock, 4),
        said("c"),
    ]
    assert silence(clock, words, idle_timeout_ms=5_000) == ("watchdog_timeout idle", 17)
    beats: list[RunnerStep] = [*later(clock, 2), Keepalive(), *later(clock, 2), Keepalive()]
    assert silence(clock, beats, idle_timeout_ms=5_000) == ("watchdog_timeout idle", 5)


def test_before_the_first_token_its_own_timeout_counts(manual_clock: ManualClock) -> None:
    """Longer or shorter than the idle timeout; and afterwards the idle timeout, at once."""
    clock = manual_clock
    assert silence(clock, [], first_token_timeout_ms=30_000, idle_timeout_ms=5_000)[1] == 30
    assert silence(clock, [], first_token_timeout_ms=3_000, idle_timeout_ms=50_000)[1] == 3

    def spoke() -> list[RunnerStep]:
        return [*later(clock, 1), TextDelta("a")]

    assert silence(clock, spoke(), first_token_timeout_ms=3_000, idle_timeout_ms=50_000)[1] == 51
    assert silence(clock, spoke(), first_token_timeout_ms=60_000, idle_timeout_ms=5_000)[1] == 6
    assert silence(clock, spoke(), first_token_timeout_ms=3_000) == ("watchdog_timeout deadline", 600)


def test_while_a_tool_runs_its_own_timeout_counts(manual_clock: ManualClock) -> None:
    """Longer or shorter than the idle timeout; one without a timeout may take until the deadline."""
    clock = manual_clock

    def tool(limit: int | None) -> list[RunnerStep]:
        return [*later(clock, 1), ToolStarted("1", "build", limit)]

    assert silence(clock, tool(20_000), idle_timeout_ms=5_000) == ("watchdog_timeout idle", 21)
    assert silence(clock, tool(2_000), idle_timeout_ms=50_000) == ("watchdog_timeout idle", 3)
    assert silence(clock, tool(None), idle_timeout_ms=5_000) == ("watchdog_timeout deadline", 600)
    done: list[RunnerStep] = [*tool(20_000), *later(clock, 10), ToolEnded("1")]
    assert silence(clock, done, idle_timeout_ms=5_000) == ("watchdog_timeout idle", 16)
    assert silence(clock, tool(2_000), first_token_timeout_ms=9_000) == ("watchdog_timeout deadline", 600)


def test_the_idle_clock_stands_still_while_a_person_is_asked(manual_clock: ManualClock) -> None:
    """A person may take an hour; the clock starts anew with the answer."""
    clock = manual_clock
    asked: list[RunnerStep] = [*later(clock, 1), Asking("asked"), *later(clock, 400), Asking("answered")]
    assert silence(clock, asked, idle_timeout_ms=5_000) == ("watchdog_timeout idle", 406)


# -- ghosts -------------------------------------------------------------------------------------------


def test_a_run_whose_actor_is_gone_without_an_end_is_a_ghost(manual_clock: ManualClock, tmp_path: Path) -> None:
    """What it had said and touched is handed over."""
    script: list[RunnerStep] = [Touched("a.py"), said("half"), tokens(7), manual_clock.gate()]
    with stage(manual_clock, ScriptedRunner(script)) as runtime:
        session = runtime.session(KEY, workspace=tmp_path)
        handle = session.spawn(Spawn(task="vanish"))
        manual_clock.run_until_idle()
        run = runtime._backstage.live[handle.run_id]
        run.actor = None
        manual_clock.advance(30)
        assert ended(handle) == ("ghost_sweep", "ghost")
        result = handle.result()
        assert (result.output, result.usage.total_tokens, result.status) == ("half", 7, "ghost")
        assert session.working_context.recent_files == (str(tmp_path / "a.py"),)
        assert slots(runtime) == 0


def test_the_sweep_ends_what_a_broken_watchdog_has_missed(manual_clock: ManualClock) -> None:
    """Two minutes after its deadline, and not before."""
    with stage(manual_clock, ScriptedRunner([manual_clock.gate()])) as runtime:
        handle = runtime.session(KEY).spawn(Spawn(task="hang", timeout_ms=10_000))
        manual_clock.run_until_idle()
        runtime._backstage.watchdog._heap.clear()
        manual_clock.advance(120)
        assert is_running(handle)
        assert runtime.sweep() == 0
        manual_clock.advance(30)
        assert ended(handle) == ("ghost_sweep", "deadline")


def test_silence_alone_is_only_worth_a_word(manual_clock: ManualClock) -> None:
    """Suspected once, again only after it was heard of; and never while a person is asked."""
    clock = manual_clock
    again = [*later(clock, 200), Noted("still here"), *later(clock, 150), Asking("asked"), *later(clock, 200)]
    with stage(clock, ScriptedRunner([*again, Final("done")])) as runtime:
        handle = runtime.session(KEY).spawn(Spawn(task="think"))
        with runtime.events(names=["session:sub_agent_ghost_suspected"]) as suspicions:
            clock.advance(199)
            assert [event.data for event in suspicions.poll()] == [{"silent_ms": 150_000}]
            clock.advance(150)
            assert len(suspicions.poll()) == 1
            clock.advance(201)
            assert suspicions.poll() == []
        assert ended(handle) == ("completed", None)
        recorded = [event.name for event in runtime.store.runs.events(handle.run_id)]
        assert recorded == ["session:sub_agent_ghost_suspected"] * 2


# -- steps and budgets --------------------------------------------------------------------------------


def test_more_steps_than_allowed_are_a_partial_failure(manual_clock: ManualClock) -> None:
    """The last word is kept; it is not called an answer."""
    script: list[RunnerStep] = [said("one"), said("two"), said("three"), Final("four")]
    with stage(manual_clock, ScriptedRunner(script)) as runtime:
        session = runtime.session(KEY)
        handle = session.spawn(Spawn(task="work", max_steps=2))
        assert ended(handle) == ("failed", "step_limit")
        assert (handle.result().status, handle.result().output) == ("partial", "three")
        assert ended(session.spawn(Spawn(task="work", max_steps=3))) == ("completed", None)


@pytest.mark.parametrize(
    ("budget", "config"),
    [
        (Budget(tokens=100), {}),
        (Budget(cost_usd=0.5), {}),
        (None, {"run_token_budget": 100}),
        (None, {"run_cost_budget_usd": 0.5}),
        (Budget(tokens=9_999), {"run_token_budget": 100}),
        (None, {"tree_token_budget": 100}),
        (None, {"tree_cost_budget_usd": 0.5}),
    ],
)
def test_a_used_up_budget_ends_the_run(
    budget: Budget | None, config: dict[str, Any], manual_clock: ManualClock
) -> None:
    """Tokens or cost, its own or the tree's: what was used is told truly, what was said is kept."""
    script: list[RunnerStep] = [said("half"), tokens(60, 0.3), tokens(60, 0.3), Final("never said")]
    with stage(manual_clock, ScriptedRunner(script), **config) as runtime:
        handle = runtime.session(KEY).spawn(Spawn(task="work", budget=budget))
        assert ended(handle) == ("killed", "budget")
        result = handle.result()
        assert (result.usage.total_tokens, result.usage.cost_usd, result.output) == (120, 0.6, "half")
        assert slots(runtime) == 0


def test_what_a_grandchild_uses_counts_against_those_above(manual_clock: ManualClock) -> None:
    """The child whose budget is used up ends, and with it the grandchild that used it."""

    async def work(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        if packet.depth == 1:
            await (await context.spawn(Spawn(task="below"))).result()
            return "delegated"
        context.usage(input_tokens=120)
        await manual_clock.gate()
        return "never"

    with stage(manual_clock, FunctionRunner(work)) as runtime:
        session = runtime.session(KEY)
        handle = session.spawn(Spawn(task="above", budget=Budget(tokens=100)))
        assert ended(handle) == ("killed", "budget")
        below = next(run for run in runtime.runs().items if run.depth == 2)
        assert below.facts.failure is not None
        assert (below.facts.failure.kind, below.usage.total_tokens) == ("parent_stopped", 120)
        assert runtime.store.runs.usage(KEY).total_tokens == 120


def test_a_used_up_tree_refuses_new_spawns_and_ends_who_uses_more(manual_clock: ManualClock) -> None:
    """Also after a restart: what was used stays used."""
    gate = manual_clock.gate()
    runners: dict[str, Runner] = {"spend": ScriptedRunner([tokens(100), Final("spent")])}
    waiting = ScriptedRunner([gate, tokens(1), Final("never")])
    with stage(manual_clock, waiting, others=runners, tree_token_budget=150) as runtime:
        session = runtime.session(KEY)
        waits = session.spawn(Spawn(task="wait"))
        assert ended(session.spawn(Spawn(task="a", runner="spend"))) == ("completed", None)
        assert ended(session.spawn(Spawn(task="b", runner="spend"))) == ("killed", "budget")
        with pytest.raises(SpawnRejected) as refused:
            session.spawn(Spawn(task="c"))
        assert (refused.value.rejection.reason, refused.value.rejection.current) == ("budget_exceeded", 200)
        gate.open()
        assert ended(waits) == ("killed", "budget")


# -- slots and the queue ------------------------------------------------------------------------------


def _refused(session: Session, spawn: Spawn) -> str:
    """Why a spawn is refused that must be."""
    with pytest.raises(SpawnRejected) as refused:
        session.spawn(spawn)
    return refused.value.rejection.reason


class Gated:
    """Each run waits at the gate of its task."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.gates: dict[str, Gate] = {}
        self.began: list[str] = []

    async def run(self, packet: SpawnPacket, _context: RunContext) -> AsyncIterator[RunnerEvent]:
        self.began.append(packet.task)
        await self.gates.setdefault(packet.task, self.clock.gate())
        yield Final("done")


def test_the_queue_is_first_in_first_out_and_a_slot_is_free_with_the_end(manual_clock: ManualClock) -> None:
    """In order of acceptance, one slot at a time; the deadline counts from the start, not from the queue."""
    runner = Gated(manual_clock)
    with stage(manual_clock, runner, max_children_per_agent=1, max_queued_per_agent=3) as runtime:
        session = runtime.session(KEY)
        handles = {task: session.spawn(Spawn(task=task, timeout_ms=100_000)) for task in "abcd"}
        assert [child.state for child in session.children()] == ["running", "queued", "queued", "queued"]
        with pytest.raises(SpawnRejected) as refused:
            session.spawn(Spawn(task="e"))
        assert (refused.value.rejection.reason, refused.value.rejection.current) == ("queue_full", 3)
        manual_clock.advance(60)
        runner.gates["a"].open()
        manual_clock.run_until_idle()
        assert runner.began == ["a", "b"]
        session.kill(handles["c"].run_id)
        manual_clock.advance(99)
        assert is_running(handles["b"])
        manual_clock.advance(1)
        assert ended(handles["b"]) == ("watchdog_timeout", "deadline")
        manual_clock.run_until_idle()
        assert runner.began == ["a", "b"], "d waited longer than the queue allows"
        assert [ended(handles[task])[1] for task in "acd"] == [None, "killed", "queue_timeout"]
        assert (slots(runtime), runtime._backstage.live) == (0, {})


def test_a_wait_in_the_queue_that_is_too_long_ends_as_failed(manual_clock: ManualClock) -> None:
    """It was accepted, so it has a result like any other; whoever waits behind it is not disturbed."""
    runner = Gated(manual_clock)
    limits: dict[str, Any] = {"max_children_per_agent": 1, "max_queued_per_agent": 5, "queue_timeout_ms": 10_000}
    with stage(manual_clock, runner, **limits) as runtime:
        session = runtime.session(KEY)
        session.spawn(Spawn(task="a"))
        late = session.spawn(Spawn(task="b"))
        manual_clock.advance(5)
        behind = session.spawn(Spawn(task="c"))
        manual_clock.advance(5)
        assert ended(late) == ("failed", "queue_timeout")
        result = late.result()
        assert (result.runtime_ms, result.status, result.failure and result.failure.retryable) == (0, "failed", True)
        runner.gates["a"].open()
        manual_clock.advance(60)
        assert (runner.began, is_running(behind)) == (["a", "c"], True)


def test_the_runtime_as_a_whole_has_a_limit_and_serves_sessions_in_order(manual_clock: ManualClock) -> None:
    """A slot freed in one session goes to whoever waits longest, in whichever session."""
    runner = Gated(manual_clock)
    with stage(manual_clock, runner, max_total_children=2, max_queued_per_agent=5) as runtime:
        one, other = runtime.session("agent:atlas:one"), runtime.session("agent:atlas:other")
        for session, task in ((one, "a"), (one, "b"), (other, "c"), (one, "d"), (other, "e")):
            session.spawn(Spawn(task=task))
        manual_clock.run_until_idle()
        assert (runner.began, slots(runtime)) == (["a", "b"], 2)
        for task in "abcde":
            runner.gates[task].open()
            manual_clock.run_until_idle()
        assert sorted(runner.began) == ["a", "b", "c", "d", "e"]
        assert runner.began[2] == "c", "it waited first"
        assert (slots(runtime), runtime._backstage.hungry) == (0, {})


def test_graph_nodes_bypass_the_children_limit_and_no_other(manual_clock: ManualClock) -> None:
    """Depth, allow-list, budget and deadline hold for them; they take nobody's slot."""
    runner = Gated(manual_clock)
    limits: dict[str, Any] = {
        "max_children_per_agent": 1,
        "max_total_children": 1,
        "tree_token_budget": 100,
        "max_spawn_depth": 2,
    }
    others: dict[str, Runner] = {"spend": ScriptedRunner([tokens(100), Final("spent")])}
    with stage(manual_clock, runner, others=others, **limits) as runtime:
        session = runtime.session(KEY)
        session.spawn(Spawn(task="a"))

        def node(number: int, **more: Any) -> Spawn:
            return Spawn(task=f"node {number}", graph=GraphNode(graph_id="g", node_id=str(number)), **more)

        nodes = [session.spawn(node(number)) for number in range(3)]
        manual_clock.run_until_idle()
        assert (len(runner.began), slots(runtime)) == (4, 1)
        assert _refused(session, Spawn(task="b")) == "children_exceeded"
        runner.gates["a"].open()
        manual_clock.run_until_idle()
        assert slots(runtime) == 0, "the nodes hold none"
        assert _refused(session, node(7, runner="nobody")) == "not_allowed"
        assert ended(session.spawn(node(8, runner="spend"))) == ("killed", "budget")
        assert _refused(session, node(9)) == "budget_exceeded"
        manual_clock.advance(600)
        assert {ended(handle) for handle in nodes} == {("watchdog_timeout", "deadline")}


# -- the end itself -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["x" * 300, "a/" * 2_045])
def test_an_expected_output_nobody_can_look_for_is_missing(path: str, manual_clock: ManualClock) -> None:
    """A name too long for the disk does not keep the run from ending."""
    with stage(manual_clock, ScriptedRunner([Final("done")])) as runtime:
        handle = runtime.session(KEY).spawn(Spawn(task="work", expected_outputs=(path,)))
        assert ended(handle) == ("completed", None)
        assert handle.result().missing_outputs == (path,)


@pytest.mark.parametrize(
    "step", [Final("half \ud800"), ValueError("bad \udfff"), said("odd \ud83d"), TextDelta("\ud800")]
)
def test_text_that_is_not_unicode_does_not_keep_a_run_from_ending(step: RunnerStep, manual_clock: ManualClock) -> None:
    """Half a surrogate pair, as cut-off output has it, cannot be stored as it is; the run ends all the same."""
    with stage(manual_clock, ScriptedRunner([step, Final("done")])) as runtime:
        handle = runtime.session(KEY).spawn(Spawn(task="work"))
        manual_clock.advance(10)
        assert handle.result(timeout=0.1).end_reason in {EndReason.COMPLETED, EndReason.FAILED}
        assert slots(runtime) == 0


def test_the_sweep_is_an_actor_of_its_own(manual_clock: ManualClock) -> None:
    """It goes on after something went wrong in it."""
    with stage(manual_clock, ScriptedRunner([manual_clock.gate()])) as runtime:
        sweep = actor_of(runtime._sweep)
        working, sweep._recover = sweep._recover, None  # type: ignore[assignment]
        manual_clock.advance(30)
        sweep._recover = working
        handle = runtime.session(KEY).spawn(Spawn(task="hang"))
        manual_clock.run_until_idle()
        runtime._backstage.live[handle.run_id].actor = None
        manual_clock.advance(30)
        assert ended(handle) == ("ghost_sweep", "ghost")
