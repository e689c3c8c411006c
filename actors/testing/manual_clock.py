"""A clock that moves only when a test says so, and only when nothing is in flight."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from understudy.actors._kernel.future import on_actor_loop
from understudy.actors.testing.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# 2026-01-01T00:00:00Z: a date a person recognises in a failing test.
_EPOCH_MS = 1_767_225_600_000

# How long an unattended clock waits for blocking work before it moves on without it.
_UNATTENDED_PATIENCE = 1.0


class ClockStuckError(AssertionError):
    """The clock cannot advance because something stays in flight."""


class _ManualTimer:
    __slots__ = ("callback", "cancelled", "loop")

    def __init__(self, callback: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self.callback = callback
        self.loop = loop
        self.cancelled = False

    def cancel(self) -> None:
        """Never call it."""
        self.cancelled = True


class ManualClock:
    """Time for tests: a day passes in milliseconds, and always in the same order.

    `advance` fires what falls due one timer at a time, earliest first and of equals the one set first; between
    two timers everything they set off is finished: messages handled, blocking calls returned, writes committed.

    Example:
        >>> from understudy.actors import Runtime
        >>> clock = ManualClock()
        >>> with Runtime(clock=clock):
        ...     clock.advance(86_400)
        >>> clock.monotonic()
        86400.0
    """

    def __init__(self, *, patience: float = 30.0) -> None:
        """``patience``: real seconds to wait for what is in flight before `ClockStuckError` names it."""
        self._patience = patience
        self._now = 0.0
        self._timers: list[tuple[float, int, _ManualTimer]] = []
        self._order = itertools.count()
        self._loops: Counter[asyncio.AbstractEventLoop] = Counter()
        self._lock = threading.Lock()
        self._under_way = 0
        self._changed = threading.Condition(self._lock)

    # -- what the runtime asks ------------------------------------------------------------------------

    def monotonic(self) -> float:
        """Seconds the test has let pass."""
        return self._now

    def wall_ms(self) -> int:
        """The same as a date: it begins with the year 2026."""
        return _EPOCH_MS + round(self._now * 1000)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _ManualTimer:
        """A timer of the running event loop, fired by `advance`."""
        timer = _ManualTimer(callback, asyncio.get_running_loop())
        with self._lock:
            heapq.heappush(self._timers, (self._now + max(seconds, 0.0), next(self._order), timer))
        return timer

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for this loop to be idle before advancing."""
        if not hasattr(loop, "_ready"):
            raise TypeError(f"ManualClock needs asyncio's own event loop, not {type(loop).__name__}")
        self._loops[loop] += 1

    def detach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do so no longer."""
        self._loops -= Counter([loop])

    def work_started(self) -> None:
        """Blocking work began: time stands still until it ends."""
        with self._lock:
            self._under_way += 1

    def work_finished(self) -> None:
        """It ended, and its waiter is on the loop's list."""
        with self._lock:
            self._under_way -= 1
            self._changed.notify_all()

    @contextlib.contextmanager
    def unattended(self) -> Iterator[None]:
        """Move by itself, from timer to timer, whenever all is idle; on the running loop."""
        mover = asyncio.get_running_loop().create_task(self._move_alone())
        try:
            yield
        finally:
            mover.cancel()

    # -- what a test asks -----------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let so much time pass, and return when all it set off is done."""
        self._drive_from_thread(self._now + seconds)

    async def advance_async(self, seconds: float) -> None:
        """The same from the event loop, for tests of `AsyncRuntime`."""
        await self._drive(self._now + seconds)

    def run_until_idle(self) -> None:
        """Let no time pass, but everything finish that can without."""
        self._drive_from_thread(self._now)

    async def run_until_idle_async(self) -> None:
        """The same from the event loop."""
        await self._drive(self._now)

    def gate(self) -> Gate:
        """A gate that a blocking function can wait at without holding up time: a hang, for tests."""
        return Gate(self)

    @property
    def next_timer(self) -> float | None:
        """When the next timer falls due, in seconds from now."""
        with self._lock:
            while self._timers and self._timers[0][2].cancelled:
                heapq.heappop(self._timers)
            return self._timers[0][0] - self._now if self._timers else None

    # -- how it moves ---------------------------------------------------------------------------------

    def _drive_from_thread(self, target: float) -> None:
        if on_actor_loop():
            raise RuntimeError("advance() on the event loop would wait for itself: use `await clock.advance_async()`")
        loop = next(iter(self._loops), None)
        if loop is None:  # no runtime lives by this clock: there is nothing to wait for
            asyncio.run(self._drive(target))
        else:
            asyncio.run_coroutine_threadsafe(self._drive(target), loop).result()

    async def _drive(self, target: float) -> None:
        if target < self._now:
            raise ValueError(f"cannot advance by {target - self._now} seconds: time does not go back")
        await self._settle(self._patience)
        while self._fire_next(target):
            await self._settle(self._patience)
        self._now = target

    def _fire_next(self, target: float) -> bool:
        """Go to the next timer due by ``target`` and fire it on its loop."""
        ahead = self.next_timer  # drops cancelled ones
        with self._lock:
            if ahead is None or self._timers[0][0] > target:
                return False
            due, _, timer = heapq.heappop(self._timers)
        self._now = max(self._now, due)
        if not timer.loop.is_closed():
            timer.loop.call_soon_threadsafe(lambda: timer.cancelled or timer.callback())
        return True

    async def _settle(self, patience: float) -> None:
        """Return when every loop is idle and no blocking work is under way."""
        give_up = time.monotonic() + patience
        here = asyncio.get_running_loop()
        while True:
            await self._blocking_work_done(give_up)
            moved = False
            for loop in [here, *(other for other in self._loops if other is not here)]:
                quiet = _until_quiet(give_up)
                if loop is here:
                    moved |= await quiet
                else:
                    moved |= await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(quiet, loop))
            with self._lock:
                if not moved and not self._under_way:
                    return

    async def _blocking_work_done(self, give_up: float) -> None:
        """Wait on a thread, since what is waited for ends on one: without this there would be a busy loop."""
        with self._lock:
            if not self._under_way:
                return

        def wait() -> int:
            with self._lock:
                self._changed.wait_for(lambda: not self._under_way, timeout=max(give_up - time.monotonic(), 0))
                return self._under_way

        stuck = await asyncio.get_running_loop().run_in_executor(None, wait)
        if stuck:
            raise ClockStuckError(
                f"{stuck} blocking call(s) or write(s) have not finished: "
                "a function that is meant to hang waits at `manual_clock.gate()`"
            )

    async def _move_alone(self) -> None:
        while True:
            with contextlib.suppress(ClockStuckError):
                await self._settle(_UNATTENDED_PATIENCE)
            ahead = self.next_timer
            if ahead is None or not self._fire_next(self._now + ahead):
                # Idle without a timer: whatever comes now comes from outside, so look again in a moment.
                await asyncio.sleep(0.001)


async def _until_quiet(give_up: float) -> bool:
    """Let the running loop do all it can; whether it had anything to do."""
    loop: Any = asyncio.get_running_loop()
    moved = False
    calm = 0
    # Twice: the second look comes after the selector was polled, so that sockets and pipes are seen too.
    while calm < 2:  # noqa: PLR2004
        await asyncio.sleep(0)
        if loop._ready:  # noqa: SLF001 - asyncio has no public way to ask whether anything is ready
            calm, moved = 0, True
            if time.monotonic() > give_up:
                raise ClockStuckError("the event loop never becomes idle: something spins on it")
        else:
            calm += 1
    return moved
