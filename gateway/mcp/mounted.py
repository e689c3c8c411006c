"""MCP in the HTTP server: one route, behind the same door, straight to the runtime."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.routing import Route

from understudy.actors.errors import SessionBusy, SessionClosedError
from understudy.actors.tools.outcome import ToolError, ToolOutcome
from understudy.gateway.http.problems import problem, unknown
from understudy.gateway.mcp.caller import Caller, context_of, known
from understudy.gateway.mcp.tools import ACTING, MCP_PATH, MCP_TOOLS, mcp_server
from understudy.protocol import SessionKey
from understudy.protocol._explain import nearest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import TypeVar

    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from understudy.actors import AsyncRuntime
    from understudy.actors.session import SessionActor
    from understudy.protocol.model import JsonObject

    T = TypeVar("T")

_PARAMETERS = "session", "agent", "cwd"


class Mounted:
    """ASGI: every request is whole in itself, so that none is lost with a server that is started again."""

    def __init__(self, runtime: AsyncRuntime) -> None:
        self._runtime = runtime
        # The door measures bodies before this does, and has words for it.
        self._manager = StreamableHTTPSessionManager(
            mcp_server(self._call), json_response=True, stateless=True, max_request_body_size=sys.maxsize
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answers while inside."""
        async with self._manager.run():
            yield

    def route(self) -> Route:
        """Where it is to be found: streams from here to a client, by GET, there are none."""
        return Route(MCP_PATH, self, methods=["POST"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        refusal = _refusal(Request(scope))
        if refusal is None:
            await self._manager.handle_request(scope, receive, send)
        else:
            await refusal(scope, receive, send)

    async def _call(self, context: Any, name: str, arguments: JsonObject) -> ToolOutcome:
        request: Request = context.request
        given = request.query_params
        key = given.get("session")
        caller = known(self._runtime.store, request.state.agent_id or given.get("agent"), key)
        # A token for one agent makes no session: whether a key is free would tell what others have.
        may_make = request.state.agent_id is None
        own: Callable[[], SessionActor] | None = None
        if name in ACTING:
            actor = await self._acting(caller, key, may_make=may_make, cwd=given.get("cwd"))
            own = lambda: actor  # noqa: E731 - a session that is there already
        context = context_of(caller, self._runtime.clock, _blocking, own, may_make=may_make)
        return await MCP_TOOLS.call(name, arguments, context)

    async def _acting(self, caller: Caller, key: str | None, *, may_make: bool, cwd: str | None) -> SessionActor:
        """The session that acts, open here."""
        if key is None:
            raise ToolError("no session acts here: name one with `understudy mcp --session`, or ?session= over HTTP")
        runtime, own = self._runtime, caller.own
        if own is None and (not may_make or runtime.store.sessions.get(key) is not None):
            raise ToolError(f"there is no session {key} that you may act as: open it in its host first")
        if own is not None and own.parent_session_key is not None:
            actor = runtime.at_work(key)
            if actor is None:
                raise ToolError(f"session {key} is of a sub-agent that is not at work here: do the work yourself")
            return actor
        try:
            if own is None:
                return await runtime.open_session(key, agent_id=caller.agent_id, workspace=cwd, cwd=cwd)
            # A harness's session has a folder, and no workspace yet: its children are to work where it does.
            return await runtime.open_session(key, workspace=own.workspace_dir or own.cwd or cwd)
        except (SessionBusy, SessionClosedError) as error:
            raise ToolError(str(error)) from None


async def _blocking(function: Callable[[], T]) -> T:
    return await asyncio.to_thread(function)


def _refusal(request: Request) -> Response | None:
    """Why the address is not one to ask at."""
    given = request.query_params
    for name, value in given.multi_items():
        words = None
        if name not in _PARAMETERS:
            hint = nearest(name, _PARAMETERS)
            words = f"query parameter {name[:60]!r} is not allowed{hint}: use {', '.join(_PARAMETERS)}"
        elif len(given.getlist(name)) > 1:
            words = f"query parameter {name!r} is given twice: give it once"
        elif name == "session":
            words = _why_no_key(value)
        elif name == "cwd" and not (Path(value).is_absolute() and "\0" not in value and Path(value).is_dir()):
            words = f"cwd = {value[:200]!r} is not allowed: name a folder by its absolute path"
        elif name == "agent" and not value.strip():
            words = "agent is empty: name one, or leave it out"
        if words is not None:
            return problem(HTTPStatus.UNPROCESSABLE_ENTITY, words)
    bound = request.state.agent_id
    return unknown() if bound is not None and given.get("agent", bound) != bound else None


def _why_no_key(text: str) -> str | None:
    try:
        SessionKey(text)
    except ValueError as error:
        return str(error)
    return None
