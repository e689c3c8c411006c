"""The tool by which an agent looks up what was said: a sub-agent first of all in its parent's session."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from understudy.actors.searching import MOST_HITS, USUAL_HITS
from understudy.actors.tools.context import ToolContext  # noqa: TC001 - read at run time by @tool
from understudy.actors.tools.outcome import ToolError
from understudy.actors.tools.tool import tool
from understudy.protocol.framing import frame

if TYPE_CHECKING:
    from understudy.persistence import SearchHit

NOTHING = "Nothing was found."
"""The whole answer, also about a session that may not be seen: it tells nothing about who exists."""


# Whose eyes it has is not the model's to say: it comes with the context.
@tool(group="search", paths=())
async def session_search(
    context: ToolContext,
    query: Annotated[str, Field(min_length=1, max_length=1000, description="Words, or part of a text.")],
    session_key: Annotated[
        str | None,
        Field(
            description="Where to look. Left out: the session of the agent that gave you your task, "
            "or all of your own if none did."
        ),
    ] = None,
    limit: Annotated[int, Field(ge=1, le=MOST_HITS)] = USUAL_HITS,
) -> str:
    """Search what was said before; answers rank, session, time and the text around each match."""
    search = context.search
    if search is None:
        raise ToolError("there is nothing to search here")
    hits = await context.blocking(lambda: search(query, session_key=session_key, limit=limit))
    return "\n".join(map(_told, hits)) or NOTHING


def _told(hit: SearchHit) -> str:
    at = datetime.fromtimestamp(hit.at / 1000, UTC).isoformat(timespec="seconds")
    return f"{hit.rank}. {hit.session_key}, {at}, {hit.role}:\n{frame(hit.excerpt)}"
