"""An actor that listens: what a test gives as ``reply_to`` or as a parent."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

import pykka

from understudy.actors._kernel.actor import LoopActor
from understudy.actors._kernel.future import LoopFuture

if TYPE_CHECKING:
    from pykka import ActorRef

    from understudy.actors.runtime import AsyncRuntime, Runtime

T = TypeVar("T")


class _Listener(LoopActor):
    registered = False

    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self._probe = probe

    def on_receive(self, message: Any) -> None:
        self._probe._take(message)  # noqa: SLF001 - the other half of the same thing


class Probe:
    """Keeps every message told to ``ref`` and hands them out in order.

    Example:
        >>> from understudy.actors import Runtime
        >>> with Runtime() as runtime:
        ...     probe = Probe(runtime)
        ...     probe.ref.tell("hello")
        ...     probe.expect(str)
        'hello'
    """

    def __init__(self, runtime: Runtime | AsyncRuntime) -> None:
        self.messages: list[object] = []
        """All that came, oldest first."""
        self._unread: list[object] = []
        self._waiting: list[tuple[type[Any], LoopFuture[Any]]] = []
        self._lock = threading.Lock()
        self.ref: ActorRef[Any] = runtime.start_actor(_Listener, self)

    def expect(self, kind: type[T], *, timeout: float = 10.0) -> T:
        """The next message of this kind that was not handed out yet; waits for it, and fails saying what came."""
        try:
            return self._next(kind).get(timeout=timeout)
        except pykka.Timeout:
            raise AssertionError(f"no {kind.__name__} came; all that did: {self.messages!r}") from None

    async def expect_async(self, kind: type[T]) -> T:
        """The same from an event loop, without a limit of its own."""
        return await self._next(kind)

    def _next(self, kind: type[T]) -> LoopFuture[T]:
        found: LoopFuture[T] = LoopFuture()
        with self._lock:
            for index, message in enumerate(self._unread):
                if isinstance(message, kind):
                    del self._unread[index]
                    found.set(message)
                    return found
            self._waiting.append((kind, found))
        return found

    def _take(self, message: object) -> None:
        with self._lock:
            self.messages.append(message)
            for index, (kind, found) in enumerate(self._waiting):
                if isinstance(message, kind):
                    del self._waiting[index]
                    found.set(message)
                    return
            self._unread.append(message)
