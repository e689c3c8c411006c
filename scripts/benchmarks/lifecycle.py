"""A real sub-agent through the public API, in memory and durable, beside an asyncio task with a mailbox."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from _ratio import Ratio, interleaved, median_ratio, resident, told_seconds

from understudy.actors import AsyncRuntime, FunctionRunner
from understudy.protocol import RuntimeConfig, Spawn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from understudy.actors import AsyncSession

CHILDREN = 10_000
WAVE = 100
"""So many are alive at once while spawning is measured: the same for every system, driven in the same way."""
FINISHED = 20_000
WINDOW = 200
CONFIG = RuntimeConfig(max_children_per_agent=100_000)


async def _answer(_packet: object, _context: object) -> str:
    return "done"


async def _wait_a_second(_packet: object, _context: object) -> str:
    await asyncio.sleep(1)
    return "done"


async def _in_waves(one: Callable[[], Awaitable[Any]], children: int) -> float:
    """Seconds for so many children."""
    began = time.perf_counter()
    for _ in range(children // WAVE):
        await asyncio.gather(*(one() for _ in range(WAVE)))
    return time.perf_counter() - began


# -- the systems ------------------------------------------------------------------------------------------


async def _mailbox(queue: asyncio.Queue[Any], work: Callable[[], Awaitable[None]] | None = None) -> None:
    while True:
        message, answer = await queue.get()
        if answer is None:
            return
        if work is not None:
            await work()
        answer.set_result(message)


async def mailbox_child(work: Callable[[], Awaitable[None]] | None = None) -> None:
    """Spawn, message, answer, stop: what every delegation to an asyncio task is made of."""
    queue: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.create_task(_mailbox(queue, work))
    answer = asyncio.get_running_loop().create_future()
    queue.put_nowait(("hello", answer))
    await answer
    queue.put_nowait((None, None))
    await task


async def _session(runtime: AsyncRuntime) -> AsyncSession:
    return await runtime.session("agent:atlas:main", workspace=tempfile.gettempdir())


async def _sub_agent(session: AsyncSession) -> None:
    handle = await session.spawn(Spawn(task="say done", label="bench"))
    result = await handle.result()
    assert result.output == "done"


def _asyncio_children() -> float:
    return asyncio.run(_in_waves(mailbox_child, CHILDREN))


def _sub_agents(store: str | None) -> float:
    async def host() -> float:
        async with AsyncRuntime(store, runners={"default": FunctionRunner(_answer)}, config=CONFIG) as runtime:
            return await _in_waves(partial(_sub_agent, await _session(runtime)), CHILDREN)

    return asyncio.run(host())


# -- waiting ----------------------------------------------------------------------------------------------


async def _asyncio_waiting() -> None:
    await asyncio.gather(*(mailbox_child(partial(asyncio.sleep, 1)) for _ in range(CHILDREN)))


async def _sub_agents_waiting(store: str | None) -> tuple[float, int]:
    """All of them alive at once; gives the seconds, and the number of threads meanwhile."""
    runner = FunctionRunner(_wait_a_second)
    async with AsyncRuntime(store, runners={"default": runner}, config=CONFIG) as runtime:
        session = await _session(runtime)
        began = time.perf_counter()
        handles = await asyncio.gather(*(session.spawn(Spawn(task="wait", label="w")) for _ in range(CHILDREN)))
        threads = threading.active_count()
        await asyncio.gather(*(handle.result() for handle in handles))
        return time.perf_counter() - began, threads


def _waiting(runs: int) -> tuple[float, float, int]:
    """In memory ÷ bare asyncio, durable ÷ bare asyncio, and the most threads."""
    memory, durable, threads = [], [], 0
    for _ in range(runs):
        began = time.perf_counter()
        asyncio.run(_asyncio_waiting())
        bare = time.perf_counter() - began
        for ratios, store in ((memory, ":memory:"), (durable, None)):
            taken, alive = asyncio.run(_sub_agents_waiting(store))
            ratios.append(taken / bare)
            threads = max(threads, alive)
    return statistics.median(memory), statistics.median(durable), threads


# -- memory, in processes of their own --------------------------------------------------------------------


async def _memory_of_mailboxes() -> float:
    before = resident()
    queues: list[asyncio.Queue[Any]] = [asyncio.Queue() for _ in range(CHILDREN)]
    tasks = [asyncio.create_task(_mailbox(queue)) for queue in queues]
    answers = [asyncio.get_running_loop().create_future() for _ in queues]
    await asyncio.sleep(0.1)
    grown = resident() - before
    for queue in queues:
        queue.put_nowait((None, None))
    await asyncio.gather(*tasks)
    del answers
    return grown / CHILDREN


async def _memory_of_sub_agents() -> float:
    gate = asyncio.Event()

    async def wait(_packet: object, _context: object) -> str:
        await gate.wait()
        return "done"

    async with AsyncRuntime(None, runners={"default": FunctionRunner(wait)}, config=CONFIG) as runtime:
        session = await _session(runtime)
        await _sub_agent_once(session, gate)
        before = resident()
        handles = await asyncio.gather(*(session.spawn(Spawn(task="wait", label="w")) for _ in range(CHILDREN)))
        await asyncio.sleep(0.5)
        grown = resident() - before
        gate.set()
        await asyncio.gather(*(handle.result() for handle in handles))
    return grown / CHILDREN


async def _sub_agent_once(session: AsyncSession, gate: asyncio.Event) -> None:
    """What is loaded with the first child is not a child's."""
    gate.set()
    await (await session.spawn(Spawn(task="warm", label="w"))).result()
    gate.clear()


def _bytes_a_child(system: str) -> float:
    """Measured in a fresh process: what another measurement has freed does not count as room."""
    command = [sys.executable, __file__, system]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


# -- growth -----------------------------------------------------------------------------------------------


async def _growth() -> float:
    """Cost of a spawn after so many have finished ÷ at the start, medians of a window each."""
    async with AsyncRuntime(None, runners={"default": FunctionRunner(_answer)}, config=CONFIG) as runtime:
        session = await _session(runtime)
        await _in_waves(partial(_sub_agent, session), 1_000)  # warm
        start = await _costs(session)
        await _in_waves(partial(_sub_agent, session), FINISHED)
        return statistics.median(await _costs(session)) / statistics.median(start)


async def _costs(session: AsyncSession) -> list[float]:
    moments = [time.perf_counter()]
    for _ in range(WINDOW):
        await _sub_agent(session)
        moments.append(time.perf_counter())
    return [later - sooner for sooner, later in pairwise(moments)]


def measure(runs: int) -> list[Ratio]:
    """All of it."""
    taken = interleaved(
        {
            "mailbox": _asyncio_children,
            "memory": partial(_sub_agents, ":memory:"),
            "durable": partial(_sub_agents, None),
        },
        runs,
        told_seconds,
    )
    waited, waited_durable, threads = _waiting(max(1, runs // 2))
    mailbox, sub_agent = _bytes_a_child("mailbox"), _bytes_a_child("sub_agent")
    growth = statistics.median(asyncio.run(_growth()) for _ in range(max(1, runs // 2)))
    durable = statistics.median(run["durable"] for run in taken) / CHILDREN * 1e6
    return [
        Ratio("real sub-agent in memory ÷ asyncio mailbox task, 10,000", median_ratio(taken, "memory", "mailbox"), 6),
        Ratio(
            "real sub-agent, durable ÷ asyncio mailbox task, 10,000",
            median_ratio(taken, "durable", "mailbox"),
            15,
            note=f"{durable:.0f} µs each, synchronous FULL",
        ),
        Ratio(
            "10,000 sub-agents waiting 1 s, in memory: wall ÷ bare asyncio",
            waited,
            1.5,
            note=f"durable {waited_durable:.2f}",
        ),
        Ratio("threads at 10,000 live sub-agents", threads, 8),
        Ratio(
            "resident memory per live sub-agent ÷ asyncio mailbox task",
            sub_agent / mailbox,
            3,
            note=f"{sub_agent / 1024:.1f} KB and {mailbox / 1024:.1f} KB",
        ),
        Ratio("a spawn after 20,000 finished children ÷ at the start", growth, 1.2),
    ]


if __name__ == "__main__":
    print(asyncio.run(_memory_of_mailboxes() if sys.argv[1] == "mailbox" else _memory_of_sub_agents()))
