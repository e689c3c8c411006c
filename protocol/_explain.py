"""Validation errors in words: where, what is wrong, and what would be right; never the value itself."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import ValidationError

_SHOWN = 3


def explain(error: ValidationError) -> str:
    """The first few problems of ``error`` in one sentence, without the input."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    shown = "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'message'}: {problem['msg']}" for problem in problems[:_SHOWN]
    )
    more = len(problems) - _SHOWN
    return shown + (f"; and {more} more" if more > 0 else "")


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` when something known is near, else nothing."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""
