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
    """``turns`` with every dangling tool call answered, and the answers that were made up for it.

    Nothing is run again: whether the call had its effect is unknown, and the model is told so.
    """
    whole: list[Turn] = []
    made_up: list[Turn] = []
    open_calls: list[str] = []

    def close() -> None:
        for call_id in open_calls:
            synthetic = Turn("tool", INTERRUPTED, tool_call_id=call_id)
            whole.append(synthetic)
            made_up.append(synthetic)
        open_calls.clear()

    for turn in turns:
        if turn.role == "tool":
            if turn.tool_call_id not in open_calls:
                continue  # an answer to nothing: no wire format takes it
            open_calls.remove(turn.tool_call_id)
        else:
            close()
        whole.append(turn)
        if turn.role == "assistant":
            open_calls += [call.id for call in turn.tool_calls]
    close()
    return whole, made_up
