"""Whoever calls a tool over MCP: one agent, and the session it speaks from. Both are fixed before there is a query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from understudy.actors.searching import Searched, Searcher
from understudy.actors.tools.context import ToolContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from understudy.actors import Clock
    from understudy.actors.session import SessionActor
    from understudy.actors.tools.context import Blocking
    from understudy.persistence import SessionRecord
    from understudy.persistence.operations import Visibility
    from understudy.persistence.sessions import Sessions
    from understudy.persistence.transcripts import Transcripts

DEFAULT_AGENT = "default"


class Shelf(Searched, Protocol):
    """What there is to read: a runtime's store, or a view of it from another process."""

    sessions: Sessions
    transcripts: Transcripts


@dataclass(frozen=True, slots=True)
class Caller:
    """What one agent may see; to it, everything else is as if it were not there."""

    shelf: Shelf
    agent_id: str
    visibility: Visibility
    own: SessionRecord | None
    """The session it speaks from, as far as that is known and its agent's."""

    def session(self, key: str) -> SessionRecord | None:
        """A session; None where there is none, and where it may not be seen."""
        record = self.shelf.sessions.get(key)
        if record is None or record.agent_id == self.agent_id:
            return record
        return record if self.visibility == record.visibility == "shared" else None

    @property
    def usual(self) -> str | None:
        """Where a sub-agent looks unless it says otherwise: in its parent's session."""
        return None if self.own is None else self.own.parent_session_key

    @property
    def searcher(self) -> Searcher:
        """Who searches."""
        return Searcher(self.shelf, self.agent_id, self.visibility, self.usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext(ToolContext):
    """What a tool of this server knows besides."""

    caller: Caller
    may_make: bool = False
    """Whether it may make sessions; whoever may not is not told which keys are free."""


def known(shelf: Shelf, agent_id: str | None, session_key: str | None) -> Caller:
    """The caller: ``agent_id``, else whose session that is, else the default agent."""
    record = None if session_key is None else shelf.sessions.get(session_key)
    agent = agent_id or (DEFAULT_AGENT if record is None else record.agent_id)
    own = record if record is not None and record.agent_id == agent else None
    return Caller(shelf, agent, "isolated" if own is None else own.visibility, own)


def context_of(
    caller: Caller,
    clock: Clock,
    blocking: Blocking,
    own_session: Callable[[], SessionActor] | None = None,
    *,
    may_make: bool = False,
) -> CallContext:
    """What a call of a tool works with."""
    return CallContext(
        cwd=".",  # no tool here touches a file
        workspace_dir=".",
        clock=clock,
        blocking=blocking,
        own_session=own_session,
        search=caller.searcher,
        caller=caller,
        may_make=may_make,
    )
