"""Sessions: list, read, search, spawn."""

from typing import Annotated

from fastapi import APIRouter, Query

from understudy.gateway.http.caller import LARGEST, Asking, Cursor, Key, Limit
from understudy.gateway.http.schemas import (
    AcceptedView,
    HitsView,
    HitView,
    PageView,
    SearchBody,
    SessionView,
    TurnView,
)
from understudy.protocol import Spawn

router = APIRouter(prefix="/api/sessions", tags=["sessions"])


@router.get("")
def list_sessions(
    caller: Asking,
    agent_id: Annotated[str | None, Query(description="Only this agent's.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> PageView[SessionView]:
    """Sessions, the newest first."""
    if agent_id is not None and not caller.sees(agent_id):
        return PageView(items=[], cursor=None)  # as for an agent that has none
    page = caller.store.sessions.find(agent_id=agent_id or caller.agent_id, limit=limit, cursor=cursor)
    return PageView(items=[SessionView.model_validate(record) for record in page.items], cursor=page.cursor)


@router.get("/{key}/transcript")
def read_transcript(caller: Asking, key: Key, limit: Limit = 100, cursor: Cursor = None) -> PageView[TurnView]:
    """Everything that was said in a session, in order, also while it is still said."""
    caller.session(key)
    turns = caller.store.transcripts.turns(key, after=_number(cursor), limit=limit + 1)
    more = len(turns) > limit
    items = [TurnView.of(stored) for stored in turns[:limit]]
    return PageView(items=items, cursor=str(items[-1].id) if more else None)


@router.post("/search")
def search(caller: Asking, body: SearchBody) -> HitsView:
    """The turns that fit best, at most 20; the text of a query is never syntax."""
    agent = caller.agent_id or body.agent_id
    if body.session_key is not None:
        owner = caller.session(body.session_key).agent_id
        agent = agent or owner
    if body.agent_id is not None and not caller.sees(body.agent_id):
        return HitsView(items=[])
    hits = caller.store.search(body.query, agent_id=agent or "default", session_key=body.session_key, limit=body.limit)
    return HitsView(items=[HitView.model_validate(hit) for hit in hits])


@router.post("/{key}/spawn", status_code=202)
async def spawn(
    caller: Asking,
    key: Key,
    body: Spawn,
    *,
    create: Annotated[
        bool, Query(description="Make the session if it is not there; not for an agent's token.")
    ] = False,
) -> AcceptedView:
    """Start a sub-agent; the answer comes once that is durable."""
    session = await caller.opened(key, create=create)
    return AcceptedView.model_validate(await session.ref.ask(body, block=False))


def _number(cursor: str | None) -> int:
    return 0 if cursor is None else min(int(cursor), LARGEST)
