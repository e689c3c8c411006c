"""Another program watches a runtime's sub-agents live, with nothing but the standard library (extra `server`).

Run it without arguments to see both sides; with a database (`watch_over_http.py agents.db`) it watches whatever host
serves that, such as `understudy serve`.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.actors import AsyncRuntime, FunctionRunner
from understudy.gateway.http import running_server, serving
from understudy.protocol import Spawn

if TYPE_CHECKING:
    from collections.abc import Callable

    from understudy.actors.runners import AsyncFunctionContext
    from understudy.protocol import SpawnPacket


def watch(database: Path, listening: Callable[[], object] = bool) -> None:
    """Print each event of the next run, from its spawn to its delivery."""
    server = running_server(database)
    if server is None:
        sys.exit(f"nobody serves {database}: start `understudy serve --db {database}`")
    token = Path(server.token_file).read_text(encoding="utf-8").strip()
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    connection.request("GET", "/api/events", headers={"authorization": f"Bearer {token}"})
    name = ""
    for line in connection.getresponse():
        field, _, value = line.decode().strip().partition(": ")
        if not field and value == "welcome":  # a comment: from here on nothing is missed
            listening()
        elif field == "event":
            name = value.removeprefix("session:sub_agent_")
        elif field == "data":
            print(name, json.loads(value)["data"].get("text", ""))
            if name == "delivered":
                break
    connection.close()


async def work(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    """Stands for your agent."""
    context.progress(f"looking into {packet.task!r}")
    return "found it"


async def main(database: Path) -> None:
    """The host: a runtime, its server, and one sub-agent as soon as somebody watches."""
    runtime = AsyncRuntime(database, runners={"default": FunctionRunner(work)})
    async with runtime, serving(runtime, database, port=0):
        loop, seen = asyncio.get_running_loop(), asyncio.Event()
        watching = asyncio.create_task(asyncio.to_thread(watch, database, lambda: loop.call_soon_threadsafe(seen.set)))
        await seen.wait()
        session = await runtime.session("agent:atlas:main")
        await session.spawn(Spawn(task="the loader"))
        await watching


if __name__ == "__main__":
    if len(sys.argv) > 1:
        watch(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(main(Path(folder, "agents.db")))
