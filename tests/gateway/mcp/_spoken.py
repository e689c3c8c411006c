"""What the tests of the MCP server start from: the official client, over real stdio or real HTTP."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import httpx2
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from understudy.actors.processes import child_environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from mcp.client._transport import TransportStreams
    from mcp_types import Tool

COMMAND = ["-W", "error", "-m", "understudy.gateway.cli", "mcp"]
Era = Literal["auto", "legacy"]
"""The newest protocol there is, or the one with a handshake that most clients speak."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a tool answered."""

    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class Spoken:
    """A client that is connected, for tests that do not await."""

    portal: BlockingPortal
    client: Client

    def tools(self) -> list[Tool]:
        """What is offered."""
        return list(self.portal.call(self.client.list_tools).tools)

    def call(self, name: str, **arguments: Any) -> Told:
        """Call a tool."""
        result = self.portal.call(self.client.call_tool, name, arguments)
        (part,) = result.content
        return Told(str(getattr(part, "text", "")), bool(result.is_error))

    def said(self, name: str, **arguments: Any) -> str:
        """Call a tool that does what it is asked."""
        told = self.call(name, **arguments)
        assert not told.is_error, told.text
        return told.text

    def refused(self, name: str, **arguments: Any) -> str:
        """Call one that says no: in a sentence, and nothing of how it is made."""
        told = self.call(name, **arguments)
        assert told.is_error, told.text
        assert "\n" not in told.text
        assert "Traceback" not in told.text
        return told.text


@contextlib.contextmanager
def over_stdio(database: Path, *options: str, env: Mapping[str, str] | None = None) -> Iterator[Spoken]:
    """A real ``understudy mcp`` on ``database``, which knows nothing of this process but the file."""
    command = StdioServerParameters(
        command=sys.executable,
        args=[*COMMAND, "--db", str(database), *options],
        env=child_environment(env or {}),
        cwd=database.parent,
    )
    with tempfile.TemporaryFile("w+") as log:
        with _connected(stdio_client(command, errlog=log)) as spoken:
            yield spoken
        log.seek(0)
        assert log.read() == ""


def over_http(url: str, token: str, era: Era = "auto", **query: str) -> contextlib.AbstractContextManager[Spoken]:
    """A real server's route."""

    @asynccontextmanager
    async def transport() -> AsyncIterator[TransportStreams]:
        headers = {"authorization": f"Bearer {token}"}
        address = str(httpx2.URL(f"{url}/mcp", params=query))
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
            streamable_http_client(address, http_client=http) as streams,
        ):
            yield streams

    return _connected(transport(), era)


@contextlib.contextmanager
def _connected(transport: AbstractAsyncContextManager[TransportStreams], era: Era = "auto") -> Iterator[Spoken]:
    with start_blocking_portal() as portal:
        client = Client(transport, mode=era, cache=None)
        with portal.wrap_async_context_manager(client):
            yield Spoken(portal, client)
