"""Hooks of agent harnesses, handed to whoever understands them; and the server's own health."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from importlib.metadata import version
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Path, Request
from starlette.exceptions import HTTPException

from understudy.gateway.http.caller import Asking
from understudy.gateway.http.problems import UnknownError
from understudy.gateway.http.schemas import HealthView, SweepView

logger = logging.getLogger("understudy")

router = APIRouter(prefix="/api", tags=["host"])

Word = Annotated[str, Path(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]


class HookHandler(Protocol):
    """Takes a harness's event in, and says what the harness is to be told.

    ``agent_id`` is the token's, None for one that is for everything. A LookupError says that harness or event is
    unknown, a ValueError that the payload is wrong.
    """

    async def __call__(
        self, harness: str, event: str, payload: Mapping[str, Any], *, agent_id: str | None
    ) -> Mapping[str, Any]:
        """One event."""


@router.post("/hooks/{harness}/{event}")
async def hook(caller: Asking, request: Request, harness: Word, event: Word, payload: dict[str, Any]) -> dict[str, Any]:
    """An event of an agent harness; the answer is what the harness reads."""
    handler: HookHandler | None = request.app.state.hooks
    if handler is None:
        raise UnknownError
    try:
        return dict(await handler(harness, event, payload, agent_id=caller.agent_id))
    except LookupError as error:
        logger.warning("nobody understands the event %s of %s: %r", event, harness, error)
        raise UnknownError from None
    except ValueError as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None


@router.get("/health")
def health(caller: Asking) -> HealthView:
    """Whether the server answers and its store can be read."""
    caller.store.sessions.find(limit=1)
    return HealthView(status="ok", version=version("understudy"))


@router.post("/sweep")
async def sweep(caller: Asking) -> SweepView:
    """Sweep for ghosts now; only with a token that is for everything."""
    if caller.agent_id is not None:
        raise UnknownError
    return SweepView(found=await caller.runtime.sweep())
