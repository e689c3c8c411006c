"""What listeners cost: 200 on the event stream, half of them stalled, while sub-agents run."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from _ratio import Ratio, interleaved, median_ratio, resident, told_seconds
from lifecycle import CONFIG, _answer, _in_waves, _session, _sub_agent

from understudy.actors import AsyncRuntime, FunctionRunner
from understudy.gateway.http import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHILDREN = 5_000
LISTENERS = 200
MEGABYTE = 1_048_576
MOST_MEGABYTES = 64
"""The buffer of 10,000 events, twice (as values and as text), and what 200 connections may hold."""


@contextlib.asynccontextmanager
async def _listening(url: str, token_file: str) -> AsyncIterator[None]:
    """The listeners, in a process of their own: their reading is not the server's work."""
    command = [sys.executable, __file__, "listen", url, token_file]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.stdin.close()
        await process.wait()


def _listen(url: str, token_file: str) -> None:
    """Half read what comes, half never read more than the head of the answer; until stdin is closed."""
    place = urlsplit(url)
    token = Path(token_file).read_text(encoding="ascii").strip()
    request = f"GET /api/events HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    waiting = selectors.DefaultSelector()
    connections = []
    for number in range(LISTENERS):
        connection = socket.socket()
        if not number % 2:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # it is full soon
        connection.connect((place.hostname, place.port))
        connection.sendall(request)
        assert connection.recv(12) == b"HTTP/1.1 200"
        connections.append(connection)
        if number % 2:
            waiting.register(connection, selectors.EVENT_READ)
    waiting.register(sys.stdin, selectors.EVENT_READ)
    print("ready", flush=True)
    room = bytearray(MEGABYTE)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is sys.stdin:
                return
            assert isinstance(key.fileobj, socket.socket)
            if not key.fileobj.recv_into(room):
                waiting.unregister(key.fileobj)


async def _served(*, listened: bool) -> tuple[float, int]:
    """Seconds for all children, and by how many bytes the process grew."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "agents.db"
        runtime = AsyncRuntime(database, runners={"default": FunctionRunner(_answer)}, config=CONFIG)
        async with runtime, serving(runtime, database, port=0) as here:
            work = partial(_sub_agent, await _session(runtime))
            await _in_waves(work, 500)
            before = resident()
            async with _listening(here.url, here.token_file) if listened else contextlib.nullcontext():
                taken = await _in_waves(work, CHILDREN)
                return taken, resident() - before


def _seconds(*, listened: bool) -> float:
    return asyncio.run(_served(listened=listened))[0]


def _growth(system: str) -> float:
    """Megabytes, in a fresh process: what another measurement has freed does not count as room."""
    command = [sys.executable, __file__, system]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / MEGABYTE


def measure(runs: int) -> list[Ratio]:
    """All of it."""
    taken = interleaved(
        {"alone": partial(_seconds, listened=False), "heard": partial(_seconds, listened=True)}, runs, told_seconds
    )
    each = {name: statistics.median(run[name] for run in taken) / CHILDREN * 1e6 for name in taken[0]}
    alone, heard = _growth("alone"), _growth("heard")
    return [
        Ratio(
            "throughput with 200 listeners, half of them stalled ÷ without",
            median_ratio(taken, "alone", "heard"),
            0.8,
            at_most=False,
            note=f"{each['heard']:.0f} and {each['alone']:.0f} µs a sub-agent",
        ),
        Ratio(
            "memory by which 5,000 sub-agents and 200 listeners grow a server",
            heard,
            MOST_MEGABYTES,
            note=f"MB; {alone:.1f} MB without listeners",
        ),
    ]


if __name__ == "__main__":
    if sys.argv[1] == "listen":
        _listen(*sys.argv[2:])
    else:
        print(asyncio.run(_served(listened=sys.argv[1] == "heard"))[1])
