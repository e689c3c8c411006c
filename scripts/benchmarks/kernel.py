"""The bare actor: spawn, message, answer, stop, beside an asyncio task with a mailbox and a ThreadingActor."""

from __future__ import annotations

import asyncio
import statistics
import threading
from typing import Any

import pykka
from _ratio import Ratio, interleaved, median_ratio

from understudy.actors import AsyncRuntime, LoopActor

CHILDREN = 10_000
WAVE = 100
"""So many are alive at once while spawning is measured: the same for every system."""


class BareActor(LoopActor):
    """The least an actor can be; ephemeral, so not in the global registry."""

    registered = False

    def on_receive(self, message: Any) -> Any:
        """Answer with the message."""
        return message


class ThreadActor(pykka.ThreadingActor):
    """The same on pykka's own runtime."""

    def on_receive(self, message: Any) -> Any:
        """Answer with the message."""
        return message


async def _mailbox(queue: asyncio.Queue[Any]) -> None:
    while True:
        message, answer = await queue.get()
        if answer is None:
            return
        answer.set_result(message)


async def _asyncio_children() -> None:
    loop = asyncio.get_running_loop()
    for _ in range(CHILDREN // WAVE):
        queues: list[asyncio.Queue[Any]] = [asyncio.Queue() for _ in range(WAVE)]
        tasks = [asyncio.create_task(_mailbox(queue)) for queue in queues]
        answers = [loop.create_future() for _ in queues]
        for queue, answer in zip(queues, answers, strict=True):
            queue.put_nowait(("hello", answer))
        for answer in answers:
            await answer
        for queue in queues:
            queue.put_nowait((None, None))
        for task in tasks:
            await task


async def _our_children() -> None:
    async with AsyncRuntime() as runtime:
        for _ in range(CHILDREN // WAVE):
            refs = [runtime.start_actor(BareActor) for _ in range(WAVE)]
            for answer in [ref.ask("hello", block=False) for ref in refs]:
                await answer
            for stop in [ref.ask(pykka.messages._ActorStop(), block=False) for ref in refs]:  # noqa: SLF001
                await stop


def _thread_children() -> None:
    for _ in range(CHILDREN // WAVE):
        refs = [ThreadActor.start() for _ in range(WAVE)]
        for answer in [ref.ask("hello", block=False) for ref in refs]:
            answer.get()
        for stop in [ref.stop(block=False) for ref in refs]:
            stop.get()


async def _idle_threads() -> int:
    async with AsyncRuntime() as runtime:
        refs = [runtime.start_actor(BareActor) for _ in range(CHILDREN)]
        await refs[-1].ask("hello", block=False)
        return threading.active_count()


def measure(runs: int = 5) -> list[Ratio]:
    """The kernel's lines of the bar."""
    taken = interleaved(
        {
            "asyncio": lambda: asyncio.run(_asyncio_children()),
            "ours": lambda: asyncio.run(_our_children()),
            "threads": _thread_children,
        },
        runs,
    )
    micros = statistics.median(run["ours"] for run in taken) / CHILDREN * 1e6
    return [
        Ratio("bare actor spawn ÷ asyncio mailbox task, 10k", median_ratio(taken, "ours", "asyncio"), 2.0,
              note=f"ours {micros:.0f} µs"),
        Ratio("pykka ThreadingActor ÷ our bare spawn", median_ratio(taken, "threads", "ours"), 4.0, at_most=False),
        Ratio("threads at 10k idle children", asyncio.run(_idle_threads()), 8),
    ]  # fmt: skip
