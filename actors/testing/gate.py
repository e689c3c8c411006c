"""A place to hang, on purpose and under control."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from understudy.actors._kernel.future import LoopFuture
from understudy.actors._kernel.pool import parked

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from understudy.actors.clock import Clock


class Gate:
    """Shut until `open`: coroutines ``await gate``, blocking functions call ``gate.wait()``.

    While a blocking function waits here, a manual clock does not wait for it: time can pass, and a timeout strike.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._opened: LoopFuture[None] = LoopFuture()
        self._lock = threading.Lock()
        self.reached: LoopFuture[None] = LoopFuture()
        """Settled when somebody has come to the gate."""

    def open(self) -> None:
        """Let everybody through, now and later."""
        with self._lock:
            if not self._opened.settled():
                self._opened.set()

    def wait(self) -> None:
        """Block this thread until the gate is opened."""
        self._arrive()
        with parked() or self._uncounted():
            self._opened.get()

    @contextlib.contextmanager
    def _uncounted(self) -> Iterator[None]:
        """For work that reports itself to the clock without a pool, as a store's writer does."""
        self._clock.work_finished()
        try:
            yield
        finally:
            self._clock.work_started()

    def __await__(self) -> Generator[Any, None, None]:
        self._arrive()
        return (yield from self._opened.__await__())

    def _arrive(self) -> None:
        with self._lock:
            if not self.reached.settled():
                self.reached.set()
