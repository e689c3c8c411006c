"""Blocking user code, off the loop: a bounded number of threads, and none that can hold up the host."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from understudy.actors._kernel.exits import HandlerEscapedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from understudy.actors.clock import Clock

T = TypeVar("T")

_here = threading.local()


def parked() -> contextlib.AbstractContextManager[None] | None:
    """On a pool's thread: lets time pass while the call waits, as at a test's gate. Elsewhere None."""
    park: Callable[[], contextlib.AbstractContextManager[None]] | None = getattr(_here, "parked", None)
    return None if park is None else park()


class _Call(Generic[T]):
    """One call and where its outcome goes."""

    __slots__ = ("answer", "context", "function", "parked", "state")

    def __init__(self, function: Callable[[], T], answer: asyncio.Future[T]) -> None:
        self.function = function
        self.answer = answer
        self.context = contextvars.copy_context()
        self.state: Literal["queued", "running", "done", "abandoned"] = "queued"
        self.parked = False
        """It waits where a manual clock does not wait for it."""

    def was_abandoned(self) -> bool:
        """Whether its caller went away while it ran."""
        return self.state == "abandoned"


class BlockingPool:
    """At most ``limit`` calls at once. A caller that is cancelled leaves its call behind.

    A thread cannot be killed. An abandoned call therefore keeps its thread until it returns, but no longer its
    place in the pool; `abandoned_threads` counts them. Threads are daemons, so a call that never returns does
    not keep the host from exiting (`concurrent.futures` would join it for ever).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, *, limit: int) -> None:
        self._loop = loop
        self._clock = clock
        self._limit = limit
        self._lock = threading.Lock()
        self._wanted = threading.Condition(self._lock)
        self._queue: deque[_Call[Any]] = deque()
        self._workers = 0
        self._idle = 0
        self._closed = False
        self.abandoned_threads = 0

    async def run(self, function: Callable[[], T]) -> T:
        """What ``function`` returns or raises, run on a thread in the caller's context."""
        call: _Call[T] = _Call(function, self._loop.create_future())
        with self._lock:
            if self._closed:
                raise RuntimeError("the runtime is closed: no more blocking calls")
            self._clock.work_started()
            self._queue.append(call)
            self._staff()
        try:
            return await call.answer
        except asyncio.CancelledError:
            self._abandon(call)
            raise

    def close(self) -> None:
        """Let idle threads go; those inside a call end with it."""
        with self._lock:
            self._closed = True
            self._wanted.notify_all()

    def _staff(self) -> None:
        """Wake or start a thread for the queue; called with the lock held."""
        # A thread that was notified still counts as idle until it wakes: compare, so that no call waits in vain.
        if self._idle >= len(self._queue):
            self._wanted.notify()
        elif self._workers < self._limit:
            self._workers += 1
            threading.Thread(target=self._work, name="understudy-blocking", daemon=True).start()

    def _abandon(self, call: _Call[Any]) -> None:
        with self._lock:
            if call.state == "done":
                return
            if call.state == "queued":
                self._queue.remove(call)
            else:
                self.abandoned_threads += 1
                self._workers -= 1
                if self._queue:
                    self._staff()
            call.state = "abandoned"
            counted = not call.parked
        if counted:
            self._clock.work_finished()

    @contextlib.contextmanager
    def _parked(self, call: _Call[Any]) -> Iterator[None]:
        """While this lasts the clock does not wait for ``call``; nor afterwards, if it was abandoned meanwhile."""
        with self._lock:
            was_counted = not (call.was_abandoned() or call.parked)
            call.parked = True
            if was_counted:
                self._clock.work_finished()
        try:
            yield
        finally:
            with self._lock:
                call.parked = not was_counted
                if was_counted and not call.was_abandoned():
                    self._clock.work_started()

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._queue:
                    if self._closed:
                        self._workers -= 1
                        return
                    self._idle += 1
                    self._wanted.wait()
                    self._idle -= 1
                call = self._queue.popleft()
                call.state = "running"
            _here.parked = functools.partial(self._parked, call)
            value, error = _outcome(call)
            del _here.parked
            with self._lock:
                if call.was_abandoned():
                    # Its place was given away when it was abandoned: this thread is one too many.
                    self.abandoned_threads -= 1
                    return
                call.state = "done"
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(_answer, call, value, error)
            self._clock.work_finished()
            del call, value, error  # an idle thread keeps nothing alive


def _outcome(call: _Call[Any]) -> tuple[Any, BaseException | None]:
    try:
        return call.context.run(call.function), None
    except StopIteration as error:  # a future cannot carry it
        return None, RuntimeError(f"blocking call raised {error!r}")
    except Exception as error:  # noqa: BLE001 - goes to the caller
        return None, error
    except BaseException as error:  # noqa: BLE001 - must not end this thread, nor the caller's loop
        escaped = HandlerEscapedError(f"a blocking call raised {error!r}")
        escaped.__cause__ = error
        return None, escaped


def _answer(call: _Call[Any], value: object, error: BaseException | None) -> None:
    if call.answer.done():
        return
    if error is None:
        call.answer.set_result(value)
    else:
        call.answer.set_exception(error)
