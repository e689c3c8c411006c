"""A server as a process of ours: JSON-RPC by lines over its streams, and no survivor."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from understudy.actors.clock import within
from understudy.actors.processes import child_environment, launch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client._transport import TransportStreams

    from understudy.actors.clock import Clock
    from understudy.actors.mcp.plans import Plan
    from understudy.actors.processes import Process

MAX_LINE = 8 * 1024 * 1024
"""The longest message a server may write; a tool's answer is cut to far less."""
MOST_GARBAGE = 1_000
"""So many lines that are no messages are skipped: some servers print a banner, none should print for ever."""
GRACE = 1.5
"""Seconds a server has to leave by itself once its input is closed."""
TERM_GRACE = 0.5
"""And then, between TERM and KILL."""
# Between the end of its output and the word of its exit.
_LAST_MOMENT = 1.0


class ServerProcess:
    """One stdio server, from its start to its certain end."""

    def __init__(self, plan: Plan, cwd: str, clock: Clock) -> None:
        self._plan = plan
        self._cwd = cwd
        self._clock = clock
        self._process: Process | None = None
        self._silent = False
        self._trouble: str | None = None

    @contextlib.asynccontextmanager
    async def streams(self) -> AsyncIterator[TransportStreams]:
        """Start it, and carry messages until the block is left; then it is dead, with everything below it."""
        process, feeding = await self._start()
        incoming, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        writing, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        carriers = [
            asyncio.ensure_future(self._listen(process, incoming)),
            asyncio.ensure_future(self._speak(feeding, outgoing)),
        ]
        grace = 0.0
        try:
            yield reading, writing
            grace = TERM_GRACE
            # The protocol's way to say goodbye: close its input, and give it a moment.
            feeding.close()
            await self._exit(process, GRACE)
        except Exception:
            await self.seen_out()
            raise
        finally:
            for carrier in carriers:
                carrier.cancel()
            for stream in (incoming, reading, writing, outgoing):
                stream.close()
            feeding.close()
            await process.stop(grace)

    async def seen_out(self) -> None:
        """Wait a moment for the exit of one that has fallen silent, so that it can be told."""
        if self._process is not None and self._silent and self._trouble is None:
            code = await self._exit(self._process, _LAST_MOMENT)
            self._trouble = "it closed its output" if code is None else f"it ended with exit code {code}"

    @property
    def trouble(self) -> str | None:
        """What it did wrong, with the last line of its stderr."""
        if self._trouble is None or self._process is None:
            return self._trouble
        words = self._process.stderr_tail.strip().splitlines()
        return f"{self._trouble}: {words[-1]}" if words else self._trouble

    async def _start(self) -> tuple[Process, socket.socket]:
        feeding, theirs = socket.socketpair()
        feeding.setblocking(False)  # noqa: FBT003 - sockets have no keyword for it
        env = child_environment(self._plan.env)
        try:
            with theirs:
                self._process = await launch(
                    self._plan.argv, cwd=self._cwd, env=env, clock=self._clock, stdin=theirs.fileno()
                )
        except BaseException:
            feeding.close()
            raise
        return self._process, feeding

    async def _listen(self, process: Process, incoming: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Hand its messages over; its end, and its nonsense, close the stream, which fails every call under way."""
        garbage = 0
        with incoming, contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for line in process.lines(longest=MAX_LINE):
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    garbage += 1
                    if len(line) > MAX_LINE or garbage == MOST_GARBAGE:
                        self._trouble = "it writes to its stdout what is no JSON-RPC message"
                        return
                    continue
                await incoming.send(SessionMessage(message))
            self._silent = True

    async def _speak(self, feeding: socket.socket, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
        loop = asyncio.get_running_loop()
        with outgoing, contextlib.suppress(OSError):  # one that does not listen any more is about to end
            async for message in outgoing:
                data = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
                await loop.sock_sendall(feeding, data + b"\n")

    async def _exit(self, process: Process, seconds: float) -> int | None:
        with contextlib.suppress(TimeoutError):
            return await within(self._clock, seconds, process.wait())
        return None
