"""The time between a model's tool calls and their results, in which nothing else may enter its history."""

from __future__ import annotations

import asyncio


class Exchange:
    """Under way, or over; results of other children wait until it is over."""

    __slots__ = ("_over", "arrivals", "under_way")

    def __init__(self) -> None:
        self.under_way = False
        self.arrivals = 0
        """Results that are being merged right now: the next model call waits for them."""
        self._over: list[asyncio.Future[None]] = []

    def begin(self) -> None:
        """The model has called tools."""
        self.under_way = True

    def end(self) -> None:
        """Their results are in: whoever waited may come in now, before the next model call."""
        self.under_way = False
        self._wake()

    async def over(self) -> None:
        """Wait until nothing is under way; then the caller is an arrival, and says `arrived` when it is in."""
        while self.under_way:
            await self._change()
        self.enter()

    def enter(self) -> None:
        """The caller is an arrival: something that is being merged right now."""
        self.arrivals += 1

    def arrived(self) -> None:
        """An arrival is in, or has failed."""
        self.arrivals -= 1
        self._wake()

    async def settled(self) -> None:
        """Wait until every arrival is in."""
        # One turn of the loop, so that those who were just woken count as arrivals.
        await asyncio.sleep(0)
        while self.arrivals:
            await self._change()

    async def _change(self) -> None:
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over.append(changed)
        await changed

    def _wake(self) -> None:
        waiting, self._over = self._over, []
        for changed in waiting:
            if not changed.done():
                changed.set_result(None)
