"""OpenClaw's session keys tell their lineage; its hook bodies are plain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from understudy.gateway.harness.sighting import Sighting, UnreadablePayloadError, What, needed, text_of
from understudy.protocol import SessionKey
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from understudy.protocol.model import Role

HARNESS: Final = "openclaw"
_EVENTS: Mapping[str, What] = {
    "session_start": "opened",
    "message": "said",
    "pre_compaction": "compacting",
    "session_end": "closed",
}
_MARK = ":subagent:"


def read(payload: Mapping[str, object]) -> Sighting:
    """A hook body: ``event``, ``session_key``, and where they apply ``role``, ``text``, ``project``."""
    event = needed(payload, "event")
    if event not in _EVENTS:
        raise UnreadablePayloadError(f"event {event!r} is not known: use {', '.join(_EVENTS)}")
    session = SessionKey(needed(payload, "session_key"))
    text, role = text_of(payload, "text"), text_of(payload, "role") or "user"
    parent = parent_of(session)
    return Sighting(
        harness=HARNESS,
        what=_EVENTS[event],
        session=session,
        root=_root_of(session),
        project=text_of(payload, "project"),
        transcript=text_of(payload, "transcript_path"),
        said=None if text is None or role not in {"user", "assistant"} else Turn(cast("Role", role), text),
        parent=parent,
        agent_id=agent_of(session),
        title=text_of(payload, "title"),
    )


def parent_of(session: SessionKey) -> SessionKey | None:
    """The parent that a key names: ``agent:a:subagent:u`` is of ``agent:a:main``, a nested one of its prefix."""
    above, mark, own = session.rpartition(_MARK)
    if not mark or not own or not above.startswith("agent:"):
        return None
    return SessionKey(above if _MARK in above else f"{above}:main")


def agent_of(session: SessionKey) -> str | None:
    """The agent that a key names."""
    parts = session.split(":")
    return parts[1] if parts[0] == "agent" and len(parts) > 2 and parts[1] else None  # noqa: PLR2004 - agent, its id, and more


def _root_of(session: SessionKey) -> SessionKey:
    root = session
    while (above := parent_of(root)) is not None:
        root = above
    return root
