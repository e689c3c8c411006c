"""Making a text fit by its head and its tail, with the exact count of what is between. The only place that does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD_SHARE = 0.6
"""What comes first says what it is about; what comes last is the conclusion, and must survive too."""

_CLOSE_ENOUGH = 0.95
_MOST_TRIES = 24
_HIGH_SURROGATES = range(0xD800, 0xDC00)
_LOW_SURROGATES = range(0xDC00, 0xE000)


def truncate(text: str, most: int, *, measure: Callable[[str], int] = len, whole: int | None = None) -> str:
    """``text`` where it measures at most ``most``; else 60 % head, a note, 40 % tail that together do.

    ``measure`` may count whatever it likes: the fitting size is searched for, by guesses from what was measured
    before, of which ``whole``, for all of the text, may be given where it is known. Where not even the note fits,
    the note is what is left: that something is missing is always said.
    """
    if measure is len:
        if len(text) <= most:
            return text
        # The note's length depends on the count it holds; one that is sized for the largest count always fits.
        return _ends(text, most - len(note(len(text))))
    size = measure(text) if whole is None else whole
    return text if size <= most else _search(text, most, size, measure)


def note(omitted: int, unit: str = "characters") -> str:
    """What stands where something was left out."""
    return f"\n[… {omitted} {unit} omitted …]\n"


def _search(text: str, most: int, size: int, measure: Callable[[str], int]) -> str:
    best = note(len(text))
    fits, too_many = 0, len(text)
    kept = int(len(text) * most / size)
    for attempt in range(_MOST_TRIES):
        kept = min(max(kept, fits + 1), too_many - 1)
        if kept <= fits:
            break
        short = _ends(text, kept)
        size = measure(short)
        if size <= most:
            best, fits = short, kept
            if size >= most * _CLOSE_ENOUGH:
                break
        else:
            too_many = kept
        # Guesses are near where a text is even; where it is not, every other step halves what is left.
        kept = (fits + too_many) // 2 if attempt % 2 else int(kept * most / max(size, 1))
    return best


def _ends(text: str, kept: int) -> str:
    """The first and the last of ``kept`` characters; a pair of surrogates stays whole or goes whole."""
    kept = max(kept, 0)
    head = int(kept * HEAD_SHARE)
    tail = len(text) - (kept - head)
    if _splits_a_pair(text, head):
        head -= 1
    if _splits_a_pair(text, tail):
        tail += 1
    return f"{text[:head]}{note(tail - head)}{text[tail:]}"


def _splits_a_pair(text: str, place: int) -> bool:
    return 0 < place < len(text) and ord(text[place - 1]) in _HIGH_SURROGATES and ord(text[place]) in _LOW_SURROGATES
