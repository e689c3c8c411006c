"""A pykka actor that costs no thread: one event loop runs it, and its handlers may be coroutines."""

from __future__ import annotations

import asyncio
import logging
import sys
from functools import cached_property
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pykka
from pykka import ActorDeadError, ActorRef, ActorRegistry

from understudy.actors._kernel.exits import ActorExited
from understudy.actors._kernel.future import LoopFuture
from understudy.actors._kernel.mailbox import Mailbox
from understudy.protocol import Message, parse_message

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from understudy.actors._kernel.exits import ExitCause
    from understudy.actors._kernel.loop import ActorLoop

logger = logging.getLogger("understudy.kernel")


class LoopActor(pykka.Actor):
    """A pykka actor on the runtime's event loop, without a thread of its own: start it with `Runtime.start_actor`.

    ``on_start``, ``on_receive``, ``on_stop`` and ``on_failure`` may be ``async``.

    Example:
        >>> class Echo(LoopActor):
        ...     async def on_receive(self, message):
        ...         return message
    """

    registered: ClassVar[bool] = True
    """Whether it stands in pykka's global registry, a list: ephemeral children do not."""

    kernel: ActorLoop | None = None
    """The loop that runs it: set by `ActorLoop.start`, or on a class that is started by pykka's own `start`."""

    begun = False
    cancel_requested = False
    exit_cause: ExitCause = "stopped"
    exit_error: BaseException | None = None
    parent: ActorRef[Any] | None = None

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        # Replaces pykka's own, whose uuid and Event would cost more than all the rest of a spawn.
        loop = self.kernel
        if loop is None:
            raise RuntimeError(f"{type(self).__name__} has no event loop: start it with runtime.start_actor()")
        self.actor_inbox = mailbox = Mailbox(loop)
        self.actor_stopped = mailbox  # type: ignore[assignment]  # it does what pykka asks of an Event

    # The name and the ref are made when somebody asks: for a child that nobody addresses, nobody does.

    @cached_property
    def actor_urn(self) -> str:  # type: ignore[override]  # an attribute in pykka
        """Unique across processes."""
        assert self.kernel is not None
        return self.kernel.next_urn()

    @cached_property
    def _actor_ref(self) -> ActorRef[Any]:  # type: ignore[override]  # an attribute in pykka
        return ActorRef(self)

    @classmethod
    def start(cls, *args: Any, **kwargs: Any) -> ActorRef[Self]:
        """Start on the class's own ``kernel``, as pykka does."""
        return cls(*args, **kwargs).launch()

    def launch(self) -> ActorRef[Self]:
        """Enter the registry, if this kind does, and begin with the loop's next turn."""
        # Made here and now, which is cheaper than a cached property's first time.
        self.__dict__["actor_urn"] = self.kernel.next_urn()  # type: ignore[union-attr]  # checked in __init__
        ref: ActorRef[Self] = ActorRef(self)
        self.__dict__["_actor_ref"] = ref
        if self.registered:
            ActorRegistry.register(ref)
        self.go()
        return ref

    def go(self) -> None:
        """Begin, without a ref for anybody."""
        logger.debug("Starting %s", self)
        self._start_actor_loop()

    def name(self) -> str:
        """Class and URN, for logs and dead letters."""
        return f"{type(self).__name__} ({self.actor_urn})"

    def take_reply(self) -> pykka.Future[Any] | None:
        """Answer the message being handled later, by the future given here; None when nobody asked.

        Whoever takes it must answer it, on every way out.
        """
        assert isinstance(self.actor_inbox, Mailbox)
        return self.actor_inbox.take_reply()

    # -- pykka's hooks for runtimes -------------------------------------------------------------------

    @staticmethod
    def _create_actor_inbox() -> Mailbox:
        raise RuntimeError("a mailbox needs its loop: LoopActor.__init__ makes it")

    @staticmethod
    def _create_future() -> LoopFuture[Any]:
        return LoopFuture()

    def _start_actor_loop(self) -> None:
        assert isinstance(self.actor_inbox, Mailbox)
        assert self.kernel is not None
        self.kernel.adopt(self)
        self.actor_inbox.begin(self)

    def _stop(self) -> Coroutine[Any, Any, None] | None:  # type: ignore[override]  # on_stop may be async
        self.leave("stopped")
        logger.debug("Stopped %s", self)
        return self._run_hook(self.on_stop)

    def _handle_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        logger.error(
            "Unhandled exception in %s:",
            self,
            exc_info=(exception_type, exception_value, traceback),  # type: ignore[arg-type]  # as pykka has it
        )
        self.leave("failed", exception_value)

    # -- leaving --------------------------------------------------------------------------------------

    def leave(self, cause: ExitCause, error: BaseException | None = None) -> None:
        """Stop handling messages; the first cause stands."""
        if self.actor_stopped.is_set():
            return
        self.exit_cause, self.exit_error = cause, error
        if self.registered:
            ActorRegistry.unregister(self._actor_ref)
        self.actor_stopped.set()

    def report_exit(self, cause: ExitCause) -> None:
        """Tell the parent, or the dead letters if there is none to hear. Called once, by the mailbox."""
        self.leave(cause)
        assert self.kernel is not None
        self.kernel.disown(self)
        if self.parent is None:
            return
        last_word = ActorExited(self.actor_urn, type(self).__name__, cause, self.exit_error)
        try:
            self.parent.tell(last_word)
        except ActorDeadError:
            self.kernel.dead_letter(last_word, str(self.parent), "the parent has stopped")

    def log_returned(self, error: BaseException) -> None:
        """As pykka does: an error that goes to its asker is worth an INFO, not an ERROR."""
        logger.info("Exception returned from %s to caller:", self, exc_info=error)

    # -- the host's hooks, plain or async, never able to hurt the loop --------------------------------

    def run_on_start(self) -> Coroutine[Any, Any, None] | None:
        """Run `on_start`; a coroutine comes back guarded."""
        return self._run_hook(self.on_start)

    def run_on_failure(self, error: BaseException) -> Coroutine[Any, Any, None] | None:
        """Leave as failed and run `on_failure`; a coroutine comes back guarded."""
        info = (type(error), error, error.__traceback__)
        self._handle_failure(*info)
        return self._run_hook(self.on_failure, *info)

    def run_on_cancel(self) -> Coroutine[Any, Any, None] | None:
        """Leave as cancelled; `on_failure` hears of it, as of any end that was not asked for."""
        error = asyncio.CancelledError(f"{self} was cancelled")
        self.leave("cancelled", error)
        return self._run_hook(self.on_failure, type(error), error, None)

    def cancelled_from_outside(self) -> bool:
        """Whether the task of this handler is being cancelled by somebody else than the kernel: the host."""
        task = asyncio.current_task()
        return not self.cancel_requested and task is not None and task.cancelling() > 0

    def _run_hook(self, hook: Callable[..., Any], *args: Any) -> Coroutine[Any, Any, None] | None:
        try:
            work = hook(*args)
        except BaseException:  # noqa: BLE001 - a hook is a handler: what it raises stays with its actor
            self._handle_failure(*sys.exc_info())
            return None
        return self._guarded(work) if type(work) is CoroutineType else None

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except asyncio.CancelledError as error:
            if self.cancel_requested or self.cancelled_from_outside():
                self.leave("cancelled", error)
                raise
            self._handle_failure(*sys.exc_info())
        except BaseException:  # noqa: BLE001 - as in _run_hook
            self._handle_failure(*sys.exc_info())


class MessageActor(LoopActor):
    """An actor that takes only what the protocol knows: anything else is refused and reported, and it lives on."""

    def on_receive(self, payload: Any) -> Any:
        """Let messages in by the one door."""
        return self.on_message(parse_message(payload))

    def on_message(self, message: Message) -> Any:
        """Handle a valid message."""
        raise NotImplementedError
