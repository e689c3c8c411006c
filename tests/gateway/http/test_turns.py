"""Turns: everybody gets them, in order, and together they take no more of the loop's time than they may."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from understudy.gateway.http.turns import SHARE, Turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from understudy.actors.testing import ManualClock

LISTENERS = 60


class Crowd:
    """Listeners who always have something to do; a turn takes as long as it is told."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self.turns = Turns(clock, spent=lambda: self.spent)
        self.seconds = seconds
        self.spent = 0.0
        self.had: list[int] = []

    async def listen(self, number: int, *, again: bool) -> None:
        while not self.turns._over:
            await self.turns.wait()
            self.spent += self.seconds
            self.had.append(number)
            if again:
                self.turns.call()


@contextlib.asynccontextmanager
async def crowd(clock: ManualClock, seconds: float = 0.0, *, again: bool = False) -> AsyncIterator[Crowd]:
    clock.attach(asyncio.get_running_loop())
    here = Crowd(clock, seconds)
    giving = asyncio.ensure_future(here.turns.give())
    listening = [asyncio.ensure_future(here.listen(number, again=again)) for number in range(LISTENERS)]
    await clock.run_until_idle_async()
    try:
        yield here
    finally:
        here.turns.end()
        giving.cancel()
        await asyncio.gather(*listening)
        clock.detach(asyncio.get_running_loop())


def test_everybody_has_one_turn_for_each_news(manual_clock: ManualClock) -> None:
    """In the order in which they wait, and none without news."""

    async def play() -> None:
        async with crowd(manual_clock) as here:
            await manual_clock.advance_async(60)
            assert here.had == []
            for _ in range(2):
                here.turns.call()
                await manual_clock.advance_async(60)
            assert here.had == [*range(LISTENERS)] * 2

    asyncio.run(play())


@pytest.mark.parametrize("seconds", [0.0001, 0.004])
def test_turns_take_their_share_of_the_time_and_no_more(manual_clock: ManualClock, seconds: float) -> None:
    """Whatever one costs: after the first burst, a fiftieth."""

    async def play() -> None:
        async with crowd(manual_clock, seconds, again=True) as here:
            here.turns.call()
            await manual_clock.advance_async(10)
            before = here.spent
            await manual_clock.advance_async(600)
            assert (here.spent - before) == pytest.approx(600 / SHARE, rel=0.02)
            fewest, most = (count(here.had.count(number) for number in range(LISTENERS)) for count in (min, max))
            assert most - fewest <= 1

    asyncio.run(play())


def test_a_few_events_reach_everybody_at_once_after_a_rest(manual_clock: ManualClock) -> None:
    """The share is kept over time, not at the cost of each event."""

    async def play() -> None:
        async with crowd(manual_clock, 0.0001) as here:
            for event in range(3):
                await manual_clock.advance_async(60)
                here.turns.call()
                await manual_clock.advance_async(0.01)
                assert len(here.had) == LISTENERS * (event + 1)

    asyncio.run(play())


def test_the_end_is_everybodys_turn(manual_clock: ManualClock) -> None:
    """However long the others would have to wait."""

    async def play() -> None:
        async with crowd(manual_clock, 3_600.0) as here:
            here.turns.call()
            await manual_clock.advance_async(1)
            assert len(here.had) < LISTENERS
            here.turns.end()
            await manual_clock.run_until_idle_async()
            assert sorted(set(here.had)) == [*range(LISTENERS)]
            await here.turns.wait()

    asyncio.run(play())
