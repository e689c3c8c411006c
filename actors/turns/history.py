"""Restoring a history: as it was compacted, and whole: no tool call without its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.protocol.model import Turn
from understudy.protocol.reinforcement import summary_turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from understudy.persistence.transcripts import Transcripts

INTERRUPTED = (
    "[interrupted] The host stopped before this tool call came back. It was not run again: it may or may not have "
    "had its effect. Look before you repeat it."
)


def restored(transcripts: Transcripts, session_key: str, *, pinned: int = 0) -> list[Turn]:
    """A session's history as it was last compacted; the first ``pinned`` turns are in it whatever was summed up."""
    compaction = transcripts.compaction(session_key)
    if compaction is None:
        return [stored.turn for stored in transcripts.turns(session_key)]
    always = transcripts.turns(session_key, limit=pinned)
    last_always = always[-1].id if always else 0
    kept = transcripts.turns(session_key, after=max(last_always, compaction.first_kept_turn_id - 1))
    return [
        *(stored.turn for stored in always),
        summary_turn(compaction.summary),
        *(stored.turn for stored in kept),
    ]


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
