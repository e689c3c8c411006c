"""A real MCP server, made with the SDK's server side: ``python a_server.py`` speaks stdio, ``… http PORT`` HTTP.

It says its port once it listens.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ListToolsResult,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)

if TYPE_CHECKING:
    from mcp_types import CallToolRequestParams

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
NOTHING = {"type": "object", "properties": {}}

TOOLS = [
    Tool(name="echo", description="Says it again.", input_schema=TEXT),
    Tool(name="fail", description="Answers with an error.", input_schema=NOTHING),
    Tool(name="picture", description="Answers with more than text.", input_schema=NOTHING),
    Tool(name="flood", description="Answers with a million characters.", input_schema=NOTHING),
    Tool(name="crash", description="Dies in the middle.", input_schema=NOTHING),
    Tool(name="hang", description="Never answers.", input_schema=NOTHING),
    Tool(name="where", description="Its folder, its variables.", input_schema=NOTHING),
    Tool(name="look at", description="Reads a file.", input_schema=PATH),
    Tool(name="huge", description="Takes very much.", input_schema={**TEXT, "description": "x" * 30_000}),
    Tool(
        name="put",
        description="Writes a file.",
        input_schema=PATH,
        annotations=ToolAnnotations(read_only_hint=False),
    ),
]


async def call(_context: Any, params: CallToolRequestParams) -> CallToolResult:
    arguments = params.arguments or {}
    match params.name:
        case "echo":
            return said(arguments["text"])
        case "fail":
            return CallToolResult(content=[TextContent(type="text", text="it went wrong")], is_error=True)
        case "picture":
            resource = TextResourceContents(uri="file:///notes.txt", text="noted")
            return CallToolResult(
                content=[
                    TextContent(type="text", text="here:"),
                    ImageContent(type="image", data="AAAA", mime_type="image/png"),
                    EmbeddedResource(type="resource", resource=resource),
                ]
            )
        case "flood":
            return said("x" * 1_000_000)
        case "crash":
            print("out of memory", file=sys.stderr, flush=True)  # noqa: T201
            os._exit(3)
        case "hang":
            Path(os.environ["HANGS"]).write_text("now", encoding="utf-8")  # noqa: ASYNC240 - it hangs anyway
            await asyncio.Event().wait()
        case "where":
            return said(
                "\n".join([str(Path.cwd()), *(f"{name}={value}" for name, value in sorted(os.environ.items()))])
            )
    return said(f"{params.name} {arguments['path']}")


def said(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)])


async def list_tools(_context: Any, _params: Any) -> ListToolsResult:
    return ListToolsResult(tools=TOOLS)


SERVER: Server[Any] = Server("a server", on_list_tools=list_tools, on_call_tool=call)


async def serve() -> None:
    async with stdio_server() as (reading, writing):
        await SERVER.run(reading, writing, SERVER.create_initialization_options())


def serve_http(port: int) -> None:
    listening = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(SERVER.streamable_http_app(), log_level="error"))
    print(listening.getsockname()[1], flush=True)  # noqa: T201 - for whoever started it
    server.run(sockets=[listening])


def main(kind: str = "stdio", port: str = "0") -> None:
    if "PIDS" in os.environ:
        # A child of its own, so that a test can see the whole tree go.
        child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        Path(os.environ["PIDS"]).write_text(f"{os.getpid()} {child.pid}", encoding="utf-8")
    if kind == "http":
        serve_http(int(port))
    else:
        print("Welcome! This line is no message.", flush=True)  # noqa: T201 - as careless servers do
        asyncio.run(serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
