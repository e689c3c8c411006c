"""What goes into a session from outside: how much of it, and by whose leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.protocol._value import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from understudy.protocol.ids import SessionKey

MOST_BYTES = 100 * 1024
"""The most that one message may put into a session: what is longer floods it, and belongs into a file."""


@value
class Sending:
    """A message on its way into a session; without a sender it is the host's own."""

    sender: SessionKey | None
    target: SessionKey
    message: str


def capped(text: str) -> str:
    """``text`` within `MOST_BYTES` of UTF-8, no character cut in two, and marked where something is missing."""
    # No character takes more than four bytes, so most texts need not be encoded to know.
    if len(text) * 4 <= MOST_BYTES:
        return text
    written = text.encode("utf-8", "replace")
    if len(written) <= MOST_BYTES:
        return text
    note = "\n[… {} bytes omitted: a message takes at most {} …]"
    room = MOST_BYTES - len(note.format(len(written), MOST_BYTES).encode())
    kept = written[:room].decode("utf-8", "ignore")
    return kept + note.format(len(written) - len(kept.encode()), MOST_BYTES)


def allowed(rules: Sequence[str], target: str) -> bool:
    """Whether a message may go to ``target``: the rule with the longest prefix decides, and without one it may."""
    decided, longest = True, -1
    for rule in rules:
        verb, _, prefix = rule.partition(" ")
        if target.startswith(prefix) and len(prefix) > longest:
            decided, longest = verb == "allow", len(prefix)
    return decided
