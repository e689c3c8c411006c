"""MCP over standard input and output: reads the database itself, and has the running server act."""

from __future__ import annotations

import logging
import signal
import sys
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import anyio
from anyio import to_thread
from mcp.server.stdio import stdio_server

from understudy.actors.clock import SystemClock
from understudy.actors.tools.outcome import ToolError, ToolOutcome
from understudy.gateway.cli.client import the_server
from understudy.gateway.cli.looking import open_view
from understudy.gateway.cli.refusal import Refusal
from understudy.gateway.mcp.caller import context_of, known
from understudy.gateway.mcp.tools import ACTING, MCP_PATH, MCP_TOOLS, mcp_server
from understudy.persistence.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from understudy.protocol import SessionKey
    from understudy.protocol.model import JsonObject

    T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Desk:
    """Answers calls for one client: always the same database, agent and session."""

    db: Path | None
    agent_id: str | None
    session_key: SessionKey | None

    async def __call__(self, _context: object, name: str, arguments: JsonObject) -> ToolOutcome:
        """Run a tool."""
        try:
            if name in ACTING:
                return await _blocking(partial(self._have_done, name, arguments))
            # Anew for each call: whoever serves or is served may come and go meanwhile, and the file with it.
            view = await _blocking(partial(open_view, self.db))
            with view:
                caller = await _blocking(partial(known, view, self.agent_id, self.session_key))
                return await MCP_TOOLS.call(name, arguments, context_of(caller, SystemClock(), _blocking))
        except Refusal as refusal:
            raise ToolError(str(refusal)) from None
        except OSError as error:
            raise ToolError(f"{error.filename or 'the system'}: {error.strerror or error}") from None

    def _have_done(self, name: str, arguments: JsonObject) -> ToolOutcome:
        """The same call, at the server of the database."""
        server = the_server(self.db)
        who = {"session": self.session_key, "agent": self.agent_id, "cwd": str(Path.cwd())}
        query = urlencode({name: value for name, value in who.items() if value is not None})
        call = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": name, "arguments": dict(arguments)},
        }
        answer = server.tell(f"{MCP_PATH}?{query}", call)
        if answer.status == HTTPStatus.NOT_FOUND:
            raise ToolError(
                f"the server at {server.url} speaks no MCP: run `pip install 'understudy[mcp]'` where it runs, and "
                "start it again"
            )
        if not answer.ok:
            raise server.refusal(answer)
        result = answer.document.get("result")
        if not isinstance(result, dict):
            raise ToolError(f"the server at {server.url} gave no result: see its log")
        text = "\n".join(part.get("text", "") for part in result.get("content", ()))
        return ToolOutcome(text, is_error=bool(result.get("isError")))


def serve_stdio(desk: Desk) -> None:
    """Speak MCP until the client closes our input, or a signal ends the process: there is nothing to put away."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Discreet("understudy mcp: %(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    try:
        anyio.run(_serve, desk)
    except* BrokenPipeError:
        pass  # the client has gone, and nobody is left to tell


async def _serve(desk: Desk) -> None:
    server = mcp_server(desk)
    async with stdio_server() as (messages_in, messages_out):
        await server.run(messages_in, messages_out, server.create_initialization_options())


async def _blocking(function: Callable[[], T]) -> T:
    # A daemon thread, left behind when the client goes: nobody waits for a server that does not answer.
    return await to_thread.run_sync(function, abandon_on_cancel=True)


class _Discreet(logging.Formatter):
    """What a client sends may hold secrets, and its log is a file like any other."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without what looks like a secret."""
        return Redactor().text(super().format(record))
