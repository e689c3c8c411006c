"""What a stretch of conversation was about, without asking anybody: the same turns give the same text, and it fits."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from understudy.protocol.truncate import truncate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from understudy.protocol.model import Turn

LONGEST_HEAD = 300
"""Characters of one turn that a digest quotes."""
_LAST_SAID = 3
_MOST_FILES = 20


def head(text: str, chars: int = LONGEST_HEAD) -> str:
    """The beginning of ``text`` as one printable line of at most ``chars`` characters."""
    # Twice as much is looked at: what is not printable, and runs of blanks, take no room.
    shown = " ".join("".join(c if c.isprintable() else " " for c in text[: 2 * chars]).split())
    return shown if len(shown) <= chars and len(text) <= 2 * chars else f"{shown[: chars - 1]}…"


def digest(
    turns: Sequence[Turn],
    *,
    max_tokens: int,
    estimate: Callable[[str], int],
    files: Sequence[str] = (),
    previous: str | None = None,
) -> str:
    """Counts, what was asked, what was answered last, tools and files; at most ``max_tokens`` by ``estimate``.

    ``previous`` is what was known before these turns: it goes first, shortened to half of the room.
    """
    # Head and tail: what it began with matters, and so does what was last added to it.
    before = _within((previous or "").strip(), max_tokens // 2, estimate)
    since = f"{before}\n\nSince then:\n" if before else ""
    left = max_tokens - estimate(since)
    if not since or left <= 0:
        return _digest(turns, max_tokens, estimate, files)
    return since + _digest(turns, left, estimate, files)


def _digest(turns: Sequence[Turn], max_tokens: int, estimate: Callable[[str], int], files: Sequence[str]) -> str:
    roles = Counter(turn.role for turn in turns)
    counts = f"{len(turns)} turns: {roles['user']} user, {roles['assistant']} assistant, {roles['tool']} tool results."
    asked = [f"- {head(turn.text)}" for turn in turns if turn.role == "user" and turn.text.strip()]
    said = [f"- {head(turn.text)}" for turn in turns if turn.role == "assistant" and turn.text.strip()][-_LAST_SAID:]
    tools = Counter(call.name for turn in turns for call in turn.tool_calls)
    used = ", ".join(f"{head(name, 60)} ×{times}" for name, times in sorted(tools.items()))
    touched = [f"- {head(path, 4096)}" for path in files[:_MOST_FILES]]
    left_out = 0
    while True:
        told = [f"- … {left_out} earlier ones left out", *asked] if left_out else asked
        sections = [
            [counts],
            ["Asked:", *told] if told else [],
            ["Answered last:", *said] if said else [],
            [f"Tools: {used}"] if used else [],
            ["Files:", *touched] if touched else [],
        ]
        text = "\n".join(line for section in sections for line in section)
        if estimate(text) <= max_tokens:
            return text
        if asked:
            # The oldest first, half of them at a time: what was asked last is what matters.
            gone = (len(asked) + 1) // 2
            left_out += gone
            asked = asked[gone:]
        elif touched or used or said:
            touched, used, said = touched[:-1], used if touched else "", said if touched or used else said[1:]
        else:
            return _within(counts, max_tokens, estimate)


def _within(text: str, max_tokens: int, estimate: Callable[[str], int]) -> str:
    """Head and tail that fit; nothing where not even the note of what is missing does."""
    short = truncate(text, max_tokens, measure=estimate)
    return short if estimate(short) <= max_tokens else ""
