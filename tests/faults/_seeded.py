"""A world in which nothing is left to luck: one thread, and a seed decides what happens next."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import TYPE_CHECKING, Any, TypeVar

from understudy.actors._kernel.lag import LagGauge
from understudy.actors.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

T = TypeVar("T")


class Trace:
    """What happened, in order: a digest of all of it, and the lines of it where somebody wants to read them."""

    def __init__(self, *, keep: bool) -> None:
        self._digest = hashlib.sha256()
        self._keep = keep
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        """A line for readers, part of the digest."""
        self._digest.update(line.encode())
        if self._keep:
            self.lines.append(line)

    def step(self, name: str, others: int) -> None:
        """One callback, out of so many: only for the digest."""
        self._digest.update(f"{name}/{others}".encode())

    @property
    def digest(self) -> str:
        """Equal for equal histories."""
        return self._digest.hexdigest()


class SeededClock(ManualClock):
    """Moves when the simulation says so; left alone (`unattended`), whenever there is nothing else to do."""

    def __init__(self, now: float = 0.0) -> None:
        super().__init__()
        self._now = now
        self.alone = 0

    @contextlib.contextmanager
    def unattended(self) -> Iterator[None]:
        """The loop sees it, and moves the clock when it is idle."""
        self.alone += 1
        try:
            yield
        finally:
            self.alone -= 1

    def strike(self, chance: Random, until: float) -> bool:
        """Let the next timers go off that are due by then: one, or several of the same moment; False without any."""
        ahead = self.next_timer
        if ahead is None or self._now + ahead > until:
            return False
        self._fire_next(until)
        while self.next_timer == 0 and chance.random() < 0.7:
            self._fire_next(self._now)
        return True

    def pass_by(self, seconds: float) -> None:
        """Time goes on, though nothing was due."""
        self._now += seconds

    @property
    def pending(self) -> int:
        """Timers that nobody has cancelled."""
        return sum(not timer.cancelled for _, _, timer in self._timers)


class SeededLoop(asyncio.BaseEventLoop):
    """One callback at a time. Where ``shuffled``, any that is ready may be next; else they keep asyncio's order.

    It has no selector and no threads, and no timers but the clock's. When nothing is ready it returns.
    """

    def __init__(self, clock: SeededClock, chance: Random, trace: Trace, *, shuffled: bool) -> None:
        super().__init__()
        self._clock = clock
        self._chance = chance
        self._trace = trace
        self._shuffled = shuffled
        self._steps = 0
        self.unexpected: list[str] = []
        self.set_exception_handler(lambda _loop, context: self.unexpected.append(str(context)))

    def turn(self, steps: int) -> bool:
        """Run at most so many callbacks; whether there were as many."""
        self._steps = steps
        self.run_forever()
        return self._steps == 0

    def _run_once(self) -> None:
        """What `run_forever` calls, until somebody stops the loop."""
        ready: Any = self._ready  # type: ignore[attr-defined]  # asyncio's own
        if not self._steps or not ready:
            self._stopping = True
            return
        self._steps -= 1
        place = self._chance.randrange(len(ready)) if self._shuffled and len(ready) > 1 else 0
        handle = ready[place]
        del ready[place]
        if not handle.cancelled():
            self._trace.step(_name(handle._callback), len(ready))
            handle._run()

    def time(self) -> float:
        return self._clock.monotonic()

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        # The gauge measures the machine, and there is none here. Everybody else asks the clock.
        assert isinstance(getattr(callback, "__self__", None), LagGauge), f"{callback} is timed beside the clock"
        return asyncio.TimerHandle(when, callback, args, self, context)

    def run_in_executor(self, _executor: Any, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Where others have threads: a callback."""
        return self.create_task(self._called(function, *args))

    async def _called(self, function: Callable[..., T], *args: Any) -> T:
        await asyncio.sleep(0)
        return function(*args)

    def _write_to_self(self) -> None:
        """Nobody sleeps here, so nobody is to be woken."""

    def _process_events(self, _events: object) -> None:
        """There are none."""


class InlinePool:
    """Blocking calls without threads: each is made when the simulation lets it."""

    abandoned_threads = 0

    def __init__(self, breath: Callable[[str], asyncio.Future[None]]) -> None:
        self._breath = breath

    async def run(self, function: Callable[[], T]) -> T:
        await self._breath("pool")
        return function()

    def close(self) -> None:
        """There is nothing to let go."""


def _name(callback: Any) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        callback = owner.get_coro()
    return getattr(callback, "__qualname__", None) or type(callback).__name__
