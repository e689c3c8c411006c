"""Runs: list, read, kill, follow up."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from understudy.gateway.http.caller import LARGEST, Asking, Cursor, Limit, Run
from understudy.gateway.http.schemas import (
    FollowUpBody,
    FollowUpView,
    KillBody,
    KillView,
    OneRunView,
    PageView,
    RunView,
)
from understudy.protocol import SubAgentResult
from understudy.protocol.run_facts import RunStatus

router = APIRouter(prefix="/api/runs", tags=["runs"])

_ACCEPTED = 202


@router.get("")
def list_runs(
    caller: Asking,
    session_key: Annotated[str | None, Query(description="Only those that this session spawned.")] = None,
    runner: str | None = None,
    status: RunStatus | None = None,
    since: Annotated[int | None, Query(ge=0, le=LARGEST, description="Accepted at this time or later.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> PageView[RunView]:
    """Runs, the newest first, of this and of earlier hosts."""
    page = caller.store.runs.find(
        runner=runner,
        status=status,
        since=since,
        parent_session_key=session_key,
        agent_id=caller.agent_id,
        limit=limit,
        cursor=cursor,
    )
    return PageView(items=[RunView.of(record) for record in page.items], cursor=page.cursor)


@router.get("/{run_id}", response_model_by_alias=False)
def read_run(caller: Asking, run_id: Run) -> OneRunView:
    """A run, with its result once it has ended."""
    found = OneRunView.of(caller.run(run_id))
    return found.model_copy(update={"result": caller.store.runs.result(run_id)})


@router.post("/{run_id}/kill")
async def kill(caller: Asking, run_id: Run, body: KillBody | None = None) -> KillView:
    """End a run and everything below it; the answer comes when all of it has ended."""
    session = await caller.above(caller.run(run_id))
    return KillView.model_validate(await session.kill(run_id, (body or KillBody()).reason))


@router.post(
    "/{run_id}/follow-up",
    response_model_by_alias=False,
    responses={_ACCEPTED: {"model": FollowUpView, "description": "Accepted; the reply is delivered later."}},
)
async def follow_up(caller: Asking, run_id: Run, body: FollowUpBody, response: Response) -> FollowUpView:
    """Say more to a kept sub-agent, whose run this was: another run of the same session."""
    record = caller.run(run_id)
    session = await caller.above(record)
    answer = await session.follow_up(record.session_key, body.message, wait=body.wait)
    result = answer if isinstance(answer, SubAgentResult) else None
    if result is None:
        response.status_code = _ACCEPTED
    return FollowUpView(run_id=answer.run_id, session_key=answer.session_key, result=result)
