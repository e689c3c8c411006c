"""Making an output fit: as it is, or its head and its tail with the exact count of what is between."""

from __future__ import annotations

from understudy.protocol.result import Condensation

CHARACTERS_A_TOKEN = 4
_HEAD_SHARE = 0.6


def estimate_tokens(text: str) -> int:
    """About how many tokens a model would read this as."""
    return -(-len(text) // CHARACTERS_A_TOKEN)


def condense(text: str, max_tokens: int) -> tuple[str, Condensation]:
    """``text`` within ``max_tokens``: whole where it fits, else 60 % head and 40 % tail."""
    tokens = estimate_tokens(text)
    if tokens <= max_tokens:
        return text, Condensation(level=1, original_tokens=tokens, condensed_tokens=tokens)
    room = max_tokens * CHARACTERS_A_TOKEN
    # The note's length depends on the count it holds; one that is sized for the largest count always fits.
    room -= len(_note(len(text)))
    head = int(room * _HEAD_SHARE)
    tail = room - head
    omitted = len(text) - head - tail
    short = f"{text[:head]}{_note(omitted)}{text[-tail:]}"
    return short, Condensation(level=3, original_tokens=tokens, condensed_tokens=estimate_tokens(short))


def _note(omitted: int) -> str:
    return f"\n[… {omitted} characters omitted …]\n"
