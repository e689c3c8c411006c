"""The tools are the built-in ones, as far as there are such; and the page on them is true."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _stage import MAIN, a_host
from mcp import Client

from understudy.actors.clock import SystemClock
from understudy.actors.testing import ManualClock
from understudy.actors.tools.session_search import session_search
from understudy.actors.tools.subagents import SUB_AGENT_TOOLS
from understudy.gateway.mcp.acting import LONGEST_WAIT
from understudy.gateway.mcp.caller import context_of, known
from understudy.gateway.mcp.tools import ACTING, MCP_TOOLS, mcp_server
from understudy.protocol import Spawn

if TYPE_CHECKING:
    from concurrent.futures import Future

    from understudy.actors import Runtime
    from understudy.actors.tools.outcome import ToolOutcome

PAGE = (Path(__file__).parents[3] / "docs" / "mcp-server.md").read_text()
BUILT_IN = {tool.name: tool for tool in (session_search, *SUB_AGENT_TOOLS)}


def shape(parameters: Any) -> dict[str, Any]:
    """A tool's arguments, without what is meant to differ: how long to wait, and which actions there are."""
    known = {name: dict(schema) for name, schema in parameters["properties"].items()}
    known.get("wait_seconds", {}).pop("maximum", None)
    known.get("action", {}).pop("enum", None)
    return {"required": parameters.get("required", []), "properties": known}


@pytest.mark.parametrize("name", ["session_search", "sessions_spawn", "sessions_send", "subagents"])
def test_what_a_model_inside_has_a_model_outside_has_too(name: str) -> None:
    """By the same names, with the same arguments."""
    ours = MCP_TOOLS.get(name)
    assert ours is not None
    assert shape(ours.parameters) == shape(BUILT_IN[name].parameters)


def test_what_differs_is_the_longest_wait_and_where_kill_stands() -> None:
    """Nothing that a model inside can do is missing outside."""
    send, outside = MCP_TOOLS.get("sessions_send"), MCP_TOOLS.get("subagents")
    assert send is not None
    assert outside is not None
    properties: Any = send.parameters["properties"]
    assert properties["wait_seconds"]["maximum"] == LONGEST_WAIT
    inside: Any = BUILT_IN["subagents"].parameters["properties"]
    actions: Any = outside.parameters["properties"]
    assert actions["action"]["enum"] == [*inside["action"]["enum"], "kill"]
    assert {*BUILT_IN} - {tool.name for tool in MCP_TOOLS.tools} == {"sessions_kill"}


def test_every_tool_and_argument_stands_on_the_page() -> None:
    """In its row of the table, and nothing that is not there."""
    rows = {
        name: re.findall(r"`([a-z_]+)`", arguments)
        for name, arguments in re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", PAGE, re.MULTILINE)
    }
    schemas: dict[str, Any] = {tool.name: tool.parameters for tool in MCP_TOOLS.tools}
    assert rows == {name: list(schema["properties"]) for name, schema in schemas.items()}
    needs = re.search(r"need a running host: (.*?)\.", PAGE, re.DOTALL)
    assert needs is not None
    assert set(re.findall(r"`(\w+)`", needs[1])) == ACTING


def test_no_call_waits_longer_than_clients_do() -> None:
    """After fifty seconds it tells who has ended and who is still at work; nothing is lost by asking again."""
    clock = ManualClock()
    with a_host(clock) as runtime:
        session = runtime.session(MAIN)
        quick = session.spawn(Spawn(task="be quick"))
        quick.result(timeout=30)
        slow = session.spawn(Spawn(task="stay", runner="hang"))
        asked = calling(runtime, "subagents", action="wait", run_ids=[quick.run_id, slow.run_id])
        clock.advance(LONGEST_WAIT - 1)
        assert not asked.done()
        clock.advance(1)
        told = asked.result(timeout=30).text
        assert "│ done: be quick" in told
        assert told.endswith(f"Still at work: {slow.run_id}. Wait again, or go on and ask later.")
        again = calling(runtime, "sessions_spawn", task="stay too", agent="hang", wait=True)
        clock.advance(LONGEST_WAIT)
        assert again.result(timeout=30).text.startswith("Still at work: ")


def test_what_nobody_foresaw_is_told_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    """They may hold anything: they stand in the log."""

    async def broken(_context: object, _name: str, _arguments: object) -> ToolOutcome:
        raise RuntimeError("hunter2")

    async def asked() -> Any:
        async with Client(mcp_server(broken)) as client:
            return await client.call_tool("session_search", {"query": "x"})

    result = asyncio.run(asked())
    assert result.is_error
    assert result.content[0].text.startswith("it failed with RuntimeError: ")
    assert "hunter2" not in str(result)
    assert "hunter2" in caplog.text


def calling(runtime: Runtime, name: str, **arguments: Any) -> Future[ToolOutcome]:
    """A call that is under way on the runtime's loop."""
    actor = runtime._backstage.sessions[MAIN]  # type: ignore[index]

    async def blocking(function: Any) -> Any:
        return function()

    context = context_of(known(runtime.store, None, MAIN), SystemClock(), blocking, lambda: actor)
    loop = runtime._backstage.kernel.asyncio_loop
    asked = asyncio.run_coroutine_threadsafe(MCP_TOOLS.call(name, arguments, context), loop)
    runtime.clock.run_until_idle()  # type: ignore[attr-defined]
    return asked
