"""The reading ends of a process's pipes: bounded in memory, and never waiting for whoever else holds the other end."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_CHUNK = 65_536
_MOST_AFTER_EXIT = 1024 * 1024
"""More than any pipe holds: what comes beyond was written by somebody else after the exit."""
_TAIL = 4_096


class Source:
    """Its output, read as fast as it is taken and no faster."""

    def __init__(self, descriptor: int, exited: asyncio.Future[int]) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._exited = exited
        self._left = b""
        self._loop = asyncio.get_running_loop()

    async def chunks(self) -> AsyncIterator[bytes]:
        """As it comes, until its end or the exit of its writer."""
        after_exit = 0
        while after_exit < _MOST_AFTER_EXIT:
            # Asked first: what was written before the exit is in the pipe by then.
            over = self._exited.done()
            data = self._read()
            if data:
                after_exit += len(data) if over else 0
                yield data
                await asyncio.sleep(0)  # a flood must not hold up everybody else
            elif data is not None or over:
                return
            else:
                await self._readable()

    async def lines(self, longest: int) -> AsyncIterator[bytes]:
        """The same in lines."""
        line, missing = bytearray(), 0
        async for chunk in self.chunks():
            first, *rest = chunk.split(b"\n")
            for number, part in enumerate((first, *rest)):
                if number:
                    yield _cut(line, missing)
                    line, missing = bytearray(), 0
                room = longest - len(line)
                line += part[:room]
                missing += max(0, len(part) - room)
        if line:
            yield _cut(line, missing)

    def _read(self) -> bytes | None:
        """What there is; nothing at the end; None when there is nothing now."""
        if self._descriptor is None:
            left, self._left = self._left, b""
            return left
        try:
            return os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return None

    async def _readable(self) -> None:
        descriptor, woken = self._descriptor, self._loop.create_future()
        assert descriptor is not None

        def wake(_exited: object = None) -> None:
            if not woken.done():
                woken.set_result(None)

        self._loop.add_reader(descriptor, wake)
        self._exited.add_done_callback(wake)
        try:
            await woken
        finally:
            self._exited.remove_done_callback(wake)
            if self._descriptor is not None:
                self._loop.remove_reader(descriptor)

    def close(self) -> None:
        """Give the descriptor back; what is in the pipe can still be taken."""
        descriptor = self._descriptor
        if descriptor is None:
            return
        left = bytearray()
        while len(left) < _MOST_AFTER_EXIT and (data := self._read()):
            left += data
        self._left = bytes(left)
        self._descriptor = None
        self._loop.remove_reader(descriptor)
        os.close(descriptor)


class Drain:
    """Read to keep the pipe from filling up; only the last of it is kept."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self.read)
        self.tail = b""

    def read(self) -> None:
        """Take what there is, as much as a pipe holds at most."""
        for _ in range(_MOST_AFTER_EXIT // _CHUNK):
            if self._descriptor is None:
                return
            try:
                data = os.read(self._descriptor, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                self._give_back(self._descriptor)
                return
            self.tail = (self.tail + data)[-_TAIL:]

    def close(self) -> None:
        """Read what is left, and give the descriptor back."""
        self.read()
        if self._descriptor is not None:
            self._give_back(self._descriptor)

    def _give_back(self, descriptor: int) -> None:
        self._descriptor = None
        self._loop.remove_reader(descriptor)
        os.close(descriptor)


class Feed:
    """Its whole input, written as fast as it is read."""

    def __init__(self, descriptor: int, data: bytes) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._left = memoryview(data)
        self._loop = asyncio.get_running_loop()
        self._loop.add_writer(descriptor, self._write)

    def _write(self) -> None:
        if self._descriptor is None:
            return
        try:
            written = os.write(self._descriptor, self._left[:_CHUNK])
        except BlockingIOError:
            return
        except OSError:  # it does not want to know
            written = len(self._left)
        self._left = self._left[written:]
        if not self._left:
            self.close()

    def close(self) -> None:
        """No more input."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._loop.remove_writer(descriptor)
            os.close(descriptor)


def _cut(line: bytearray, missing: int) -> bytes:
    return bytes(line) + f" [… {missing} bytes omitted …]".encode() if missing else bytes(line)
