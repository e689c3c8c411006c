"""Thousands of children through one durable host, and what is left of them in the process: nothing."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.actors import AsyncRuntime, FunctionRunner
from understudy.actors.live_run import LiveRun
from understudy.actors.session import NestedSession
from understudy.actors.sub_agent import SubAgentActor
from understudy.persistence import _connection
from understudy.protocol import RuntimeConfig, Spawn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from understudy.actors import AsyncSession
    from understudy.actors.runners import AsyncFunctionContext
    from understudy.persistence import Ledger, RunRecord
    from understudy.protocol import SpawnPacket

KEY = "agent:atlas:main"
ENDS = ("done", "done", "done", "fails", "killed", "late", "delegates", "kept", "blocks", "stays")
"""What becomes of them, in turn."""
_ALLOWED = {
    "threads": 32,  # of the pool for blocking calls, which grows with the most of them at a time
    "descriptors": 0,
    "tasks": 0,
    "children": 128,  # the watchdog throws out what is over once it is the greater part of its heap, and 64 at least
    "memory": 8 * 1024 * 1024,  # allocators give back whole arenas; a kilobyte a child would be more for 10,000 of them
}
"""How much more may be there after all of it than after its first fifth, while the host lives."""


@dataclass(frozen=True)
class Footprint:
    """What a process holds."""

    threads: int
    descriptors: int
    memory: int
    children: int
    """Objects of runs, of their actors and of their sessions."""
    tasks: int
    blocks: int
    """What Python's own allocator has handed out."""


def footprint() -> Footprint:
    """Now, after everything that can be given back was."""
    for _ in range(2):
        gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    kinds = (LiveRun, SubAgentActor, NestedSession)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return Footprint(
        threads=threading.active_count(),
        descriptors=sum(1 for _ in Path("/proc/self/fd").iterdir()),
        memory=pages * os.sysconf("SC_PAGE_SIZE"),
        children=sum(isinstance(each, kinds) for each in gc.get_objects()),
        tasks=len(asyncio.all_tasks()),
        blocks=sys.getallocatedblocks(),
    )


@dataclass
class Soaked:
    """What it came to."""

    before: Footprint
    after: Footprint
    runs: int = 0
    left: list[str] = field(default_factory=list)
    """What a closed host has left in the process."""
    ends: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)

    @property
    def leaked(self) -> list[str]:
        """What is more than it was."""
        before, after = self.before, self.after
        found = [
            f"{name}: {getattr(before, name)} before, {getattr(after, name)} after"
            for name, more in _ALLOWED.items()
            if getattr(after, name) > getattr(before, name) + more
        ]
        return found + self.left


async def work(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    """Come to the end that the task names."""
    context.touch(f"{packet.label}.txt")
    context.usage(input_tokens=1)
    await asyncio.sleep(0)
    if packet.task == "fails":
        raise ValueError("as asked")
    if packet.task in {"killed", "late"}:
        await asyncio.get_running_loop().create_future()
    if packet.task == "delegates":
        await (await context.spawn(Spawn(task="done", label=f"{packet.label}.below"))).result()
    if packet.task == "stays":
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
    return f"{packet.label} is done"


def block(packet: SpawnPacket, _context: object) -> str:
    """The same on a thread."""
    return f"{packet.label} is done"


async def soak(folder: Path, *, children: int, at_once: int) -> Soaked:
    """So many children, so many of them at a time, on a file; the first fifth of them is the warm-up."""
    # A page cache grows until it is full, and is none of what is looked for here.
    _connection._CACHE_KIB = 256
    empty = footprint()
    soaked = await _through_a_host(folder, children, at_once)
    await asyncio.get_running_loop().shutdown_default_executor()
    closed = footprint()
    for _ in range(500):  # idle threads leave when they notice that the pool is closed
        if closed.threads <= empty.threads:
            break
        await asyncio.sleep(0.01)
        closed = footprint()
    soaked.left = [
        f"{name}: {getattr(empty, name)} before there was a host, {getattr(closed, name)} when it had closed"
        for name in ("threads", "descriptors", "children", "tasks")
        if getattr(closed, name) != getattr(empty, name)
    ]
    return soaked


async def _through_a_host(folder: Path, children: int, at_once: int) -> Soaked:
    config = RuntimeConfig(max_children_per_agent=at_once, recent_files_max=5)
    runners = {"default": FunctionRunner(work), "blocks": FunctionRunner(block)}
    ends: Counter[str] = Counter()
    async with AsyncRuntime(folder / "agents.db", runners=runners, config=config) as runtime:
        session = await runtime.session(KEY, workspace=folder)

        async def until(numbers: Iterator[int]) -> Footprint:
            async with asyncio.TaskGroup() as places:
                for _ in range(at_once):
                    places.create_task(_some(session, numbers, ends))
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.01)  # those that ignore their end take a moment longer
            return footprint()

        before = await until(iter(range(children // 5)))
        after = await until(iter(range(children // 5, children)))
        soaked = Soaked(before, after, ends=ends)
        _judge(runtime, children, soaked)
    return soaked


async def _some(session: AsyncSession, numbers: Iterator[int], ends: Counter[str]) -> None:
    """One child after the other, as long as there are any."""
    for number in numbers:
        task = ENDS[number % len(ENDS)]
        handle = await session.spawn(
            Spawn(
                task=task,
                label=f"c{number}",
                runner="blocks" if task == "blocks" else "default",
                timeout_ms=50 if task in {"late", "stays"} else 60_000,
                cleanup="keep" if task == "kept" else "delete",
            )
        )
        if task == "killed":
            await session.kill(handle.run_id)
        result = await handle.result()
        ends[result.end_reason.value] += 1
        if task == "kept":
            await session.release(result.session_key)


def _judge(runtime: AsyncRuntime, children: int, soaked: Soaked) -> None:
    """One end, one result, one delivery and one note for each that was accepted."""
    store = runtime.store
    for cursor in _pages(store):
        for run in cursor:
            soaked.runs += 1
            if store.runs.result(run.run_id) is None:
                soaked.lost.append(f"{run.run_id} has no result")
    soaked.lost += [f"{run.run_id} has no end" for run in store.runs.unfinished()]
    soaked.lost += [f"{entry.run_id} was not delivered" for entry in store.outbox.undelivered(dead=True)]
    notes = Counter(
        stored.turn.text.partition("]")[0].rpartition(": ")[2]
        for stored in store.transcripts.turns(KEY)
        if stored.turn.text.startswith("[Subagent Result: ")
    )
    soaked.twice += [f"{label} was narrated {times} times" for label, times in notes.items() if times > 1]
    if len(notes) != children:
        soaked.lost.append(f"{children} were accepted, {len(notes)} narrated")
    soaked.lost += store.problems()


def _pages(store: Ledger) -> Iterator[list[RunRecord]]:
    cursor = None
    while True:
        page = store.runs.find(limit=500, cursor=cursor)
        yield list(page.items)
        cursor = page.cursor
        if cursor is None:
            return


def main() -> None:
    """For a process of its own."""
    with tempfile.TemporaryDirectory(prefix="understudy-soak-") as folder:
        soaked = asyncio.run(soak(Path(folder), children=int(sys.argv[1]), at_once=int(sys.argv[2])))
    sys.stdout.write(f"before {soaked.before}\nafter  {soaked.after}\nends   {dict(soaked.ends)}\n")
    told = {"runs": soaked.runs, "lost": soaked.lost, "twice": soaked.twice, "leaked": soaked.leaked}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
