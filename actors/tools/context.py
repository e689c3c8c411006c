"""What a running tool knows of its run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from understudy.actors.clock import Clock
    from understudy.actors.searching import Searcher
    from understudy.actors.session import SessionActor
    from understudy.protocol.authority import Authority

T = TypeVar("T")


class Blocking(Protocol):
    """Runs a blocking function off the event loop; in a runtime this is its pool."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        """What ``function`` returns or raises."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Where a tool works and by which clock. A parameter with this annotation receives it, unseen by the model."""

    cwd: str
    """Where tools and processes run, and what relative paths are relative to."""
    workspace_dir: str
    """The session's own folder: the other root that file tools may touch."""
    clock: Clock
    blocking: Blocking
    own_session: Callable[[], SessionActor] | None = None
    """Gives the session the caller's own sub-agents live under; None outside a runtime."""
    authority: Authority | None = None
    """What the caller can hand down to them: the tools it has itself."""
    search: Searcher | None = None
    """Looks up what was said, as the agent whose tool this is; None outside of a runtime."""
