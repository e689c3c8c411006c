"""One event loop for many actors, in a thread of its own or on the host's."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
from collections import deque
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVar

from pykka import ActorDeadError

from understudy.actors._kernel.exits import DeadLetter
from understudy.actors._kernel.future import ACTOR_LOOPS, on_actor_loop
from understudy.actors._kernel.lag import LagGauge
from understudy.actors._kernel.mailbox import Mailbox
from understudy.actors._kernel.pool import BlockingPool
from understudy.actors.clock import within

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pykka import ActorRef

    from understudy.actors._kernel.actor import LoopActor
    from understudy.actors.clock import Clock

A = TypeVar("A", bound="LoopActor")
T = TypeVar("T")

DEFAULT_GRACE = 5.0
DEFAULT_BLOCKING_THREADS = 32


class ActorLoop:
    """Runs actors on one asyncio loop: schedules mailboxes, owns the thread pool, stops what it started."""

    def __init__(
        self,
        *,
        clock: Clock,
        dead_letters: Callable[[DeadLetter], None],
        blocking_threads: int = DEFAULT_BLOCKING_THREADS,
    ) -> None:
        self.clock = clock
        self._dead_letters = dead_letters
        self._blocking_threads = blocking_threads
        self._urn_prefix = f"urn:understudy:{os.getpid():x}-{os.urandom(6).hex()}:"
        self._count = itertools.count(1)
        self._actors: dict[LoopActor, None] = {}
        self._ready: deque[Mailbox] = deque()
        self._waking = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ident = -1
        self._open = False
        # One context for all slices: a spawner's context variables do not leak into its actors.
        self.context = Context()

    # -- beginning and end ----------------------------------------------------------------------------

    def run_in_thread(self) -> None:
        """Start a thread with a loop of its own, and return once it turns."""
        ready = threading.Event()

        async def serve() -> None:
            self.run_here()
            self._closing = self.asyncio_loop.create_future()
            ready.set()
            await self._closing

        def main() -> None:
            # Not asyncio.run(): at its end it waits, without limit, for tasks that ignore their cancellation.
            loop = asyncio.new_event_loop()
            loop.run_until_complete(serve())
            loop.run_until_complete(_cancel_stragglers())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

        self._thread = threading.Thread(target=main, name="understudy-loop", daemon=True)
        self._thread.start()
        ready.wait()

    def run_here(self) -> None:
        """Use the running loop, which is the host's."""
        self.asyncio_loop = asyncio.get_running_loop()
        self._ident = threading.get_ident()
        ACTOR_LOOPS[self.asyncio_loop] = ACTOR_LOOPS.get(self.asyncio_loop, 0) + 1
        self.pool = BlockingPool(self.asyncio_loop, self.clock, limit=self._blocking_threads)
        self.lag = LagGauge(self.asyncio_loop)
        self.clock.attach(self.asyncio_loop)
        self._open = True

    async def close(self, *, grace: float = DEFAULT_GRACE) -> None:
        """Stop every actor this loop started, and nothing else; then the pool and the gauge."""
        with self.clock.unattended():
            await asyncio.gather(*(self.stop(actor, grace=grace) for actor in reversed(self._actors)))
        self._open = False
        self.clock.detach(self.asyncio_loop)
        self.pool.close()
        self.lag.close()
        ACTOR_LOOPS[self.asyncio_loop] -= 1
        if not ACTOR_LOOPS[self.asyncio_loop]:
            del ACTOR_LOOPS[self.asyncio_loop]
        if self._thread is not None:
            self._closing.set_result(None)

    def join(self) -> None:
        """Wait for the thread of a closed loop."""
        if self._thread is not None:
            self._thread.join()

    def run_from_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` gives, run on this loop and waited for on another thread."""
        if on_actor_loop():
            work.close()
            raise RuntimeError("a blocking call on an actor loop would deadlock: use the awaitable one there")
        return asyncio.run_coroutine_threadsafe(work, self.asyncio_loop).result()

    # -- actors ---------------------------------------------------------------------------------------

    def start(
        self, actor_class: type[A], *args: Any, parent: ActorRef[Any] | None = None, **kwargs: Any
    ) -> ActorRef[A]:
        """Start an actor on this loop; ``parent`` is told, exactly once, when it has left."""
        actor = self._made(actor_class, *args, **kwargs)
        actor.parent = parent
        return actor.launch()

    def start_unaddressed(self, actor_class: type[A], *args: Any) -> A:
        """Start an actor that nobody sends messages to: whoever starts it has the object itself."""
        actor = self._made(actor_class, *args)
        actor.go()
        return actor

    def _made(self, actor_class: type[A], *args: Any, **kwargs: Any) -> A:
        if not self._open:
            raise RuntimeError(f"cannot start {actor_class.__name__}: the runtime is closed")
        actor = actor_class.__new__(actor_class)
        actor.kernel = self
        actor.__init__(*args, **kwargs)  # type: ignore[misc]  # after `kernel`, which it needs
        return actor

    async def stop(self, actor: LoopActor, *, grace: float = DEFAULT_GRACE) -> None:
        """Ask, wait, cancel, wait, abandon: when this returns the actor has left and its parent knows."""
        mailbox = mailbox_of(actor)
        with contextlib.suppress(ActorDeadError):  # it is leaving already
            actor.stop()
        if await self._left(mailbox, grace):
            return
        self.cancel(actor)
        if await self._left(mailbox, grace):
            return
        mailbox.close("abandoned")

    async def _left(self, mailbox: Mailbox, grace: float) -> bool:
        async def exited() -> None:
            await mailbox.exited()

        try:
            await within(self.clock, grace, exited())
        except TimeoutError:
            return False
        return True

    def cancel(self, actor: LoopActor) -> None:
        """End an actor out of band: what it is doing is cancelled, what waits in its mailbox is refused."""
        if threading.get_ident() != self._ident:
            self.asyncio_loop.call_soon_threadsafe(self.cancel, actor)
            return
        mailbox = mailbox_of(actor)
        actor.cancel_requested = True
        if mailbox.task is not None:
            mailbox.task.cancel()
        else:
            mailbox.rouse()

    def adopt(self, actor: LoopActor) -> None:
        """Remember an actor, to stop it at the end."""
        self._actors[actor] = None

    def disown(self, actor: LoopActor) -> None:
        """Forget an actor that has left."""
        self._actors.pop(actor, None)

    def next_urn(self) -> str:
        """Unique across processes, and cheap."""
        return f"{self._urn_prefix}{next(self._count)}"

    # -- scheduling -----------------------------------------------------------------------------------

    def schedule(self, mailbox: Mailbox) -> None:
        """Run a slice of this mailbox soon, from any thread. One wake-up of the loop serves all that came meanwhile."""
        self._ready.append(mailbox)
        if self._waking.acquire(blocking=False):
            self._wake_up()

    def _wake_up(self) -> None:
        if self.asyncio_loop.is_closed():
            # The host's loop ended without the runtime being closed: nobody will ever run these again.
            for actor in list(self._actors):
                mailbox_of(actor).close("abandoned")
        elif threading.get_ident() == self._ident:
            self.asyncio_loop.call_soon(self._run_slices, context=self.context)
        else:
            self.asyncio_loop.call_soon_threadsafe(self._run_slices, context=self.context)

    def _run_slices(self) -> None:
        self._waking.release()  # before running: what is put from now on wakes again
        ready = self._ready
        try:
            for _ in range(len(ready)):  # what comes meanwhile waits its turn behind the loop's other work
                ready.popleft().run_slice()
        except BaseException:  # a Ctrl-C on its way to the host: those behind still get their slice
            if self._waking.acquire(blocking=False):
                self._wake_up()
            raise

    def create_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task on this loop."""
        return self.asyncio_loop.create_task(work)

    def dead_letter(self, message: object, recipient: str, reason: str) -> None:
        """Report a message that nobody will handle."""
        self._dead_letters(DeadLetter(message, recipient, reason, self.clock.wall_ms()))


def mailbox_of(actor: LoopActor) -> Mailbox:
    """The mailbox, typed: pykka knows it only as something with a put."""
    assert isinstance(actor.actor_inbox, Mailbox)
    return actor.actor_inbox


def actor_of(ref: ActorRef[A]) -> A:
    """The actor behind a ref: for those who have just started it, on its own loop."""
    actor = ref._actor_weakref()  # noqa: SLF001 - pykka keeps it for exactly such insiders
    assert actor is not None
    return actor


async def _cancel_stragglers() -> None:
    """Cancel what user code left running, give it one turn of the loop to clean up, and leave the rest behind."""
    stragglers = asyncio.all_tasks() - {asyncio.current_task()}
    for task in stragglers:
        task.cancel()
        # An abandoned task was reported when it was abandoned: its end needs no second word.
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio has no other way
    if stragglers:
        await asyncio.wait(stragglers, timeout=0)
