"""Taking turns: listeners are served a few at a time, and all together in a small share of the loop's time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

from understudy.actors.clock import sleep

if TYPE_CHECKING:
    from collections.abc import Callable

    from understudy.actors import Clock

SHARE = 50
"""A second of turns is made up for by so many seconds without."""
# So much they may take at once after a rest: a few events reach even a thousand listeners without a pause.
_BURST_SECONDS = 0.05
# The loop is not held for longer than so many take, about two milliseconds.
_AT_ONCE = 25
# Between them, whatever they took.
_PAUSE_SECONDS = 0.002


class Turns:
    """Whoever waits gets a turn when there is something new. What turns cost is measured, not guessed."""

    def __init__(self, clock: Clock, *, spent: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._spent = spent
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._news = asyncio.Event()
        self._rested = 0.0
        self._over = False

    async def wait(self) -> None:
        """Until it is one's turn, or all is over."""
        if not self._over:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    def call(self) -> None:
        """There is something new: everybody who waits is to have a turn."""
        self._news.set()

    def end(self) -> None:
        """Everybody goes on at once, and nobody waits again."""
        self._over = True
        _wake(self._waiting)
        self._waiting.clear()

    async def give(self) -> None:
        """Give turns, until cancelled."""
        self._rested = self._clock.monotonic()
        while True:
            await self._news.wait()
            self._news.clear()
            left = len(self._waiting)  # who comes back from a turn meanwhile waits for the next news
            while few := [self._waiting.popleft() for _ in range(min(left, _AT_ONCE, len(self._waiting)))]:
                left -= len(few)
                await self._rest(await self._take(few))

    async def _take(self, turns: list[asyncio.Future[None]]) -> float:
        """Seconds of this thread's work that these turns took."""
        loop = asyncio.get_running_loop()
        taken: asyncio.Future[float] = loop.create_future()
        began = 0.0

        def begin() -> None:
            nonlocal began
            began = self._spent()

        def end() -> None:
            if not taken.done():
                taken.set_result(self._spent() - began)

        # They stand in a row in the loop's queue: nothing else runs in between.
        loop.call_soon(begin)
        _wake(turns)
        loop.call_soon(end)
        return await taken

    async def _rest(self, taken: float) -> None:
        now = self._clock.monotonic()
        # The moment until which all turns so far have been made up for; long rests count for a burst and no more.
        self._rested = max(self._rested, now - _BURST_SECONDS * SHARE) + taken * SHARE
        await sleep(self._clock, max(_PAUSE_SECONDS, self._rested - now))


def _wake(turns: deque[asyncio.Future[None]] | list[asyncio.Future[None]]) -> None:
    for turn in turns:
        if not turn.done():  # else it left
            turn.set_result(None)
