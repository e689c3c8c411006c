"""One short-lived process: bounded in time and output, in a group of its own that never outlives the call."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from understudy.actors.clock import within
from understudy.protocol.truncate import HEAD_SHARE, note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from understudy.actors.clock import Clock

# A process that left the group may keep the pipe open: its last words are not waited for longer than this.
_DRAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Finished:
    """How it went."""

    code: int | None
    """The exit code, negative for a signal; None when it ran out of time and was killed."""
    output: bytes
    """Both streams as they came; when there was too much, its beginning and its end."""
    omitted: int
    """How many bytes between the two were left out."""


class _Output:
    """The head and the tail of a stream, in bounded memory."""

    def __init__(self, limit: int) -> None:
        self._head_room = int(limit * HEAD_SHARE)
        self._tail_room = limit - self._head_room
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.omitted = 0

    def take(self, data: bytes) -> None:
        room = self._head_room - len(self._head)
        self._head += data[:room]
        rest = data[room:] if room > 0 else data
        if not rest:
            return
        self._tail.append(rest)
        self._tail_size += len(rest)
        while self._tail_size > self._tail_room:
            first = self._tail.popleft()
            surplus = self._tail_size - self._tail_room
            if len(first) > surplus:
                self._tail.appendleft(first[surplus:])
            dropped = min(len(first), surplus)
            self._tail_size -= dropped
            self.omitted += dropped

    def parts(self) -> tuple[bytes, bytes]:
        return bytes(self._head), b"".join(self._tail)


async def run_process(
    argv: Sequence[str],
    *,
    clock: Clock,
    seconds: float,
    max_output: int,
    env: Mapping[str, str],
    cwd: str = "/",
    pass_fds: tuple[int, ...] = (),
) -> Finished:
    """Run to the end or for so many seconds; on every way out, cancellation included, the group is dead."""
    output = _Output(max_output)
    listening, writing = await _listen(output)
    try:
        try:
            process = await _start(argv, output=writing, env=env, cwd=cwd, pass_fds=pass_fds)
        finally:
            os.close(writing)
        code: int | None
        try:
            code = await within(clock, seconds, process.wait())
        except TimeoutError:
            code = None
        finally:
            # Also after an orderly end: what it left in the background must not outlive the call.
            await _put_down(process)
        with contextlib.suppress(TimeoutError):
            await within(clock, _DRAIN_SECONDS, listening.ended())
    finally:
        listening.stop()
    head, tail = output.parts()
    between = note(output.omitted, "bytes").encode() if output.omitted else b""
    return Finished(code, head + between + tail, output.omitted)


async def _start(
    argv: Sequence[str], *, output: int, env: Mapping[str, str], cwd: str, pass_fds: tuple[int, ...]
) -> asyncio.subprocess.Process:
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=cwd,
            env=dict(env),
            pass_fds=pass_fds,
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # The process may be there already, and have children. asyncio would kill it alone.
        await asyncio.shield(_put_down_when_started(starting))
        raise


async def _put_down_when_started(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    with contextlib.suppress(OSError, ValueError):  # it never started
        await _put_down(await starting)


async def _put_down(process: asyncio.subprocess.Process) -> None:
    """Kill the whole group, and see its leader gone."""
    _kill_group(process.pid)
    await asyncio.shield(process.wait())


class _Listening(asyncio.Protocol):
    """The reading end of the pipe."""

    def __init__(self, output: _Output) -> None:
        self._output = output
        self._ended = asyncio.get_running_loop().create_future()
        self.transport: asyncio.BaseTransport | None = None

    def data_received(self, data: bytes) -> None:
        self._output.take(data)

    def connection_lost(self, _error: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    async def ended(self) -> None:
        """Everybody who could write is gone."""
        await asyncio.shield(self._ended)

    def stop(self) -> None:
        """Hear no more."""
        if self.transport is not None:
            self.transport.close()


async def _listen(output: _Output) -> tuple[_Listening, int]:
    """A pipe whose reading end fills ``output``, and its writing end.

    It is a pipe of our own: asyncio would not call a process ended while something in the background holds its pipe.
    """
    reading, writing = os.pipe()
    file = os.fdopen(reading, "rb", buffering=0)
    try:
        transport, listening = await asyncio.get_running_loop().connect_read_pipe(lambda: _Listening(output), file)
    except BaseException:
        file.close()
        os.close(writing)
        raise
    listening.transport = transport
    return listening, writing


def _kill_group(leader: int) -> None:
    # The group keeps the leader's number in use while it has any member, so this reaches nobody else.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
