"""Both ends of a transaction: what its caller waits for, and what the writer decides."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from understudy.persistence.operations import Answer, Operation

Answers: TypeAlias = "tuple[Answer, ...]"
Point = Literal["accept", "terminal", "merge"]
Points: TypeAlias = "Point | tuple[Point, ...] | None"
"""Which commit points a transaction is: an end that is merged at once is two of them."""
Outcome: TypeAlias = "Answers | BaseException"
_Waiter: TypeAlias = "asyncio.Future[None] | threading.Event"


class Commit:
    """A transaction on its way: ``await commit`` or ``commit.result(timeout)`` gives its answers, in order.

    Giving up the wait does not take the work back: it is committed or refused all the same.
    """

    __slots__ = ("_hurry", "_lock", "_outcome", "_waiters")

    def __init__(self, lock: threading.Lock, hurry: Callable[[], None] | None) -> None:
        self._lock = lock
        self._hurry = hurry
        self._outcome: Outcome | None = None
        self._waiters: list[_Waiter] | None = None

    @property
    def done(self) -> bool:
        """Whether it is decided: committed, or refused."""
        return self._outcome is not None

    @property
    def failed(self) -> bool:
        """Whether it is decided, and was refused."""
        return isinstance(self._outcome, BaseException)

    def result(self, timeout: float | None = None) -> Answers:
        """Block until it is decided. On an event loop use ``await``; TimeoutError leaves the work alone."""
        if self._outcome is None and self._hurry is not None:
            # Nobody else would do it: the writer is this very thread.
            self._hurry()
        if self._outcome is None:
            waiter = threading.Event()
            if self._wait_with(waiter) and not waiter.wait(timeout):
                raise TimeoutError(f"the transaction was not committed within {timeout} s; it is still queued")
        return self._answers()

    def __await__(self) -> Generator[object, None, Answers]:
        if self._outcome is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._wait_with(waiter):
                yield from waiter
        return self._answers()

    def _wait_with(self, waiter: _Waiter) -> bool:
        # Under the lock of `settle`: either the outcome is seen here, or the waiter is seen there.
        with self._lock:
            if self._outcome is not None:
                return False
            if self._waiters is None:
                self._waiters = [waiter]
            else:
                self._waiters.append(waiter)
            return True

    def _answers(self) -> Answers:
        outcome = self._outcome
        assert outcome is not None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class Settled(Commit):
    """A commit that was decided before its caller got it: to await it costs next to nothing."""

    __slots__ = ()

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def __await__(self) -> Generator[object, None, Answers]:
        outcome = self._outcome
        return outcome if type(outcome) is tuple else self._answers()
        yield  # a generator without a step


class Pending(Commit):
    """The writer's side of a commit."""

    __slots__ = ("hooked", "operations", "points")

    def __init__(
        self,
        operations: Sequence[Operation],
        points: Points,
        lock: threading.Lock,
        hurry: Callable[[], None] | None,
    ) -> None:
        # What the base would do, without the call: there is one of these for every transaction.
        self._lock = lock
        self._hurry = hurry
        self._outcome = None
        self._waiters = None
        self.operations = operations
        self.points = points
        self.hooked = False
        """Whether the hook before this commit was called: once, however often the work is tried."""

    def decide(self, outcome: Outcome) -> Sequence[_Waiter]:
        """Say how it went, under the lock; gives whoever waits for it."""
        self._outcome = outcome
        waiters, self._waiters = self._waiters, None
        return waiters or ()


def each(points: Points) -> tuple[Point, ...]:
    """The commit points one by one."""
    return () if points is None else points if isinstance(points, tuple) else (points,)


def settle(decided: Iterable[tuple[Pending, Outcome]], lock: threading.Lock) -> None:
    """Decide a group and wake everybody who waits: each event loop once, however many wait on it."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    events: list[threading.Event] = []
    with lock:
        for pending, outcome in decided:
            for waiter in pending.decide(outcome):
                if isinstance(waiter, threading.Event):
                    events.append(waiter)
                else:
                    loops.setdefault(waiter.get_loop(), []).append(waiter)
    for event in events:
        event.set()
    for loop, waiters in loops.items():
        # A loop that was closed meanwhile has nobody left to wake.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_wake, waiters)


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():  # its task may have been cancelled
            waiter.set_result(None)
