"""The no-output watchdog of one process: it stops one that says nothing for too long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from understudy.protocol.runner import Keepalive, ToolEnded, ToolStarted

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from understudy.actors.clock import Clock, Timer
    from understudy.protocol.runner import RunnerEvent

# A process that said it is done and stays is not worked for any more: its answer is there.
_LINGER_SECONDS = 10.0


class Silence:
    """Strikes after so many seconds without an event, but never while a tool runs; keepalives are no events."""

    def __init__(self, clock: Clock, seconds: float, *, stop: Callable[[], Coroutine[object, object, object]]) -> None:
        self.struck: str | None = None
        """Why the process was stopped."""
        self._clock = clock
        self._seconds = self._limit = seconds
        self._stop = stop
        self._stopping: asyncio.Task[object] | None = None
        self._tools: set[str] = set()
        self._heard_at = clock.monotonic()
        self._timer: Timer = clock.call_later(seconds, self._look)
        self._due = self._heard_at + seconds

    def heard(self, event: RunnerEvent, *, done: bool) -> None:
        """It said something; ``done`` is whether it has said that it is done."""
        if isinstance(event, Keepalive):
            return
        self._heard_at = self._clock.monotonic()
        if isinstance(event, ToolStarted):
            self._tools.add(event.call_id)
        elif isinstance(event, ToolEnded):
            self._tools.discard(event.call_id)
        self._limit = min(_LINGER_SECONDS, self._seconds) if done else self._seconds
        if self._heard_at + self._limit < self._due:
            self._timer.cancel()
            self._wait()

    def strike(self, why: str) -> None:
        """Stop the process; its output ends, and so does whoever reads it."""
        if self.struck is None:
            self.struck = why
            self._stopping = asyncio.ensure_future(self._stop())

    def end(self) -> None:
        """Nothing is listened for any more."""
        self._timer.cancel()

    def _wait(self) -> None:
        self._due = self._heard_at + self._limit
        self._timer = self._clock.call_later(self._due - self._clock.monotonic(), self._look)

    def _look(self) -> None:
        now = self._clock.monotonic()
        if self._tools:
            self._heard_at = now  # its own timeout is the CLI's business, and the run has a deadline
        if now - self._heard_at >= self._limit:
            self.strike(f"it said nothing for {now - self._heard_at:g} s")
        else:
            self._wait()
