"""The manual clock: time passes when told, in order, and with nothing in flight."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from understudy.actors import AsyncRuntime, LoopActor, Runtime, SystemClock
from understudy.actors._kernel.future import LoopFuture
from understudy.actors.clock import sleep, within
from understudy.actors.testing import ClockStuckError, ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR = 3_600.0
DAY = 24 * HOUR


class Sleeper(LoopActor):
    """Sleeps on the clock, then tells its log when it woke."""

    registered = False

    def __init__(self, clock: ManualClock, log: list[tuple[float, str]]) -> None:
        super().__init__()
        self.clock, self.log = clock, log

    async def on_receive(self, message: tuple[float, str]) -> None:
        seconds, name = message
        await sleep(self.clock, seconds)
        self.log.append((self.clock.monotonic(), name))


def test_a_24_hour_timeout_strikes_on_time(runtime: Runtime, manual_clock: ManualClock) -> None:
    """Not a second before, and at the very second."""

    class Patient(LoopActor):
        async def on_receive(self, _message: Any) -> str:
            try:
                await within(manual_clock, DAY, asyncio.Event().wait())
            except TimeoutError:
                return "timed out"
            return "woken"

    answer = runtime.start_actor(Patient).ask("wait", block=False)
    manual_clock.advance(DAY - 1)
    assert isinstance(answer, LoopFuture)
    assert not answer.settled()
    manual_clock.advance(1)
    assert answer.get(timeout=0) == "timed out"


def test_equal_deadlines_fire_in_the_order_they_were_set(runtime: Runtime, manual_clock: ManualClock) -> None:
    """Earliest first; of equals, the one set first."""
    log: list[tuple[float, str]] = []
    for seconds, name in [(3.0, "late"), (2.0, "a"), (2.0, "b"), (1.0, "early"), (2.0, "c")]:
        runtime.start_actor(Sleeper, manual_clock, log).tell((seconds, name))
        manual_clock.run_until_idle()
    manual_clock.advance(10)
    assert log == [(1.0, "early"), (2.0, "a"), (2.0, "b"), (2.0, "c"), (3.0, "late")]


def test_a_timer_set_by_a_timer_fires_within_the_same_advance(runtime: Runtime, manual_clock: ManualClock) -> None:
    """One advance over an hour sees every tick of a minute, each at its own time."""
    ticks: list[float] = []

    class Ticker(LoopActor):
        def on_start(self) -> None:
            self.tick()

        def tick(self) -> None:
            ticks.append(manual_clock.monotonic())
            manual_clock.call_later(60, self.tick)

    runtime.start_actor(Ticker)
    manual_clock.advance(3600)
    assert ticks == [60.0 * minute for minute in range(61)]


def test_a_cancelled_timer_does_not_fire(runtime: Runtime, manual_clock: ManualClock) -> None:
    """And is no reason to stop at its time."""
    fired: list[str] = []

    class Setter(LoopActor):
        def on_receive(self, _message: Any) -> None:
            manual_clock.call_later(1, lambda: fired.append("cancelled")).cancel()
            manual_clock.call_later(2, lambda: fired.append("kept"))

    runtime.start_actor(Setter).ask("go")
    assert manual_clock.next_timer == 2.0
    manual_clock.advance(5)
    assert fired == ["kept"]


def test_two_runtimes_on_one_clock_keep_one_order(manual_clock: ManualClock) -> None:
    """Timers of two loops fire by time, whoever set them."""
    log: list[tuple[float, str]] = []
    with Runtime(clock=manual_clock) as left, Runtime(clock=manual_clock) as right:
        for number in range(10):
            side = left if number % 2 else right
            side.start_actor(Sleeper, manual_clock, log).tell((10.0 - number, str(number)))
        manual_clock.advance(20)
    assert [name for _, name in log] == [str(number) for number in reversed(range(10))]


def test_an_async_host_advances_from_its_own_loop() -> None:
    """And is told so when it tries to block."""

    async def host() -> list[tuple[float, str]]:
        clock, log = ManualClock(), list[tuple[float, str]]()
        async with AsyncRuntime(clock=clock) as runtime:
            runtime.start_actor(Sleeper, clock, log).tell((HOUR, "woke"))
            with pytest.raises(RuntimeError, match=r"use `await clock\.advance_async\(\)`"):
                clock.advance(1)
            await clock.advance_async(HOUR)
            return log

    assert asyncio.run(host()) == [(HOUR, "woke")]


def test_closing_does_not_wait_for_somebody_to_advance(manual_clock: ManualClock) -> None:
    """An actor that hangs is stopped at the end of a test, though its grace is on the manual clock."""
    with Runtime(clock=manual_clock) as runtime:
        ref = runtime.start_actor(Sleeper, manual_clock, [])
        ref.tell((100 * DAY, "never"))
    assert not ref.is_alive()


def test_time_does_not_go_back(manual_clock: ManualClock) -> None:
    """A negative step is a mistake in the test."""
    with pytest.raises(ValueError, match="time does not go back"):
        manual_clock.advance(-1)


def test_something_that_spins_is_named_instead_of_waited_for(manual_clock: ManualClock) -> None:
    """A loop that never becomes idle would otherwise hang the test."""

    async def main() -> None:
        async def spin() -> None:
            while True:
                await asyncio.sleep(0)

        spinning = asyncio.create_task(spin())
        clock = ManualClock(patience=0.05)
        with pytest.raises(ClockStuckError, match="never becomes idle"):
            await clock.advance_async(1)
        spinning.cancel()

    assert manual_clock.next_timer is None
    asyncio.run(main())


def test_wall_time_moves_with_it(manual_clock: ManualClock) -> None:
    """Stored dates and timers agree; it begins with 2026."""
    begin = manual_clock.wall_ms()
    manual_clock.advance(1.5)
    assert (begin, manual_clock.wall_ms() - begin) == (1_767_225_600_000, 1500)


@pytest.mark.parametrize("make", [SystemClock, ManualClock])
def test_within_leaves_the_outcome_alone_when_there_is_time(make: Callable[[], SystemClock | ManualClock]) -> None:
    """Result, error and the caller's own cancellation come through as they are."""

    async def value() -> int:
        return 7

    async def fail() -> None:
        raise KeyError("mine")

    async def main() -> None:
        clock = make()
        assert await within(clock, 60, value()) == 7
        with pytest.raises(KeyError, match="mine"):
            await within(clock, 60, fail())
        waiting = asyncio.ensure_future(within(clock, 60, asyncio.Event().wait()))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
