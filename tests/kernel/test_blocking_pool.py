"""Blocking user code runs off the loop, bounded, and can be left behind."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest

from understudy.actors import AsyncRuntime, HandlerEscapedError, SystemClock
from understudy.actors._kernel.pool import BlockingPool
from understudy.actors.testing import ClockStuckError, ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path


def run_in_pool(test: Callable[[BlockingPool, ManualClock], Coroutine[Any, Any, None]], *, limit: int = 2) -> None:
    async def main() -> None:
        clock = ManualClock(patience=0.2)
        pool = BlockingPool(asyncio.get_running_loop(), clock, limit=limit)
        try:
            await asyncio.wait_for(test(pool, clock), 60)
        finally:
            pool.close()

    asyncio.run(main())


def test_at_most_the_limit_runs_at_once() -> None:
    """Twenty calls on two threads: never three at a time, and all of them done."""
    lock, running, most = threading.Lock(), 0, 0

    def call() -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1
        return threading.get_ident()

    async def test(pool: BlockingPool, _clock: ManualClock) -> None:
        threads = await asyncio.gather(*(pool.run(call) for _ in range(20)))
        assert len(set(threads)) <= 2
        assert threading.get_ident() not in threads

    run_in_pool(test)
    assert most <= 2


def test_calls_submitted_together_do_not_wait_behind_one_idle_thread() -> None:
    """Two calls that need each other both get a thread, though only one thread was idle."""

    async def test(pool: BlockingPool, _clock: ManualClock) -> None:
        await pool.run(lambda: None)
        meeting = threading.Barrier(2, timeout=30)
        assert sorted(await asyncio.gather(pool.run(meeting.wait), pool.run(meeting.wait))) == [0, 1]

    run_in_pool(test)


def test_an_abandoned_call_gives_its_place_away_and_is_counted() -> None:
    """Both threads hang and are abandoned: the pool still works, and the count falls when they return."""

    async def test(pool: BlockingPool, clock: ManualClock) -> None:
        gate = clock.gate()
        hung = [asyncio.ensure_future(pool.run(gate.wait)) for _ in range(2)]
        await gate.reached
        while pool._queue:
            await asyncio.sleep(0)
        for call in hung:
            call.cancel()
        await asyncio.gather(*hung, return_exceptions=True)
        assert pool.abandoned_threads == 2
        assert await pool.run(lambda: "still works") == "still works"
        gate.open()
        while pool.abandoned_threads:
            await asyncio.sleep(0)

    run_in_pool(test)


def test_time_passes_when_a_call_that_waits_at_a_gate_is_abandoned() -> None:
    """It counts neither while it waits there nor when it is let through: another call's work still holds time up."""

    async def test(pool: BlockingPool, clock: ManualClock) -> None:
        gate = clock.gate()
        hung = asyncio.ensure_future(pool.run(gate.wait))
        await gate.reached
        while clock._under_way:  # it has come to the gate, and now it waits there
            await asyncio.sleep(0)
        hung.cancel()
        await asyncio.gather(hung, return_exceptions=True)
        await clock.advance_async(1)
        gate.open()
        while pool.abandoned_threads:
            await asyncio.sleep(0)
        await clock.advance_async(1)
        working = threading.Event()
        call = asyncio.ensure_future(pool.run(working.wait))
        with pytest.raises(ClockStuckError, match="1 blocking call"):
            await clock.advance_async(1)
        working.set()
        await call

    run_in_pool(test)


def test_a_call_abandoned_in_the_queue_never_runs() -> None:
    """Nobody waits for it any more."""
    ran = list[str]()

    async def test(pool: BlockingPool, clock: ManualClock) -> None:
        gate = clock.gate()
        first = asyncio.ensure_future(pool.run(gate.wait))
        await gate.reached
        queued = asyncio.ensure_future(pool.run(lambda: ran.append("queued")))
        await asyncio.sleep(0)
        queued.cancel()
        await asyncio.gather(queued, return_exceptions=True)
        gate.open()
        await first
        await pool.run(lambda: ran.append("later"))

    run_in_pool(test, limit=1)
    assert ran == ["later"]


@pytest.mark.parametrize(
    ("raised", "seen"),
    [(ValueError("x"), ValueError), (SystemExit(1), HandlerEscapedError), (StopIteration(), RuntimeError)],
)
def test_what_a_call_raises_reaches_its_caller_and_hurts_no_thread(
    raised: BaseException, seen: type[Exception]
) -> None:
    """SystemExit and StopIteration, which a future or a loop cannot carry, come as ordinary errors."""

    def fail() -> None:
        raise raised

    async def test(pool: BlockingPool, _clock: ManualClock) -> None:
        with pytest.raises(seen):
            await pool.run(fail)
        assert await pool.run(lambda: 1) == 1

    run_in_pool(test, limit=1)


def test_a_call_sees_the_context_variables_of_its_caller() -> None:
    """As asyncio.to_thread does."""
    variable = contextvars.ContextVar("variable", default="unset")

    async def test(pool: BlockingPool, _clock: ManualClock) -> None:
        variable.set("set")
        assert await pool.run(variable.get) == "set"

    run_in_pool(test)


def test_a_manual_clock_waits_for_blocking_calls_and_names_those_that_hang() -> None:
    """Time does not pass under a running call; one that never ends is reported with the remedy."""

    async def test(pool: BlockingPool, clock: ManualClock) -> None:
        hanging = threading.Event()
        call = asyncio.ensure_future(pool.run(hanging.wait))
        with pytest.raises(ClockStuckError, match=r"1 blocking call.*manual_clock\.gate\(\)"):
            await clock.advance_async(1)
        hanging.set()
        await clock.advance_async(1)
        assert call.done()

    run_in_pool(test)


def test_a_call_that_never_returns_does_not_keep_the_host_from_leaving(tmp_path: Path) -> None:
    """concurrent.futures would join the thread at exit, for ever."""
    program = tmp_path / "host.py"
    program.write_text(
        textwrap.dedent("""
        import asyncio, threading
        from understudy.actors import AsyncRuntime

        async def main():
            async with AsyncRuntime() as runtime:
                reached = threading.Event()
                def hang():
                    reached.set()
                    threading.Event().wait()
                call = asyncio.ensure_future(runtime._kernel.pool.run(hang))
                await asyncio.to_thread(reached.wait)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                print("abandoned", runtime.abandoned_threads)

        asyncio.run(main())
        """)
    )
    host = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=True)
    assert host.stdout == "abandoned 1\n"


def test_a_closed_pool_refuses_calls() -> None:
    """It says so instead of queueing what nobody will run."""

    async def main() -> None:
        pool = BlockingPool(asyncio.get_running_loop(), SystemClock(), limit=1)
        pool.close()
        with pytest.raises(RuntimeError, match="the runtime is closed"):
            await pool.run(lambda: None)

    asyncio.run(main())


def test_the_lag_gauge_sees_a_blocked_loop() -> None:
    """Somebody holds the loop for longer than it measures: the gauge says by how much."""

    async def main() -> float:
        async with AsyncRuntime() as runtime:
            due = runtime.lag._timer.when()
            runtime.lag._timer.cancel()
            runtime.lag._measure(due - 60.0)  # as if the measurement came a minute late
            return runtime.lag.worst

    assert asyncio.run(main()) >= 59.0
