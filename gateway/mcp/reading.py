"""``session_transcript``: what was said in a session, its end first of all."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from understudy.actors.tools.context import ToolContext  # noqa: TC001 - read at run time by @tool
from understudy.actors.tools.outcome import ToolError
from understudy.actors.tools.tool import tool
from understudy.gateway.mcp.caller import CallContext
from understudy.persistence.transcripts import NEWEST
from understudy.protocol.framing import frame
from understudy.protocol.truncate import truncate

if TYPE_CHECKING:
    from understudy.persistence import StoredTurn

_MOST_CHARACTERS = 40_000
"""Of all turns in one answer together: about 10,000 tokens."""


@tool(group="search", paths=())
async def session_transcript(
    context: ToolContext,
    session_key: Annotated[
        str | None,
        Field(
            description="Which session. Left out: the session of the agent that gave you your task, "
            "or your own if none did."
        ),
    ] = None,
    limit: Annotated[int, Field(ge=1, le=100)] = 20,
    before: Annotated[
        int | None, Field(ge=1, le=NEWEST, description="Only turns before this number, for what was said earlier.")
    ] = None,
) -> str:
    """Read what was said in a session, in order, up to now: its last turns, or those before a turn you know."""
    assert isinstance(context, CallContext)
    caller = context.caller
    key = session_key or caller.usual or (None if caller.own is None else caller.own.session_key)
    if key is None:
        raise ToolError("which session is not known: name it with session_key; session_search tells which there are")

    def read() -> list[StoredTurn] | None:
        if caller.session(key) is None:
            return None
        return caller.shelf.transcripts.latest(key, limit + 1, before=before or NEWEST)

    turns = await context.blocking(read)
    if turns is None:
        raise ToolError(f"there is no session {key[:200]!r} that you may read: session_search tells which there are")
    shown = turns[-limit:]
    room = _MOST_CHARACTERS // max(len(shown), 1)
    told = [_told(stored, caller.shelf.redactor.text(_words(stored)), room) for stored in shown]
    if len(turns) > limit:
        told.append(f"There are earlier turns: ask with before={shown[0].id}.")
    return "\n".join(told) or "Nothing was said there."


def _words(stored: StoredTurn) -> str:
    calls = [f"→ {call.name} {json.dumps(dict(call.arguments))}" for call in stored.turn.tool_calls]
    return "\n".join([*([stored.turn.text] if stored.turn.text else []), *calls])


def _told(stored: StoredTurn, words: str, room: int) -> str:
    at = datetime.fromtimestamp(stored.at / 1000, UTC).isoformat(timespec="seconds")
    # Cut before it is framed, never after: a frame that was cut would not hold.
    short = truncate(words, room, measure=lambda text: len(frame(text)))
    return f"{stored.id}. {at}, {stored.turn.role}:\n{frame(short)}"
