"""How an actor can leave, and what its parent is told: exactly once, on every way out."""

from __future__ import annotations

import asyncio
import dis
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")

ExitCause = Literal["stopped", "failed", "cancelled", "abandoned"]
"""Asked to stop; broken by an error; cancelled out of band; cancelled in vain and left behind."""


@dataclass(frozen=True, slots=True)
class ActorExited:
    """The last word of an actor, told to its parent."""

    urn: str
    actor_class: str
    cause: ExitCause
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that nobody handled, and why."""

    message: object
    recipient: str
    reason: str
    at: int


class HandlerEscapedError(RuntimeError):
    """A handler raised SystemExit, KeyboardInterrupt or the like.

    It is passed on as an ordinary error: raised as itself it would end whoever asked.
    """


_RAISES = frozenset(dis.opmap[name] for name in ("RAISE_VARARGS", "RERAISE"))


def is_ctrl_c(error: BaseException) -> bool:
    """Whether a person pressed Ctrl-C while a handler happened to run, as opposed to the handler raising.

    Python raises a real interrupt between two instructions of the main thread; a handler's own comes from a
    ``raise`` statement. The innermost frame tells the two apart.
    """
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    traceback = error.__traceback__
    if traceback is None:
        return True
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_code[traceback.tb_lasti] not in _RAISES


async def contained(work: Awaitable[T]) -> T:
    """What a host's own coroutine gives or raises, made harmless: on a task of its own a SystemExit ends the loop.

    The cancellation of the task that waits here, and Ctrl-C, go through.
    """
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise HandlerEscapedError("a coroutine raised CancelledError") from error
    except (SystemExit, KeyboardInterrupt) as error:
        if is_ctrl_c(error):
            raise
        raise HandlerEscapedError(f"a coroutine raised {error!r}") from error
