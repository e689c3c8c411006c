"""What the tests of spawning start from: a runtime on a manual clock, functions as children, and a host that dies."""

from __future__ import annotations

import asyncio
import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any

from understudy.actors import FunctionRunner, Runtime
from understudy.actors.testing import ManualClock
from understudy.persistence import Store
from understudy.protocol import RuntimeConfig, Spawn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from understudy.actors.runners import AsyncFunctionContext, Runner
    from understudy.persistence import StoredTurn
    from understudy.protocol import SpawnPacket
    from understudy.protocol.commit_points import CommitPoint

MAIN = "agent:atlas:main"

# Longer than any host stays believed without a heartbeat, with the default configuration.
_AN_HOUR = 3_600


async def answer(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    """A child that does what it is told at once."""
    return f"done: {packet.task}"


async def hang(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    """A child that never comes back."""
    await asyncio.get_running_loop().create_future()
    return "never"


async def delegate(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    """A child that lets a grandchild do its task, by the runner named ``grandchild``, and waits for it."""
    handle = await context.spawn(Spawn(task=packet.task, label=packet.label, runner="grandchild"))
    return (await handle.result()).output or "nothing"


def a_host(
    clock: ManualClock,
    default: Callable[..., Any] | Runner = answer,
    *,
    store: Path | None = None,
    config: Mapping[str, Any] | None = None,
    runners: Mapping[str, Callable[..., Any] | Runner] | None = None,
    busy_timeout_ms: int | None = None,
    **options: Any,
) -> Runtime:
    """A runtime whose children are functions; enter it. ``busy_timeout_ms`` is how long it waits for a lock."""
    everybody = {"default": default, "answer": answer, "hang": hang, "delegate": delegate, **(runners or {})}
    runtime = Runtime(
        store,
        clock=clock,
        config=RuntimeConfig(**(config or {})),
        runners={name: who if hasattr(who, "run") else FunctionRunner(who) for name, who in everybody.items()},
        **options,
    )
    if busy_timeout_ms is not None:
        hook, patience = options.get("commit_hook"), busy_timeout_ms
        runtime._open_store = partial(
            Store.open, store, wall_ms=clock.wall_ms, busy=clock, commit_hook=hook, busy_timeout_ms=patience
        )
    return runtime


def durable(runtime: Runtime) -> Store:
    """The runtime's store, which is one on disk."""
    store = runtime.store
    assert isinstance(store, Store)
    return store


def died(runtime: Runtime, folder: Path) -> Path:
    """The store as it would be had the host died this very moment."""
    copy = folder / f"after-the-crash-{runtime.clock.wall_ms()}.db"
    with sqlite3.connect(durable(runtime).path) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    source.close()
    target.close()
    return copy


def later() -> ManualClock:
    """A clock of the next day, when a host that has said nothing since is dead."""
    clock = ManualClock()
    clock.advance(_AN_HOUR)
    return clock


class LockAfter:
    """A commit hook that has another connection take the write lock right after a commit point."""

    def __init__(self, point: CommitPoint) -> None:
        self.point = point
        self.armed = True
        self.path: Path | None = None
        self._other: sqlite3.Connection | None = None

    def __call__(self, point: CommitPoint, /) -> None:
        """The commit hook."""
        if point == self.point and self.armed and self._other is None:
            self.lock()

    def lock(self) -> None:
        """Nobody else can write from now on."""
        assert self.path is not None
        self._other = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self._other.execute("BEGIN IMMEDIATE")

    def lift(self) -> None:
        """All can write again, and for good."""
        self.armed = False
        if self._other is not None:
            self._other.close()
            self._other = None


def notes(turns: list[StoredTurn]) -> list[str]:
    """The first line of every note about a result in a transcript."""
    return [turn.turn.text.splitlines()[0] for turn in turns if turn.turn.text.startswith("[Subagent Result")]


def running(runtime: Runtime) -> int:
    """Slots in use."""
    return runtime._backstage.running
