"""How long a text is to a model: one way to count, which a host may replace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

TokenEstimator: TypeAlias = Callable[[str], int]
"""About how many tokens a model reads a text as."""

CHARACTERS_A_TOKEN = 4


def estimate_tokens(text: str) -> int:
    """Four characters a token, the last one begun: what is taken where nothing better is known."""
    return -(-len(text) // CHARACTERS_A_TOKEN)
