"""Dead letters: what could not be delivered, and another try."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.exceptions import HTTPException

from understudy.gateway.http.caller import LARGEST, Asking, Cursor, Limit
from understudy.gateway.http.schemas import LetterView, PageView, ReplayView

router = APIRouter(prefix="/api/dead-letters", tags=["dead letters"])


@router.get("")
def list_dead_letters(
    caller: Asking,
    session_key: Annotated[str | None, Query(description="Only those that were for this session.")] = None,
    *,
    replayed: Annotated[bool, Query(description="Those put back on the road too.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> PageView[LetterView]:
    """What could not be delivered, each with its reason, the newest first."""
    page = caller.store.dead_letters.find(
        session_key=session_key, agent_id=caller.agent_id, replayed=replayed, limit=limit, cursor=cursor
    )
    return PageView(items=[LetterView.model_validate(record) for record in page.items], cursor=page.cursor)


@router.post("/{number}/replay")
async def replay(caller: Asking, number: Annotated[int, Path(ge=1, le=LARGEST)]) -> ReplayView:
    """Put a dead letter back on the road."""
    caller.letter(number)
    try:
        return ReplayView(replayed=await caller.runtime.replay(number))
    except ValueError as error:
        raise HTTPException(HTTPStatus.CONFLICT, str(error)) from None
