"""The answer to an ask: blocking from threads, awaitable from any loop, refusing to block an actor loop."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import pykka

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType

    ExcInfo = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]

T = TypeVar("T")

_NOT_COMPUTED: Any = pykka.Future()._get_hook_result  # noqa: SLF001 - pykka's own mark of a hook that has not run

ACTOR_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
"""Event loops that run actors, and for how many runtimes."""


def on_actor_loop() -> bool:
    """Whether this is code on an actor loop: blocking here would block every actor on it."""
    try:
        return asyncio.get_running_loop() in ACTOR_LOOPS
    except RuntimeError:
        return False


# One for all: it is held for a few instructions, and a lock a future would weigh on every ask and every child.
_LOCK = threading.Lock()


class LoopFuture(pykka.Future[T]):
    """A pykka future without a Condition: a lock, the outcome, and whom to wake."""

    # Defaults on the class: one future is made for every ask, and most fields stay as they are.
    _get_hook = None
    _get_hook_result = _NOT_COMPUTED
    _outcome: tuple[Any, ExcInfo | None] | None = None
    _waiters: list[Callable[[], None]] | None = None

    def __init__(self) -> None:  # deliberately nothing: pykka's own makes what the class has already
        pass

    def set(self, value: T | None = None) -> None:
        """Answer; a second answer raises, as in pykka."""
        self._settle((value, None))

    def set_exception(self, exc_info: ExcInfo | None = None) -> None:
        """Answer with an error, by default the one being handled."""
        if exc_info is not None and len(exc_info) != 3:  # noqa: PLR2004 - type, value, traceback
            raise ValueError(f"exc_info must be (type, value, traceback), got {exc_info!r}")
        self._settle((None, exc_info or sys.exc_info()))

    def set_get_hook(self, func: Callable[[float | None], T]) -> None:
        """Compute the answer when it is asked for."""
        with _LOCK:
            if self._outcome is not None:
                raise queue.Full
            super().set_get_hook(func)

    def settled(self) -> bool:
        """Whether the answer is there."""
        return self._outcome is not None

    def get(self, *, timeout: float | None = None) -> T:
        """The answer, waited for; raises at once on an actor loop, where waiting would deadlock."""
        if self._outcome is None:
            if self._get_hook is not None:
                return super().get(timeout=timeout)
            if on_actor_loop():
                raise RuntimeError(
                    "blocking get() or ask() on an actor loop would deadlock: "
                    "use `await ref.ask(message, block=False)` there"
                )
            gate = threading.Lock()
            gate.acquire()
            patience = -1 if timeout is None else max(timeout, 0)
            if self._wake_later(gate.release) and not gate.acquire(timeout=patience):
                raise pykka.Timeout(f"{timeout} seconds")
        return self._unwrap()

    def __await__(self) -> Generator[Any, None, T]:
        if self._outcome is None:
            loop = asyncio.get_running_loop()
            if self._get_hook is not None:
                # The hooks of map(), join() and stop() wait in get(): that belongs on a thread.
                return (yield from loop.run_in_executor(None, self.get).__await__())
            woken, here = loop.create_future(), threading.get_ident()

            def settle() -> None:
                if not woken.done():
                    woken.set_result(None)

            def wake() -> None:
                if threading.get_ident() == here:
                    settle()
                elif not loop.is_closed():
                    loop.call_soon_threadsafe(settle)

            if self._wake_later(wake):
                yield from woken.__await__()
        return self._unwrap()

    __iter__ = __await__

    def _settle(self, outcome: tuple[Any, ExcInfo | None]) -> None:
        with _LOCK:
            if self._outcome is not None or self._get_hook is not None:
                raise queue.Full
            self._outcome = outcome
            waiters, self._waiters = self._waiters, None
        for wake in waiters or ():
            wake()

    def _wake_later(self, wake: Callable[[], None]) -> bool:
        """Remember whom to wake; False when the answer came first."""
        with _LOCK:
            if self._outcome is not None:
                return False
            if self._waiters is None:
                self._waiters = [wake]
            else:
                self._waiters.append(wake)
            return True

    def _unwrap(self) -> T:
        assert self._outcome is not None
        value, exc_info = self._outcome
        if exc_info is None:
            return value  # type: ignore[no-any-return]  # the setter's T
        kind, error, traceback = exc_info
        if error is None:
            assert kind is not None
            error = kind()
        raise error.with_traceback(traceback)
