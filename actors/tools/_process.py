"""One short-lived process: bounded in time and output, with nothing below it that outlives the call."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from understudy.actors.clock import within
from understudy.actors.processes import launch
from understudy.protocol.truncate import HEAD_SHARE, note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from understudy.actors.clock import Clock
    from understudy.actors.processes import Process


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
    """Run to the end or for so many seconds; on every way out, cancellation included, its whole tree is dead."""
    output = _Output(max_output)
    process = await launch(argv, cwd=cwd, env=env, clock=clock, merge_stderr=True, pass_fds=pass_fds)
    listening = asyncio.ensure_future(_listen(process, output))
    code: int | None
    try:
        code = await within(clock, seconds, process.wait())
    except TimeoutError:
        code = None
    finally:
        # Also after an orderly end: what it left in the background must not outlive the call.
        await process.stop(0)
        await listening
    head, tail = output.parts()
    between = note(output.omitted, "bytes").encode() if output.omitted else b""
    return Finished(code, head + between + tail, output.omitted)


async def _listen(process: Process, output: _Output) -> None:
    async for chunk in process.chunks():
        output.take(chunk)
