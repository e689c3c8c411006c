"""GET /api/events: the runtime's events as a stream that can be taken up again."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from understudy.gateway.http.caller import Asking
from understudy.gateway.http.door import EVENTS
from understudy.gateway.http.feed import MOST_LISTENERS, Feed
from understudy.gateway.http.ring import Wanted
from understudy.protocol.events import EventName

router = APIRouter(tags=["events"])

# A listener that reads gets its last words in this time; one that does not is not waited for.
_LAST_WORDS_SECONDS = 1.0


class EventStream(Response):
    """Chunks as they come, until there are no more, the listener goes, or the feed is closed."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncGenerator[bytes], closed: asyncio.Event) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._closed = closed

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """One listener."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        streaming = asyncio.ensure_future(self._stream(send))
        others = [asyncio.ensure_future(_gone(receive)), asyncio.ensure_future(self._closed.wait())]
        try:
            await asyncio.wait([streaming, *others], return_when=asyncio.FIRST_COMPLETED)
            if self._closed.is_set():
                await asyncio.wait([streaming], timeout=_LAST_WORDS_SECONDS)
        finally:
            for task in (streaming, *others):
                task.cancel()
            await asyncio.gather(streaming, *others, return_exceptions=True)

    async def _stream(self, send: Send) -> None:
        async with contextlib.aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                # Waits while the listener does not read: its place stays behind, and nothing is kept for it.
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@router.get(
    EVENTS,
    status_code=200,
    response_class=EventStream,
    responses={
        200: {
            "description": "Events, each with an id; `gap` tells of events that were lost. It has no end.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    },
)
async def listen(
    caller: Asking,
    request: Request,
    name: Annotated[list[EventName] | None, Query(description="Only events of these names.")] = None,
    run_id: Annotated[str | None, Query(description="Only events of this run.")] = None,
    session_key: Annotated[str | None, Query(description="Only events of runs that this session spawned.")] = None,
    last_event_id: Annotated[str | None, Header(description="The last id that was seen: go on after it.")] = None,
) -> EventStream:
    """Events from now on, or from where a stream broke off."""
    feed: Feed = request.app.state.feed
    if feed.closed.is_set():
        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, "the server stops: come back when it runs again")
    if feed.listeners >= MOST_LISTENERS:
        raise HTTPException(HTTPStatus.TOO_MANY_REQUESTS, f"{feed.listeners} listen already: {MOST_LISTENERS} may")
    wanted = Wanted(frozenset(name or ()), run_id, session_key)
    return EventStream(feed.listen(caller.agent_id, last_event_id or None, wanted), feed.closed)
