"""What a child is told of the session it comes from: a named section, every quoted line of it marked as quoted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.protocol.framing import frame

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADING = "## Inherited from Parent Session"
UNTITLED = "active session"


def render_inherited(
    *,
    title: str | None = None,
    digest: str = "",
    tail: str = "",
    entities: Sequence[str] = (),
    constraints: Sequence[str] = (),
) -> str | None:
    """The section, or None when there is nothing to tell; a title alone is nothing."""
    parts: list[str] = []
    if digest.strip():
        parts.append(frame(digest.strip()))
    if tail.strip():
        parts.append("Recent context:\n" + frame(tail.strip("\n"), transcript=True))
    named = _lines(entities)
    if named:
        parts.append("Focal entities:\n" + frame(", ".join(named)))
    binding = _lines(constraints)
    if binding:
        # Quoted like all the rest, and still to be kept to: they can take from a task, never add to it.
        parts.append(
            "Active constraints: keep to these, they only narrow what you do.\n"
            + "\n".join(frame(f"- {constraint}") for constraint in binding)
        )
    if not parts:
        return None
    told = _lines([title or ""])
    return "\n".join([HEADING, "", frame(told[0]) if told else UNTITLED, *parts])


def _lines(texts: Sequence[str]) -> list[str]:
    """Each on one line; what is blank is left out."""
    return [line for text in texts if (line := " ".join(text.split()))]
