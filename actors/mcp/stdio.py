"""A server as a process of ours: JSON-RPC by lines over its pipes, and no survivor."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from understudy.actors.clock import within
from understudy.actors.tools._process import kill_group
from understudy.actors.tools.shell import PASSED_ON

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client._transport import TransportStreams

    from understudy.actors.clock import Clock
    from understudy.actors.mcp.plans import Plan

MAX_LINE = 8 * 1024 * 1024
"""The longest message a server may write; a tool's answer is cut to far less."""
MOST_GARBAGE = 1_000
"""So many lines that are no messages are skipped: some servers print a banner, none should print for ever."""
GRACE = 2.0
"""Seconds a server has to leave by itself once its input is closed."""
_STDERR_KEPT = 2_000
_LAST_MOMENT = 1.0


class ServerProcess:
    """One stdio server, from its start to its certain end."""

    def __init__(self, plan: Plan, cwd: str, clock: Clock) -> None:
        self._plan = plan
        self._cwd = cwd
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._ended = asyncio.Event()
        self._stderr = b""
        self.trouble: str | None = None
        """What it did wrong, when that is known better here than by whoever waits for its answer."""

    @contextlib.asynccontextmanager
    async def streams(self) -> AsyncIterator[TransportStreams]:
        """Start it, and carry messages until the block is left; then it is dead, with its group."""
        process = await self._start()
        incoming, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        writing, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        carriers = [
            asyncio.ensure_future(self._listen(process, incoming)),
            asyncio.ensure_future(self._speak(process, outgoing)),
            asyncio.ensure_future(self._overhear(process)),
        ]
        try:
            yield reading, writing
            await self._let_go(process)
        finally:
            # Before anything is awaited: a cancelled task may not get another turn.
            self.kill()
            for carrier in carriers:
                carrier.cancel()
            for stream in (incoming, reading, writing, outgoing):
                stream.close()
            process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio has no other way
            self._clock.work_started()  # death is certain now, and near: a manual clock waits for it
            try:
                await asyncio.shield(self._ended.wait())
            finally:
                self._clock.work_finished()

    def kill(self) -> None:
        """Kill it and its group, if it is there; its block ends by itself."""
        if self._process is not None and self._process.returncode is None:
            kill_group(self._process.pid)

    def last_words(self) -> str:
        """The end of what it wrote to its stderr."""
        return self._stderr.decode(errors="replace").strip()

    def exit_code(self) -> int | None:
        """How it ended, if it has."""
        return None if self._process is None else self._process.returncode

    async def seen_out(self) -> None:
        """Wait a moment for the end of a process that has fallen silent, so that its exit code can be told."""
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await within(self._clock, _LAST_MOMENT, self._ended.wait())

    async def _start(self) -> asyncio.subprocess.Process:
        passed = {name: value for name in PASSED_ON if (value := os.environ.get(name)) is not None}
        starting = asyncio.ensure_future(
            asyncio.get_running_loop().subprocess_exec(
                lambda: _Streams(self._ended),
                *self._plan.argv,
                cwd=self._cwd,
                env={**passed, **self._plan.env, "PWD": self._cwd},
                start_new_session=True,
            )
        )
        try:
            transport, protocol = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # It may be there already, and have children.
            starting.add_done_callback(_kill_late)
            raise
        self._process = asyncio.subprocess.Process(transport, protocol, asyncio.get_running_loop())
        return self._process

    async def _listen(
        self, process: asyncio.subprocess.Process, incoming: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        """Hand its messages over; its end, and its nonsense, close the stream, which fails every call under way."""
        assert process.stdout is not None
        garbage = 0
        with incoming, contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError):
            while garbage < MOST_GARBAGE:
                try:
                    line = await process.stdout.readline()
                except ValueError:
                    self.trouble = f"it wrote a line longer than {MAX_LINE} bytes"
                    return
                if not line:
                    return
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    garbage += 1
                    continue
                await incoming.send(SessionMessage(message))
            self.trouble = "it writes to its stdout what is no JSON-RPC message"

    async def _speak(
        self, process: asyncio.subprocess.Process, outgoing: MemoryObjectReceiveStream[SessionMessage]
    ) -> None:
        assert process.stdin is not None
        with outgoing, contextlib.suppress(ConnectionError):
            async for message in outgoing:
                process.stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await process.stdin.drain()

    async def _overhear(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while data := await process.stderr.read(4096):
            self._stderr = (self._stderr + data)[-_STDERR_KEPT:]

    async def _let_go(self, process: asyncio.subprocess.Process) -> None:
        """The protocol's way to say goodbye: close its input, and give it a moment."""
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await within(self._clock, GRACE, self._ended.wait())


class _Streams(asyncio.subprocess.SubprocessStreamProtocol):
    """Hears of the process's own end. ``Process.wait`` would wait for everybody who holds its pipes, too."""

    def __init__(self, ended: asyncio.Event) -> None:
        super().__init__(limit=MAX_LINE, loop=asyncio.get_running_loop())
        self._ended = ended
        self._leader = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._leader = transport.get_pid()

    def process_exited(self) -> None:
        super().process_exited()
        # What it left behind goes when it goes: later its number may be somebody else's.
        kill_group(self._leader)
        self._ended.set()


def _kill_late(starting: asyncio.Future[tuple[asyncio.SubprocessTransport, _Streams]]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        transport, _ = starting.result()
        kill_group(transport.get_pid())
        transport.close()
