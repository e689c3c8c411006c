"""Making an output fit without a model: as it is, or its head and its tail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.protocol.framing import frame
from understudy.protocol.result import Condensation
from understudy.protocol.truncate import truncate

if TYPE_CHECKING:
    from understudy.protocol.tokens import TokenEstimator

# What the marks of a frame may add to a text that fits by itself; thousands of empty lines add more.
_FRAME_ALLOWANCE = 1.25
_MOST_BY_FRAMING = 4


def condense(text: str, max_tokens: int, estimator: TokenEstimator) -> tuple[str, Condensation]:
    """``text`` within ``max_tokens``: whole where it fits (level 1), else 60 % head and 40 % tail (level 3)."""
    tokens = estimator(text)
    if tokens <= max_tokens and (
        # Short enough for any frame, or framed for a look.
        tokens * _MOST_BY_FRAMING <= max_tokens or estimator(frame(text)) <= max_tokens * _FRAME_ALLOWANCE
    ):
        return text, Condensation(level=1, original_tokens=tokens, condensed_tokens=tokens)
    short = shortened(text, max_tokens, estimator, tokens=tokens)
    return short, Condensation(level=3, original_tokens=tokens, condensed_tokens=estimator(short))


def fits(text: str, max_tokens: int, estimator: TokenEstimator) -> bool:
    """Whether it is within ``max_tokens``, by itself and as the parent reads it: framed."""
    return _size(text, estimator) <= max_tokens


def shortened(text: str, max_tokens: int, estimator: TokenEstimator, *, tokens: int) -> str:
    """Head and tail that fit, of a text that does not.

    ``tokens`` is what all of it counts; were that framed too, ten megabytes would be looked at twice.
    """
    whole = max(tokens, max_tokens + 1)
    return truncate(text, max_tokens, measure=lambda short: _size(short, estimator), whole=whole)


def _size(text: str, estimator: TokenEstimator) -> int:
    return max(estimator(text), estimator(frame(text)))
