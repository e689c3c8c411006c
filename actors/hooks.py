"""The host's hooks: called on the way, never able to hold it up."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from understudy.actors._kernel.exits import contained
from understudy.actors.clock import within

if TYPE_CHECKING:
    from understudy.actors._kernel.loop import ActorLoop
    from understudy.protocol import SpawnPacket, SubAgentResult

logger = logging.getLogger("understudy")

T = TypeVar("T")
Rollback: TypeAlias = Callable[[], object]
PrepareSpawn: TypeAlias = "Callable[[SpawnPacket], Rollback | Awaitable[Rollback | None] | None]"
OnEnded: TypeAlias = "Callable[[SubAgentResult], object]"

HOOK_SECONDS = 5.0
"""A hook that takes longer is left behind: the run goes on without it."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """``prepare_spawn`` before a spawn is accepted, giving back how to undo it; ``on_ended`` after the end."""

    prepare_spawn: PrepareSpawn | None = None
    on_ended: OnEnded | None = None


async def call_hook(kernel: ActorLoop, hook: Callable[..., Any], *args: object) -> Any:
    """What a hook gives, or None: one that fails or is slow is logged and skipped. Sync ones run on a thread."""
    try:
        return await within(kernel.clock, HOOK_SECONDS, _called(kernel, hook, *args))
    except TimeoutError:
        logger.warning("hook %r took more than %s seconds and was left behind", hook, HOOK_SECONDS)
    except Exception:
        logger.exception("hook %r failed and was skipped", hook)
    return None


async def _called(kernel: ActorLoop, hook: Callable[..., Any], *args: object) -> Any:
    if inspect.iscoroutinefunction(hook):
        return await contained(hook(*args))
    answer = await kernel.pool.run(lambda: hook(*args))
    return await contained(answer) if inspect.isawaitable(answer) else answer
