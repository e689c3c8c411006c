"""A mailbox that owns its actor until it stops, runs it in slices, and answers whoever comes too late."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from pykka import ActorDeadError
from pykka.messages import _ActorStop

from understudy.actors._kernel.exits import HandlerEscapedError, is_ctrl_c
from understudy.actors._kernel.future import LoopFuture
from understudy.protocol import InvalidMessageError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pykka import Future
    from pykka._envelope import Envelope

    from understudy.actors._kernel.actor import LoopActor
    from understudy.actors._kernel.exits import ExitCause
    from understudy.actors._kernel.loop import ActorLoop

# So many messages are handled before the other actors get their turn.
_SLICE = 64


class Mailbox:
    """Queue and scheduler of one actor. All but `put`, `get` and `empty` happen on the loop's thread."""

    __slots__ = ("_awake", "_closed", "_current", "_event", "_exited", "_loop", "_queue", "_stopped", "actor", "task")

    def __init__(self, loop: ActorLoop) -> None:
        self._loop = loop
        self._queue: deque[Envelope[Any]] = deque()
        # Held while a slice is scheduled or running: a put that gets it schedules the next one.
        self._awake = threading.Lock()
        self._awake.acquire()
        self._closed = False
        self._stopped = False
        self._event: threading.Event | None = None
        self._current: Envelope[Any] | None = None
        self._exited: LoopFuture[None] | None = None
        self.actor: LoopActor | None = None
        self.task: asyncio.Task[None] | None = None

    # -- any thread -----------------------------------------------------------------------------------

    def put(self, envelope: Envelope[Any], /) -> None:
        """Take a message; one that comes after the end is answered at once."""
        self._queue.append(envelope)
        if self._awake.acquire(blocking=False):
            self._loop.schedule(self)
        elif self._closed:
            # close() drained before this append: nobody else will look again.
            self._refuse_rest()

    def get(self) -> Envelope[Any]:
        """The next message."""
        return self._queue.popleft()

    def empty(self) -> bool:
        """Whether no message waits."""
        return not self._queue

    # -- what pykka wants of a threading.Event, with a lock only if somebody waits -------------------------

    def is_set(self) -> bool:
        """Whether the actor has stopped."""
        return self._stopped

    def set(self) -> None:
        """The actor has stopped."""
        self._stopped = True
        if self._event is not None:
            self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the actor has stopped."""
        event = self._event = self._event or threading.Event()
        if self._stopped:  # set() may have come before it could see the event
            event.set()
        return event.wait(timeout)

    # -- the loop's thread ----------------------------------------------------------------------------

    def begin(self, actor: LoopActor) -> None:
        """Own ``actor`` (pykka's refs are weak) and start it with the first slice."""
        self.actor = actor
        self._loop.schedule(self)

    def begin_at_once(self, actor: LoopActor) -> None:
        """The same on the loop's own thread, without waiting for a slice: for an actor that lives in its `on_start`."""
        self.actor = actor
        actor.begun = True
        if not self._under_way(actor.run_on_start()):
            self._loop.schedule(self)

    def exited(self) -> LoopFuture[None]:
        """Settled once the actor has left and its parent was told."""
        if self._exited is None:
            self._exited = LoopFuture()
            if self._closed:
                self._exited.set()
        return self._exited

    def take_reply(self) -> Future[Any] | None:
        """Take over answering the message being handled: None when nobody asked. Call it inside the handler."""
        envelope = self._current
        if envelope is None:
            return None
        reply, envelope.reply_to = envelope.reply_to, None
        return reply

    def rouse(self) -> None:
        """Have a slice run even though no message came."""
        if self._awake.acquire(blocking=False):
            self._loop.schedule(self)

    def run_slice(self) -> None:
        """Handle what waits, until it is empty, an async handler is under way, or others want their turn."""
        actor = self.actor
        if actor is None:  # closed while this slice was scheduled
            return
        stopped, queue = actor.actor_stopped, self._queue
        if not actor.begun and not actor.cancel_requested:
            actor.begun = True
            if self._under_way(actor.run_on_start()):
                return
        for _ in range(_SLICE):
            if actor.cancel_requested and not stopped.is_set() and self._under_way(actor.run_on_cancel()):
                return
            if stopped.is_set():
                self.close(actor.exit_cause)
                return
            if not queue:
                self._awake.release()
                # A put between the check and the release saw the lock held: look once more.
                if queue and self._awake.acquire(blocking=False):
                    continue
                return
            self._current = queue.popleft()
            if self._handle(actor, self._current):
                return
            self._current = None
        self._loop.schedule(self)

    def _handle(self, actor: LoopActor, envelope: Envelope[Any]) -> bool:
        """Let the actor handle one message; True when its handler goes on as a task."""
        try:
            answer = actor._handle_receive(envelope.message)  # noqa: SLF001 - pykka's hook for runtimes
        except BaseException as error:
            under_way = self._under_way(self._fail(actor, error))
            if is_ctrl_c(error):
                if not under_way:
                    self._loop.schedule(self)  # this slice ends here, the actor's leaving goes on in another
                raise
            return under_way
        if type(answer) is CoroutineType:
            return self._under_way(self._await_answer(actor, answer))
        if envelope.reply_to is not None:
            envelope.reply_to.set(answer)
        return False

    def _under_way(self, work: Coroutine[Any, Any, None] | None) -> bool:
        if work is None:
            return False
        self.task = task = self._loop.create_task(work)
        # With a context of the loop's own: by default each callback would get a copy of the caller's.
        task.add_done_callback(self._resume, context=self._loop.context)
        return True

    def _resume(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # only a real Ctrl-C gets here, and the loop has raised it already
        self.task = self._current = None
        self.run_slice()

    async def _await_answer(self, actor: LoopActor, handler: Coroutine[Any, Any, Any]) -> None:
        try:
            answer = await handler
        except asyncio.CancelledError as error:
            if actor.cancelled_from_outside():
                actor.leave("cancelled", error)
                self._reply_error(ActorDeadError(f"{actor.actor_ref} was cancelled before it answered"))
                raise  # the host's own loop is ending: let its cancellation through
            if actor.cancel_requested:
                self._reply_error(ActorDeadError(f"{actor.actor_ref} was cancelled before it answered"))
                return
            # The handler raised it itself, for example by awaiting something that was cancelled.
            hook = self._fail(actor, error)
            if hook is not None:
                await hook
        except BaseException as error:
            if self._closed:
                raise  # abandoned long ago, and now collected or late: nobody is left to tell
            hook = self._fail(actor, error)
            if hook is not None:
                await hook
            if is_ctrl_c(error):
                raise
        else:
            self._reply(answer)

    def _fail(self, actor: LoopActor, error: BaseException) -> Coroutine[Any, Any, None] | None:
        """Contain what a handler raised: asked, the asker gets it; told, the actor is broken and leaves."""
        envelope = self._current
        asked = envelope is not None and envelope.reply_to is not None
        if isinstance(error, InvalidMessageError):
            # The message was bad, not the actor.
            if envelope is not None:
                self._loop.dead_letter(envelope.message, actor.name(), str(error))
            self._reply_error(error)
            return None
        if isinstance(error, Exception):
            if asked:
                actor.log_returned(error)
                self._reply_error(error)
                return None
            return actor.run_on_failure(error)
        # pykka would now stop every actor in the process, the host's own included.
        hook = actor.run_on_failure(error)
        escaped = HandlerEscapedError(f"{actor.actor_ref}: a handler raised {error!r}")
        escaped.__cause__ = error
        self._reply_error(escaped)
        return hook

    def _reply(self, answer: object) -> None:
        envelope = self._current
        if envelope is not None and envelope.reply_to is not None and not self._closed:
            envelope.reply_to.set(answer)

    def _reply_error(self, error: BaseException) -> None:
        envelope = self._current
        if envelope is not None and envelope.reply_to is not None and not self._closed:
            envelope.reply_to.set_exception((type(error), error, error.__traceback__))

    def close(self, cause: ExitCause) -> None:
        """The one way out: let the actor go, tell its parent, answer what is left."""
        actor = self.actor
        if actor is None:
            return
        if self.task is not None:  # abandoned: what it says from now on is fenced off
            self._reply_error(ActorDeadError(f"{actor.actor_ref} would not stop and was abandoned"))
        self.actor = None
        self._closed = True
        self._refuse_rest()
        actor.report_exit(cause)
        if self._exited is not None:
            self._exited.set()

    def _refuse_rest(self) -> None:
        queue = self._queue
        while queue:
            try:
                envelope = queue.popleft()
            except IndexError:  # another late put is draining too
                return
            if isinstance(envelope.message, _ActorStop):
                if envelope.reply_to is not None:
                    envelope.reply_to.set(None)
                continue
            reason = "the actor stopped before handling the message"
            self._loop.dead_letter(envelope.message, "a stopped actor", reason)
            if envelope.reply_to is not None:
                envelope.reply_to.set_exception((ActorDeadError, ActorDeadError(reason), None))
