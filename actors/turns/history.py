"""Making a restored history whole: no tool call without its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = (
    "[interrupted] The host stopped before this tool call came back. It was not run again: it may or may not have "
    "had its effect. Look before you repeat it."
)


def closed(turns: Sequence[Turn]) -> tuple[list[Turn], list[Turn]]:
    """``turns`` with every tool call answered right after it, and the answers that were made up for that.

    Nothing is run again: whether the call had its effect is unknown, and the model is told so. An answer that stands
    further down, where it was stored after something else had come in, is brought up to its call.
    """
    whole: list[Turn] = []
    made_up: list[Turn] = []
    taken: set[int] = set()
    for place, turn in enumerate(turns):
        if turn.role == "tool":
            continue  # it stands behind its call; an answer to nothing is taken by no wire format
        whole.append(turn)
        for call in turn.tool_calls:
            found = _answer(turns, place, call.id, taken)
            if found is None:
                made_up.append(Turn("tool", INTERRUPTED, tool_call_id=call.id))
                whole.append(made_up[-1])
            else:
                taken.add(found)
                whole.append(turns[found])
    return whole, made_up


def _answer(turns: Sequence[Turn], place: int, call_id: str, taken: set[int]) -> int | None:
    """Where the answer to a call of the turn at ``place`` stands; before the same id is used again, if anywhere."""
    for later in range(place + 1, len(turns)):
        turn = turns[later]
        if turn.role == "tool" and turn.tool_call_id == call_id and later not in taken:
            return later
        if any(call.id == call_id for call in turn.tool_calls):
            return None
    return None
