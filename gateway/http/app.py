"""The application: the routes, behind the door, over one runtime."""

from __future__ import annotations

import contextlib
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware

from understudy.gateway.http import hooks as host
from understudy.gateway.http import letters, problems, runs, sessions, sse
from understudy.gateway.http.caller import known_only
from understudy.gateway.http.door import Door, Rules
from understudy.gateway.http.feed import Feed
from understudy.gateway.http.openapi import PROBLEMS, documented

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from understudy.actors import AsyncRuntime
    from understudy.gateway.http.hooks import HookHandler
    from understudy.gateway.http.tokens import Tokens
    from understudy.gateway.mcp.mounted import Mounted

_READS = "authorization", "content-type", "last-event-id", "mcp-protocol-version"


def create_app(
    runtime: AsyncRuntime,
    *,
    tokens: Tokens,
    rules: Rules,
    hooks: HookHandler | None = None,
    feed: Feed | None = None,
) -> FastAPI:
    """Routes over ``runtime``, which is open and on the loop that serves them.

    ``hooks`` understands the events of agent harnesses; without it there are none.
    """
    feed = feed or Feed(runtime)
    mcp = _mcp(runtime)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        app.openapi()  # it takes a moment, which is nobody's first request's
        async with feed.running(), contextlib.nullcontext() if mcp is None else mcp.running():
            yield

    app = FastAPI(
        title="Understudy",
        version=version("understudy"),
        description="Supervised sub-agents: sessions, runs, results and events of one runtime.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # its page would fetch scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        responses=PROBLEMS,
        dependencies=[Depends(known_only)],
        redirect_slashes=False,
    )
    app.state.runtime, app.state.feed, app.state.hooks = runtime, feed, hooks
    problems.install(app)
    for router in (sessions.router, runs.router, sse.router, letters.router, host.router):
        app.include_router(router)
    if mcp is not None:
        app.router.routes.append(mcp.route())
    app.openapi = documented(app)  # type: ignore[method-assign]
    if rules.origins:
        origins, methods = sorted(rules.origins), ("GET", "POST")
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=methods, allow_headers=_READS)
    app.add_middleware(Door, tokens=tokens, rules=rules, clock=runtime.clock)  # the last one is the outermost
    return app


def _mcp(runtime: AsyncRuntime) -> Mounted | None:
    """The same runtime's tools over MCP, where that extra is installed."""
    if find_spec("mcp") is None:
        return None
    from understudy.gateway.mcp.mounted import Mounted  # noqa: PLC0415 - needs its extra

    return Mounted(runtime)
