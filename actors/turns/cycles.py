"""Noticing a model that goes round in circles."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from understudy.protocol.model import ToolCall

LONGEST_PERIOD = 3
# Twice may be a retry; the third time nothing new can come of it.
_ROUNDS = 3


class CycleDetector:
    """Remembers what was called and what came of it; the same again and again is a cycle.

    Results count: asking twice for something that changes is not a circle.
    """

    def __init__(self) -> None:
        self._steps: list[str] = []

    def add(self, calls: Sequence[ToolCall], results: Sequence[str]) -> bool:
        """Note a step; answers whether it closes a cycle of one, two or three steps."""
        asked = [[call.name, dict(call.arguments)] for call in calls]
        self._steps.append(json.dumps([asked, list(results)], sort_keys=True, default=str))
        del self._steps[: -LONGEST_PERIOD * _ROUNDS]
        return any(self._repeats(period) for period in range(1, LONGEST_PERIOD + 1))

    def forget(self) -> None:
        """Start over, after the model was told."""
        self._steps.clear()

    def _repeats(self, period: int) -> bool:
        last = self._steps[-period * _ROUNDS :]
        return len(last) == period * _ROUNDS and all(step == last[i % period] for i, step in enumerate(last))
