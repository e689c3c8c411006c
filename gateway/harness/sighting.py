"""What a harness told of one of its sessions, whatever words it has for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from understudy.protocol import SessionKey
from understudy.protocol._value import value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from understudy.protocol import Receipt
    from understudy.protocol.model import Turn

Harness = Literal["claude-code", "opencode", "openclaw", "codex"]
What = Literal[
    "opened",
    "said",
    "delegating",
    "used",
    "delegated",
    "compacting",
    "answered",
    "closed",
]
"""A session began; something was said; it is about to start a sub-agent; it used a tool; a sub-agent of it is known by
name; its history is about to be compacted; it has answered; it is over."""

_NOT_IN_A_KEY = re.compile(r"[^A-Za-z0-9._@+-]")


@value
class Sighting:
    """One thing that happened in a session of a harness."""

    harness: Harness
    what: What
    session: SessionKey
    """Where it happened: inside a sub-agent, the sub-agent's own."""
    root: SessionKey
    """The session a person talks to."""
    project: str | None = None
    transcript: str | None = None
    """The file in which the harness writes the session down."""
    root_transcript: str | None = None
    """The same of the session a person talks to."""
    said: Turn | None = None
    """What was said, for where no transcript can be read."""
    parent: SessionKey | None = None
    """Whose sub-agent it is, where the harness itself says so."""
    child: SessionKey | None = None
    """Of a delegation: the sub-agent."""
    call: str | None = None
    """Of a delegation: the tool call that makes it."""
    files: tuple[Receipt, ...] = ()
    agent_id: str | None = None
    """Whose data it may see, where the key says so. Never a harness's own ``agent_id``, which is another thing."""
    title: str | None = None
    forgetful: bool = False
    """Its model has just lost its history to a compaction."""

    @property
    def in_sub_agent(self) -> bool:
        """Whether it happened inside a sub-agent."""
        return self.session != self.root


class UnreadablePayloadError(ValueError):
    """A payload that says nothing we can use; the message says what is missing."""


def text_of(payload: Mapping[str, object], name: str) -> str | None:
    """A text in a payload; anything else counts as missing."""
    found = payload.get(name)
    return found if isinstance(found, str) and found.strip() else None


def needed(payload: Mapping[str, object], name: str) -> str:
    """A text that must be there."""
    found = text_of(payload, name)
    if found is None:
        raise UnreadablePayloadError(f"the payload has no {name!r}: there must be a text")
    return found


def key(*parts: str) -> SessionKey:
    """A session key of these parts, whatever characters the harness uses."""
    return SessionKey(":".join(_NOT_IN_A_KEY.sub("-", part) for part in parts)[:200])
