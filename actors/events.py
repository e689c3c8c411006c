"""The event bus: what happens, told to whoever listens, without ever waiting for them."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Self

from understudy.actors._kernel.future import LoopFuture

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from understudy.protocol import Event

DEFAULT_BACKLOG = 1_000


class Subscription:
    """Events from now on, in order: iterate it from a thread, or with ``async for`` on an event loop.

    A listener that is slow loses the oldest of its own backlog and sees how many in ``missed``; it holds up
    nobody else.
    """

    def __init__(self, bus: EventBus, wanted: Callable[[Event], bool] | None, backlog: int) -> None:
        self._bus = bus
        self._wanted = wanted
        self._waiting: deque[Event] = deque(maxlen=backlog)
        self._lock = threading.Lock()
        self._arrived: LoopFuture[None] | None = None
        self._closed = False
        self.missed = 0
        """How many events were lost because nobody took them in time."""

    def take(self, event: Event) -> None:
        """Keep an event for the listener; called by the bus."""
        if self._wanted is not None and not self._wanted(event):
            return
        with self._lock:
            if len(self._waiting) == self._waiting.maxlen:
                self.missed += 1
            self._waiting.append(event)
            arrived, self._arrived = self._arrived, None
        if arrived is not None:
            arrived.set()

    def poll(self) -> list[Event]:
        """All that waits now, without waiting for more."""
        with self._lock:
            events = list(self._waiting)
            self._waiting.clear()
        return events

    def close(self) -> None:
        """Hear no more; who iterates gets what is left, then the end."""
        self._bus.unsubscribe(self)
        with self._lock:
            self._closed = True
            arrived, self._arrived = self._arrived, None
        if arrived is not None:
            arrived.set()

    def _next(self) -> Event | LoopFuture[None] | None:
        """The next event, or what to wait for, or None at the end."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            if self._closed:
                return None
            if self._arrived is None:
                self._arrived = LoopFuture()
            return self._arrived

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        while isinstance(found := self._next(), LoopFuture):
            found.get()
        if found is None:
            raise StopIteration
        return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while isinstance(found := self._next(), LoopFuture):
            await found
        if found is None:
            raise StopAsyncIteration
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class EventBus:
    """Hands every event to every subscription."""

    def __init__(self) -> None:
        # Replaced, never changed: emitting needs no lock.
        self.subscriptions: tuple[Subscription, ...] = ()
        self._lock = threading.Lock()

    def subscribe(
        self, wanted: Callable[[Event], bool] | None = None, *, backlog: int = DEFAULT_BACKLOG
    ) -> Subscription:
        """Listen from now on; ``wanted`` picks events, ``backlog`` is how many may wait."""
        if backlog < 1:
            raise ValueError(f"backlog = {backlog} is not allowed: use 1 or more")
        subscription = Subscription(self, wanted, backlog)
        with self._lock:
            self.subscriptions = (*self.subscriptions, subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Forget a listener."""
        with self._lock:
            self.subscriptions = tuple(other for other in self.subscriptions if other is not subscription)

    def emit(self, event: Event) -> None:
        """Tell everybody."""
        for subscription in self.subscriptions:
            subscription.take(event)

    def close(self) -> None:
        """End every subscription."""
        for subscription in self.subscriptions:
            subscription.close()
