"""Sub-agents with a model of their own: beside the agent SDKs, and ten thousand that wait for their model at once.

Beside the SDKs: a sub-agent as a tool, a hundred at once. A parent's model calls a tool, the call runs a child agent
with a model of its own, its text goes back to the parent, which answers: that is what an SDK does for one sub-agent.
Ours is the durable child. Two lines more take the parents out of it: in one, ours are called by a parent's model in
just the same way; in the other, one parent calls for a hundred children in one answer, so that its own cost is shared
by all of them. Everybody's model is a function that answers at once,
everybody's child has a tool on offer, everybody is warm and has made its agents before the watch starts; tracing and
telemetry are off. The peers are used as their own pages show it, and keep nothing: what they did is gone with the
process. Ours is durable, in a real file with SQLite's synchronous FULL: acceptance, turns, usage, end and merge of
each child are committed before anybody hears of them. The last two lines put both in the same place: our children in
memory, where the peers' are, and LangGraph's in a file, each step committed (its SQLite checkpointer), where ours are.

Waiting: ten thousand children are held by their model, all at the same time, and then answered all at once.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from _ratio import Ratio, interleaved, median_ratio, resident, told_seconds
from lifecycle import mailbox_child

from understudy.actors import AsyncRuntime, ModelRunner
from understudy.actors._kernel import lag
from understudy.protocol import RuntimeConfig, Spawn
from understudy.protocol.model import TextDelta, ToolCall, UsageReport
from understudy.protocol.usage import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from understudy.actors import AsyncSession
    from understudy.protocol.model import ModelEvent, ModelRequest

PEERS = {
    "OpenAI Agents": "peers.openai_agents",
    "LangGraph": "peers.langgraph_agents",
    "Pydantic AI": "peers.pydantic_ai_agents",
}
CHILDREN = 100
WAVES = 5
"""So many times a hundred in one run: a hundred alone are over in a few milliseconds."""
WAITING = 10_000
HELD_SECONDS = 1.0
"""So long the model keeps everybody once the last has asked."""
CONFIG = RuntimeConfig(max_children_per_agent=100_000)
CONSUMED = UsageReport(Usage(input_tokens=10, output_tokens=1))

os.environ.update(OPENAI_AGENTS_DISABLE_TRACING="1", LANGSMITH_TRACING="false", LANGCHAIN_TRACING_V2="false")


# -- models -----------------------------------------------------------------------------------------------


class Instant:
    """Answers at once."""

    async def complete(self, _request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """One word, and what it cost."""
        yield TextDelta("done")
        yield CONSUMED


class Delegating:
    """Calls ``sessions_spawn``, then answers."""

    async def complete(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """One call, or after its result one word."""
        if request.turns[-1].role == "tool":
            yield TextDelta("done")
        else:
            arguments = {"task": "say done", "label": "bench", "agent": "child", "wait": True}
            yield ToolCall("c1", "sessions_spawn", arguments)
        yield CONSUMED


class Holding:
    """Keeps everybody until the gate is opened."""

    def __init__(self) -> None:
        self.asked = 0
        self.everybody = asyncio.Event()
        self.gate = asyncio.Event()

    async def complete(self, _request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """One word, after the wait."""
        await self.hold()
        yield TextDelta("done")
        yield CONSUMED

    async def hold(self) -> None:
        """Wait for the gate; the last to come says that everybody is here."""
        self.asked += 1
        if self.asked == WAITING:
            self.everybody.set()
        await self.gate.wait()


# -- beside the SDKs --------------------------------------------------------------------------------------


async def _in_waves(wave: Callable[[], Awaitable[object]]) -> float:
    """Seconds of so many waves, after one to get warm."""
    await wave()
    began = time.perf_counter()
    for _ in range(WAVES):
        await wave()
    return time.perf_counter() - began


async def _sub_agent(session: AsyncSession) -> None:
    handle = await session.spawn(Spawn(task="say done", label="bench", runner="child"))
    result = await handle.result()
    assert result.output == "done"


def _runtime(store: str | None) -> AsyncRuntime:
    runners = {"parent": ModelRunner(Delegating()), "child": ModelRunner(Instant())}
    return AsyncRuntime(store, runners=runners, config=CONFIG)


async def _session(runtime: AsyncRuntime, name: str = "main") -> AsyncSession:
    return await runtime.session(f"agent:atlas:{name}", workspace=tempfile.gettempdir(), runner="parent")


async def _spawned(store: str | None) -> float:
    async with _runtime(store) as runtime:
        session = await _session(runtime)
        return await _in_waves(lambda: asyncio.gather(*(_sub_agent(session) for _ in range(CHILDREN))))


async def _prompted() -> float:
    async with _runtime(None) as runtime:
        # A conversation of its own each time, as the peers begin one, opened before the watch starts as their agents
        # are: nothing is carried along.
        sessions = iter([await _session(runtime, f"s{number}") for number in range((WAVES + 1) * CHILDREN)])

        async def delegation() -> None:
            reply = await next(sessions).prompt("go")
            assert reply.output == "done"

        return await _in_waves(lambda: asyncio.gather(*(delegation() for _ in range(CHILDREN))))


async def _langgraph_durable() -> float:
    langgraph = importlib.import_module(PEERS["LangGraph"])
    with tempfile.TemporaryDirectory() as folder:
        async with langgraph.durable(CHILDREN, f"{folder}/checkpoints.db") as wave:
            return await _in_waves(wave)


def _peers(children: int) -> dict[str, Callable[[], Awaitable[None]]]:
    """Their parents, each with so many children; a peer that is not there is no comparison."""
    parents = {}
    for name, module in PEERS.items():
        try:
            parents[name] = importlib.import_module(module).delegation(children)
        except ImportError as error:
            raise SystemExit(f"{name} is missing ({error}): pip install --editable '.[bench]'") from None
    return parents


def _timed(wave: Callable[[], Awaitable[object]]) -> float:
    return asyncio.run(_in_waves(wave))


def _together(delegation: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[object]]:
    return lambda: asyncio.gather(*(delegation() for _ in range(CHILDREN)))


def _beside_the_peers(runs: int) -> list[Ratio]:
    theirs = {name: partial(_timed, _together(delegation)) for name, delegation in _peers(1).items()}
    shared = {f"{name}, one parent": partial(_timed, wave) for name, wave in _peers(CHILDREN).items()}
    others = {
        "durable": lambda: asyncio.run(_spawned(None)),
        "prompted": lambda: asyncio.run(_prompted()),
        "memory": lambda: asyncio.run(_spawned(":memory:")),
        "LangGraph, durable": lambda: asyncio.run(_langgraph_durable()),
    }
    taken = interleaved(theirs | shared | others, runs, told_seconds)
    micros = {name: statistics.median(run[name] for run in taken) / WAVES / CHILDREN * 1e6 for name in taken[0]}
    fastest, alone = (min(systems, key=lambda name: micros[name]) for systems in (theirs, shared))
    each = ", ".join(f"{name} {median_ratio(taken, name, 'durable'):.1f}" for name in theirs)

    def against(name: str, peer: str, ours: str, bar: float, note: str = "") -> Ratio:
        told = f"{note}{micros[peer]:.0f} and {micros[ours]:.0f} µs"
        return Ratio(name, median_ratio(taken, peer, ours), bar, at_most=False, note=told)

    return [
        against(
            f"fastest agent SDK, a sub-agent as a tool ÷ our durable child, {CHILDREN}", fastest, "durable", 10,
            f"{each}; ",
        ),
        # Without a bar in the design: these keep us from fooling ourselves, and their bars only from getting worse.
        against("  the same, ours called by a parent's model too, durable", fastest, "prompted", 1, f"{fastest}, "),
        against("  a child alone, its parent's cost shared by a hundred ÷ ours", alone, "durable", 3, f"{alone}, "),
        against("  fastest agent SDK, a sub-agent as a tool ÷ our child in memory", fastest, "memory", 10),
        against("  LangGraph with its SQLite checkpoints ÷ our durable child", "LangGraph, durable", "durable", 10),
    ]  # fmt: skip


# -- ten thousand at once ---------------------------------------------------------------------------------


class Held(NamedTuple):
    """What ten thousand that wait at once did to their process."""

    seconds: float
    worst_lag: float
    threads: int
    bytes_each: float


async def _held(model: Holding, children: Callable[[], Awaitable[object]]) -> Held:
    """All ask, all are held, all are answered at once."""
    gauge = lag.LagGauge(asyncio.get_running_loop())
    before, began = resident(), time.perf_counter()
    everybody = asyncio.ensure_future(children())
    await model.everybody.wait()
    await asyncio.sleep(HELD_SECONDS)
    threads, grown = threading.active_count(), resident() - before
    model.gate.set()
    await everybody
    gauge.close()
    return Held(time.perf_counter() - began, gauge.worst, threads, grown / WAITING)


async def _bare() -> Held:
    """The least that can wait: a task with a mailbox."""
    model = Holding()
    return await _held(model, lambda: asyncio.gather(*(mailbox_child(model.hold) for _ in range(WAITING))))


async def _sub_agents(store: str | None) -> Held:
    model = Holding()
    runners = {"parent": ModelRunner(model), "child": ModelRunner(model)}
    async with AsyncRuntime(store, runners=runners, config=CONFIG) as runtime:
        session = await _session(runtime)
        held = await _held(model, lambda: asyncio.gather(*(_sub_agent(session) for _ in range(WAITING))))
        return held._replace(worst_lag=runtime.lag.worst)


SYSTEMS: dict[str, Callable[[], Coroutine[None, None, Held]]] = {
    "bare": _bare,
    "memory": partial(_sub_agents, ":memory:"),
    "durable": partial(_sub_agents, None),
}


def _in_a_process(system: str) -> Held:
    """Measured in a fresh process: what another measurement has freed does not count as room."""
    told = subprocess.run([sys.executable, __file__, system], check=True, capture_output=True, text=True).stdout
    return Held(*json.loads(told))


def _waiting(runs: int) -> list[Ratio]:
    taken = [{name: _in_a_process(name) for name in SYSTEMS} for _ in range(runs)]

    def ratio(of: Callable[[Held], float], system: str) -> float:
        return statistics.median(of(run[system]) / of(run["bare"]) for run in taken)

    def middle(of: Callable[[Held], float], system: str) -> float:
        return statistics.median(of(run[system]) for run in taken)

    wall, stall, memory = (attrgetter(name) for name in ("seconds", "worst_lag", "bytes_each"))
    return [
        # Nothing on one loop can be prompter than the bare tasks: ten thousand that wake together run in one go there
        # too. So the limit of our lag is theirs, times what a child's steps cost more.
        Ratio(
            "10,000 answered at once: worst loop lag ÷ bare asyncio's",
            ratio(stall, "durable"),
            10,
            note=f"{middle(stall, 'durable') * 1e3:.0f} ms of {middle(wall, 'durable'):.1f} s, durable; "
            f"in memory {middle(stall, 'memory') * 1e3:.0f} ms of {middle(wall, 'memory'):.1f} s; "
            f"bare {middle(stall, 'bare') * 1e3:.0f} ms",
        ),
        Ratio(
            "10,000 model children held for 1 s, in memory: wall ÷ bare asyncio",
            ratio(wall, "memory"),
            4,
            note=f"durable {ratio(wall, 'durable'):.2f}",
        ),
        Ratio(
            "threads at 10,000 model children that wait",
            max(run[name].threads for run in taken for name in ("memory", "durable")),
            8,
        ),
        Ratio(
            "resident memory per model child that waits ÷ asyncio mailbox task",
            ratio(memory, "durable"),
            3,
            note=f"{middle(memory, 'durable') / 1024:.1f} KB and {middle(memory, 'bare') / 1024:.1f} KB",
        ),
    ]


def measure(runs: int) -> list[Ratio]:
    """Both."""
    return [*_beside_the_peers(runs), *_waiting((runs + 1) // 2)]


if __name__ == "__main__":
    # A hundred times a second instead of twice: this run is short, and its stalls are what is looked for.
    lag._EVERY_SECONDS = 0.01  # noqa: SLF001
    print(json.dumps(asyncio.run(SYSTEMS[sys.argv[1]]())))
