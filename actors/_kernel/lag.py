"""How late the loop is: the first sign that somebody blocks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

# Often enough to see a stall within a second, rare enough to cost nothing.
_EVERY_SECONDS = 0.5


class LagGauge:
    """Measures by real time, whatever clock is injected: it is the machine that lags."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.last = 0.0
        """Seconds the latest measurement came late."""
        self.worst = 0.0
        """The latest ever seen."""
        self._schedule()

    def close(self) -> None:
        """Stop measuring."""
        self._timer.cancel()

    def _schedule(self) -> None:
        due = self._loop.time() + _EVERY_SECONDS
        self._timer = self._loop.call_at(due, self._measure, due)

    def _measure(self, due: float) -> None:
        self.last = max(self._loop.time() - due, 0.0)
        self.worst = max(self.worst, self.last)
        self._schedule()
