"""One server while a child uses it. Whatever it does, the child gets words, never an exception of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import httpx2
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, Implementation

from understudy.actors.clock import within
from understudy.actors.mcp.results import outcome_of
from understudy.actors.mcp.stdio import ServerProcess
from understudy.actors.tools.outcome import ToolError, ToolOutcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from mcp.client._transport import TransportStreams
    from mcp_types import Tool as ListedTool

    from understudy.actors.clock import Clock
    from understudy.actors.mcp.plans import Plan
    from understudy.protocol.model import JsonObject

logger = logging.getLogger("understudy")

START_SECONDS = 30.0
"""How long a server may take to come up and list its tools; then the child goes on without it."""
CLOSE_SECONDS = 3.0
"""How long it may take to leave; then it is cut off. Longer than the grace of a process."""
MOST_PAGES = 20
_LONGEST_REASON = 300
_CONNECT_SECONDS = 30.0


class Connection:
    """A server in a task of its own: a failure inside the SDK's task groups cancels that task and nobody else."""

    def __init__(self, plan: Plan, cwd: str, clock: Clock) -> None:
        self.plan = plan
        self._clock = clock
        self._process = ServerProcess(plan, cwd, clock) if plan.kind == "stdio" else None
        self._client: Client | None = None
        self._over = asyncio.Event()
        self._reviving = asyncio.Lock()
        self._listed: asyncio.Future[list[ListedTool]]
        self._living: asyncio.Task[None] | None = None
        self._failed: BaseException | None = None

    async def start(self) -> list[ListedTool]:
        """Its tools; ToolError says why there are none."""
        self._listed = asyncio.get_running_loop().create_future()
        self._living = asyncio.ensure_future(self._live())
        try:
            return await within(self._clock, START_SECONDS, self._first_word())
        except TimeoutError:
            reason = self._trouble() or f"it did not answer within {START_SECONDS:.0f} s"
        except ToolError as error:
            reason = str(error)
        self.cut()
        raise ToolError(reason)

    async def call(self, tool: str, arguments: JsonObject) -> ToolOutcome:
        """Run one of its tools."""
        client = await self._revived()
        if client is None:
            return self._unusable()
        try:
            result = await client.call_tool(tool, dict(arguments))
        except MCPError as error:
            if self._process is not None and error.code == CONNECTION_CLOSED:
                await self._process.seen_out()
                return self._unusable()
            return ToolOutcome(self._safe(f"{self.plan.name} answered with an error: {error}"), is_error=True)
        except Exception as error:  # noqa: BLE001 - a stranger's code on a stranger's data
            return ToolOutcome(f"{self.plan.name} could not answer: {self._told(error)}", is_error=True)
        return outcome_of(result, self.plan.without_secrets)

    async def _revived(self) -> Client | None:
        """The client. One over HTTP, which a single lost connection ends, is begun anew; a dead process stays dead."""
        async with self._reviving:
            if self._client is None and self._process is None:
                with contextlib.suppress(ToolError):
                    await self.start()
        return self._client

    async def close(self) -> None:
        """Say goodbye, and see it gone."""
        if self._living is None:
            return
        self._over.set()
        try:
            with contextlib.suppress(TimeoutError):
                await within(self._clock, CLOSE_SECONDS, self._gone())
        finally:
            # Also when whoever closes it is cancelled meanwhile: then there is no time for the goodbye.
            self.cut()
            await self._gone()

    def cut(self) -> None:
        """End it at once, without a goodbye and without waiting."""
        if self._living is not None:
            self._living.cancel()

    async def _first_word(self) -> list[ListedTool]:
        return await asyncio.shield(self._listed)

    async def _gone(self) -> None:
        assert self._living is not None
        await asyncio.wait([self._living])

    async def _live(self) -> None:
        """The whole life, in one task, as the SDK's task groups demand."""
        try:
            client = Client(self._transport(), client_info=Implementation(name="understudy", version="1"), cache=None)
            async with client:
                tools = await _all_tools(client)
                self._client = client
                self._listed.set_result(tools)
                await self._over.wait()
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises, and whatever the server made it raise
            self._failed = error
        finally:
            self._client = None
            if not self._listed.done():
                self._listed.set_exception(ToolError(self._why()))
                self._listed.exception()  # nobody may be waiting any more

    def _transport(self) -> AbstractAsyncContextManager[TransportStreams]:
        if self._process is not None:
            return self._process.streams()
        if self.plan.kind == "sse":
            return sse_client(self.plan.url, headers=dict(self.plan.headers))
        return self._over_http()

    @contextlib.asynccontextmanager
    async def _over_http(self) -> AsyncIterator[TransportStreams]:
        # Reading has no limit of its own: the start and every call have theirs, on the runtime's clock.
        timeout = httpx2.Timeout(_CONNECT_SECONDS, read=None)
        async with (
            httpx2.AsyncClient(headers=dict(self.plan.headers), timeout=timeout) as http,
            streamable_http_client(self.plan.url, http_client=http) as streams,
        ):
            yield streams

    # -- in words -----------------------------------------------------------------------------------------

    def _unusable(self) -> ToolOutcome:
        why = f"the MCP server {self.plan.name} is gone: {self._why()}; go on without it"
        return ToolOutcome(why, is_error=True)

    def _why(self) -> str:
        trouble = self._trouble()
        if trouble is not None:
            return trouble
        return "the connection ended" if self._failed is None else self._told(self._failed)

    def _trouble(self) -> str | None:
        """What is wrong with its process, if it has one."""
        trouble = None if self._process is None else self._process.trouble
        return None if trouble is None else self._safe(trouble)

    def _told(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, OSError) and error.strerror:
            return self._safe(f"{self.plan.argv[0] if self.plan.argv else 'it'}: {error.strerror}")
        return self._safe(f"{type(error).__name__}: {error}".removesuffix(": "))

    def _safe(self, text: str) -> str:
        """One line, bounded, without the values that the file keeps secret."""
        return " ".join(self.plan.without_secrets(text).split())[:_LONGEST_REASON]


async def _all_tools(client: Client) -> list[ListedTool]:
    found: list[ListedTool] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return found
