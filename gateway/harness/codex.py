"""Codex says nothing of who started whom: its sessions are kept, and nobody inherits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from understudy.gateway.harness.sighting import Sighting, key, needed, text_of
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from collections.abc import Mapping

HARNESS: Final = "codex"


def read(payload: Mapping[str, object]) -> Sighting | None:
    """The notification after a turn: ``thread-id``, ``input-messages``, ``last-assistant-message``."""
    if payload.get("type") != "agent-turn-complete":
        return None
    session = key(HARNESS, needed(payload, "thread-id"))
    last = text_of(payload, "last-assistant-message")
    return Sighting(
        harness=HARNESS,
        what="answered",
        session=session,
        root=session,
        project=text_of(payload, "cwd"),
        said=None if last is None else Turn("assistant", last),
    )
