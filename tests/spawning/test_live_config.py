"""Every key of the configuration is live: each changes what happens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from _stage import MAIN, a_host, answer, died, hang

from understudy.actors import ModelRunner, NotSentError
from understudy.actors.testing import ManualClock, ScriptedModel
from understudy.protocol import RuntimeConfig, Spawn, SpawnRejected
from understudy.protocol.model import Turn
from understudy.protocol.runner import Said

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from understudy.actors.runners import AsyncFunctionContext, RunContext
    from understudy.protocol import SpawnPacket, SubAgentResult
    from understudy.protocol.commit_points import CommitPoint
    from understudy.protocol.runner import RunnerEvent

    Config = dict[str, Any]
    Scene = Callable[[Config, Path], object]

# Read by what comes later: results and their cast, what a child inherits, the model's turn loop.
OF_LATER_ISSUES = {
    "objective_reinforcement",
}


async def spend(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    """Uses ten tokens and a dollar."""
    context.usage(input_tokens=10, cost_usd=1.0)
    await asyncio.sleep(0)
    return "spent"


async def nest(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    """Goes as deep as it may, and tells how deep that is."""
    try:
        return (await (await context.spawn(Spawn(task="deeper"))).result()).output
    except SpawnRejected:
        return f"depth {packet.depth}"


def outcomes(config: Config, spawns: list[Spawn], *, seconds: float = 0, default: Any = answer) -> list[str]:
    """What becomes of these spawns: refused, how they ended, or what they still do after some time."""
    clock = ManualClock()
    told: list[str] = []
    with a_host(clock, default, config=config) as runtime:
        session = runtime.session(MAIN)
        runs = []
        for spawn in spawns:
            try:
                runs.append(session.spawn(spawn).run_id)
            except SpawnRejected as refusal:
                told.append(refusal.rejection.reason)
            clock.run_until_idle()
        clock.advance(seconds)
        for run_id in runs:
            record = runtime.store.runs.get(run_id)
            assert record is not None
            facts = record.facts
            told.append(facts.failure.kind if facts.failure else facts.status)
    return told


def crowd(config: Config, _: Path) -> object:
    """Seven children that hang, after a minute."""
    return outcomes(config, [Spawn(task="x")] * 7, seconds=60, default=hang)


def depth(config: Config, _: Path) -> object:
    """The answer of the deepest child."""
    with a_host(ManualClock(), nest, config=config) as runtime:
        return runtime.session(MAIN).spawn(Spawn(task="x")).result(timeout=30).output


def who(config: Config, _: Path) -> object:
    """Two agents."""
    return outcomes(config, [Spawn(task="x", runner=name) for name in ("default", "answer")])


def ends_after(config: Config, _: Path) -> object:
    """When a child that hangs without a word ends, in steps of five seconds."""
    clock = ManualClock()
    with a_host(clock, hang, config=config) as runtime:
        handle = runtime.session(MAIN).spawn(Spawn(task="x"))
        for passed in range(0, 700, 5):
            if handle.status != "running":
                return passed
            clock.advance(5)
    return "never"


def budget(config: Config, _: Path) -> object:
    """Three children one after the other, each of ten tokens and a dollar."""
    return outcomes(config, [Spawn(task="x")] * 3, default=spend)


def long_output(config: Config, _: Path) -> object:
    """How long the result of a child that says a lot is."""

    async def talk(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        return "word " * 10_000

    with a_host(ManualClock(), talk, config=config) as runtime:
        return len(runtime.session(MAIN).spawn(Spawn(task="x")).result(timeout=30).output)


def condensed(config: Config, _: Path) -> object:
    """At which level a short result comes back, with a model that could condense it."""
    summary = '{"task_complete": true, "summary": "short", "confidence": 1}'
    with a_host(ManualClock(), config=config, summarizer=ScriptedModel([summary])) as runtime:
        return runtime.session(MAIN).spawn(Spawn(task="x")).result(timeout=30).condensation.level


def file_kept(config: Config, folder: Path) -> object:
    """Whether the result's file is still there after two hours."""
    clock = ManualClock()
    with a_host(clock, config={"ghost_sweep_interval_ms": 600_000, **config}, store=folder / "s.db") as runtime:
        result = runtime.session(MAIN).spawn(Spawn(task="x")).result(timeout=30)
        clock.advance(7_200)
        return runtime.store.results.path(result.session_key, result.run_id).exists()


def note(config: Config, _: Path) -> object:
    """The first line of what the parent reads."""
    with a_host(ManualClock(), config=config) as runtime:
        session = runtime.session(MAIN)
        session.spawn(Spawn(task="x")).result(timeout=30)
        return session.transcript()[0].turn.text.splitlines()[0]


def files(config: Config, folder: Path) -> object:
    """How many of twenty touched files the parent keeps in view."""

    async def touch(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        for number in range(20):
            context.touch(f"{number}")
        return "done"

    with a_host(ManualClock(), touch, config=config) as runtime:
        session = runtime.session(MAIN, workspace=folder)
        session.spawn(Spawn(task="x")).result(timeout=30)
        return len(session.working_context.recent_files)


def steps(config: Config, _: Path) -> object:
    """How a child of five steps ends."""

    class Stepping:
        async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
            for number in range(5):
                yield Said(Turn("assistant", f"{number}"))

    return outcomes(config, [Spawn(task="x")], default=Stepping())


def suspected(config: Config, _: Path) -> object:
    """When, in steps of ten seconds, a silent child is first suspected."""
    clock = ManualClock()
    with a_host(clock, hang, config=config) as runtime:
        events = runtime.events(names=["session:sub_agent_ghost_suspected"])
        runtime.session(MAIN).spawn(Spawn(task="x"))
        for passed in range(0, 300, 10):
            if events.poll():
                return passed
            clock.advance(10)
    return "never"


def woken(config: Config, _: Path) -> object:
    """When, by the clock, the parent is woken."""
    clock = ManualClock()
    times: list[float] = []

    def on_results(results: tuple[SubAgentResult, ...]) -> None:
        times.append(clock.monotonic())

    with a_host(clock, config=config) as runtime:
        runtime.session(MAIN, on_results=on_results).spawn(Spawn(task="x", announce=True)).result(timeout=30)
        clock.advance(60)
    return times


def merges(config: Config, _: Path) -> object:
    """When, by the clock, a merge that always fails is tried, and whether it was given up within ten minutes."""
    clock = ManualClock()
    times: list[float] = []

    def fail(point: CommitPoint, /) -> None:
        if point == "merge.before":
            times.append(clock.monotonic())
            raise OSError("no")

    with a_host(clock, config={"ghost_sweep_interval_ms": 600_000, **config}, commit_hook=fail) as runtime:
        runtime.session(MAIN).spawn(Spawn(task="x"))
        clock.advance(600)
        return times, len(runtime.dead_letters())


def restarts(config: Config, folder: Path) -> object:
    """The fate of a run whose host dies, and dies again ten seconds after the restart."""
    seen = []
    clock = ManualClock()
    store = None
    for _ in range(4):
        with a_host(clock, hang, config={"max_run_timeout_ms": 86_400_000, "per_step_timeout_ms": 86_400_000, **config},
                    store=store) as runtime:  # fmt: skip
            if store is None:
                runtime.session(MAIN).spawn(Spawn(task="x"))
            clock.advance(10)
            (record,) = runtime.runs().items
            seen.append((record.facts.status, record.facts.generation))
            store = died(runtime, folder)
        clock = _next_life(clock)
    return seen


def handed_down(config: Config, folder: Path) -> object:
    """What the child of a talkative parent is told."""
    models = {"default": ScriptedModel(["x" * 4_000, "in short: " + "word " * 1_000]), "child": ScriptedModel(["done"])}
    with a_host(ManualClock(), config=config, runners={n: ModelRunner(m) for n, m in models.items()}) as runtime:
        session = runtime.session(MAIN, workspace=folder)
        session.prompt("talk")
        session.spawn(Spawn(task="x", runner="child")).result(timeout=30)
    return models["child"].requests[0].turns[1].text


def _next_life(clock: ManualClock) -> ManualClock:
    """Another clock, later than the last by as long as a host is believed to live."""
    following = ManualClock()
    following.advance(clock.monotonic() + 200)
    return following


def told_more(config: Config, _: Path) -> object:
    """Whether a kept child can be followed up."""
    with a_host(ManualClock(), config=config) as runtime:
        session = runtime.session(MAIN)
        key = session.spawn(Spawn(task="x", cleanup="keep")).result(timeout=30).session_key
        try:
            session.follow_up(key, "more")
        except NotSentError as error:
            return str(error).replace(key, "it")
    return "told"


LIVE: dict[str, tuple[Scene, Config, Config]] = {
    # key: what to look at, one setting, another
    "max_spawn_depth": (depth, {"max_spawn_depth": 3}, {"max_spawn_depth": 5}),
    "max_children_per_agent": (crowd, {}, {"max_children_per_agent": 6}),
    "max_queued_per_agent": (crowd, {}, {"max_queued_per_agent": 1}),
    "queue_timeout_ms": (crowd, {"max_queued_per_agent": 9}, {"max_queued_per_agent": 9, "queue_timeout_ms": 9_000}),
    "allow_agents": (who, {}, {"allow_agents": ("answer",)}),
    "max_total_children": (crowd, {}, {"max_total_children": 2}),
    "max_result_tokens": (long_output, {}, {"max_result_tokens": 100}),
    "condensation_strategy": (condensed, {}, {"condensation_strategy": "always"}),
    "narrative_casting": (note, {}, {"narrative_casting": False}),
    "result_retention_ms": (file_kept, {}, {"result_retention_ms": 3_600_000}),
    "result_tag_prefix": (note, {}, {"result_tag_prefix": "Report"}),
    "include_parent_history": (handed_down, {}, {"include_parent_history": "summary"}),
    "parent_summary_max_tokens": (handed_down, {"include_parent_history": "summary"},
                                  {"include_parent_history": "summary", "parent_summary_max_tokens": 200}),
    "inherit_context": (handed_down, {}, {"inherit_context": False}),
    "tail_chars": (handed_down, {}, {"tail_chars": 100}),
    "recent_files_max": (files, {}, {"recent_files_max": 3}),
    "max_run_timeout_ms": (ends_after, {}, {"max_run_timeout_ms": 20_000}),
    "per_step_timeout_ms": (ends_after, {}, {"per_step_timeout_ms": 1_000}),
    "max_steps": (steps, {}, {"max_steps": 3}),
    "ghost_sweep_interval_ms": (suspected, {}, {"ghost_sweep_interval_ms": 200_000}),
    "ghost_grace_ms": (suspected, {}, {"ghost_grace_ms": 40_000}),
    "idle_timeout_ms": (ends_after, {}, {"idle_timeout_ms": 30_000}),
    "first_token_timeout_ms": (ends_after, {}, {"first_token_timeout_ms": 40_000}),
    "announce_debounce_ms": (woken, {}, {"announce_debounce_ms": 5_000}),
    "delivery_max_attempts": (merges, {}, {"delivery_max_attempts": 2}),
    "delivery_backoff_ms": (merges, {}, {"delivery_backoff_ms": 3_000}),
    "delivery_max_age_ms": (merges, {}, {"delivery_max_age_ms": 2_000}),
    "send_rules": (told_more, {}, {"send_rules": ("deny agent:",)}),
    "run_token_budget": (budget, {}, {"run_token_budget": 5}),
    "run_cost_budget_usd": (budget, {}, {"run_cost_budget_usd": 0.5}),
    "tree_token_budget": (budget, {}, {"tree_token_budget": 15}),
    "tree_cost_budget_usd": (budget, {}, {"tree_cost_budget_usd": 1.5}),
    "restart_policy": (restarts, {}, {"restart_policy": "resume"}),
    "max_restarts": (restarts, {"restart_policy": "resume", "restart_window_ms": 900_000},
                     {"restart_policy": "resume", "restart_window_ms": 900_000, "max_restarts": 1}),
    "restart_window_ms": (restarts, {"restart_policy": "resume", "max_restarts": 1},
                          {"restart_policy": "resume", "max_restarts": 1, "restart_window_ms": 900_000}),
}  # fmt: skip


def test_every_key_is_live_now_or_belongs_to_a_later_issue() -> None:
    """A key that nothing reads is a defect: it has to be named here."""
    assert set(LIVE) | OF_LATER_ISSUES == set(RuntimeConfig.model_fields)
    assert not set(LIVE) & OF_LATER_ISSUES


@pytest.mark.parametrize("key", LIVE)
def test_a_key_changes_what_happens(key: str, tmp_path: Path) -> None:
    """The same scene with the key set in two ways ends differently, and the same way twice."""
    scene, one, other = LIVE[key]
    assert {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)} == {key}
    seen = []
    for number, config in enumerate((one, other, other)):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        seen.append(scene(config, folder))
    assert seen[0] != seen[1]
    assert seen[1] == seen[2]
