"""The runtime a host embeds: `Runtime` for sync hosts on a thread of its own, `AsyncRuntime` on the host's loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, TypeVar

from understudy.actors._kernel.actor import LoopActor
from understudy.actors._kernel.loop import DEFAULT_GRACE, ActorLoop
from understudy.actors.clock import SystemClock
from understudy.protocol import RuntimeConfig

if TYPE_CHECKING:
    from types import TracebackType

    from pykka import ActorRef

    from understudy.actors._kernel.exits import DeadLetter
    from understudy.actors._kernel.lag import LagGauge
    from understudy.actors.clock import Clock

A = TypeVar("A", bound=LoopActor)


class _Core:
    """What both faces share."""

    def __init__(self, *, config: RuntimeConfig | None = None, clock: Clock | None = None) -> None:
        self.config = config or RuntimeConfig()
        self.clock: Clock = clock or SystemClock()
        self.dead_letters: list[DeadLetter] = []
        """Messages nobody handled, each with its reason."""
        self._kernel = ActorLoop(clock=self.clock, dead_letters=self.dead_letters.append)

    @property
    def lag(self) -> LagGauge:
        """How late the event loop is."""
        return self._kernel.lag

    @property
    def abandoned_threads(self) -> int:
        """Blocking calls that outlived their deadline and still hold a thread."""
        return self._kernel.pool.abandoned_threads

    def start_actor(
        self, actor_class: type[A], *args: Any, parent: ActorRef[Any] | None = None, **kwargs: Any
    ) -> ActorRef[A]:
        """Start one of the host's own actors on this runtime's loop.

        ``parent`` is told with `ActorExited`, exactly once, when it has left, in whatever way.
        """
        return self._kernel.start(actor_class, *args, parent=parent, **kwargs)


class Runtime(_Core):
    """Runs actors on an event loop in a thread of its own.

    Example:
        >>> class Echo(LoopActor):
        ...     async def on_receive(self, message):
        ...         return message
        >>> with Runtime() as runtime:
        ...     runtime.start_actor(Echo).ask("hello")
        'hello'
    """

    def __enter__(self) -> Self:
        self._kernel.run_in_thread()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self, *, grace: float = DEFAULT_GRACE) -> None:
        """Stop everything this runtime started: asked first, cancelled after ``grace`` seconds."""
        closing = self._kernel.close(grace=grace)
        asyncio.run_coroutine_threadsafe(closing, self._kernel.asyncio_loop).result()
        self._kernel.join()


class AsyncRuntime(_Core):
    """The same on the host's own event loop; await what `Runtime` blocks for."""

    async def __aenter__(self) -> Self:
        self._kernel.run_here()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, *, grace: float = DEFAULT_GRACE) -> None:
        """Stop everything this runtime started: asked first, cancelled after ``grace`` seconds."""
        await self._kernel.close(grace=grace)
