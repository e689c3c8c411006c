"""One source of time, injected everywhere, so that a day-long timeout is tested in milliseconds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractContextManager

T = TypeVar("T")


class Timer(Protocol):
    """A callback that is due at some time, until it is cancelled."""

    def cancel(self) -> None:
        """Never call it; harmless when it was called already."""


class Clock(Protocol):
    """What the runtime asks about time. Timers belong to the running event loop and fire on it."""

    def monotonic(self) -> float:
        """Seconds since some beginning; never goes back."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch: what is stored and shown."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back on this event loop when so many seconds have passed."""

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """This event loop lives by this clock: a manual one advances only when the loop is idle."""

    def detach(self, loop: asyncio.AbstractEventLoop) -> None:
        """It does no longer."""

    def work_started(self) -> None:
        """Something is under way off the event loop: a manual clock waits for it before it advances."""

    def work_finished(self) -> None:
        """That something is done, and whoever waits for it has been told. Callable from any thread."""

    def unattended(self) -> AbstractContextManager[None]:
        """While this lasts nobody advances the clock by hand: a manual one moves by itself when all is idle."""


class SystemClock:
    """Real time."""

    def monotonic(self) -> float:
        """The machine's own monotonic clock."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """The machine's own wall clock."""
        return time.time_ns() // 1_000_000

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """A timer of the running event loop."""
        return asyncio.get_running_loop().call_later(max(seconds, 0.0), callback)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Real time needs to know no loop."""

    def detach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Real time needs to know no loop."""

    def work_started(self) -> None:
        """Real time waits for nobody."""

    def work_finished(self) -> None:
        """Real time waits for nobody."""

    def unattended(self) -> AbstractContextManager[None]:
        """Real time always moves by itself."""
        return contextlib.nullcontext()


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait on the running loop until ``clock`` has moved on by so many seconds."""
    woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    timer = clock.call_later(seconds, wake)
    try:
        await woken
    finally:
        timer.cancel()


async def within(clock: Clock, seconds: float, work: Coroutine[object, object, T]) -> T:
    """The outcome of ``work``, or TimeoutError after so many seconds, when ``work`` has been cancelled."""
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = True
        task.cancel()

    task = asyncio.ensure_future(work)
    timer = clock.call_later(seconds, expire)
    try:
        return await task
    except asyncio.CancelledError:
        # Ours only if the timer struck and nobody cancelled the caller as well.
        current = asyncio.current_task()
        if expired and not (current is not None and current.cancelling()):
            raise TimeoutError(f"not done within {seconds} seconds") from None
        task.cancel()
        raise
    finally:
        timer.cancel()
