"""A process of ours, seen from the host: its output, its exit, its end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from understudy.actors.clock import within
from understudy.actors.processes.killing import CONFIRM_SECONDS, end_tree, started
from understudy.actors.processes.pipes import Drain, Feed, Source
from understudy.actors.processes.proof import Death, Proof

if TYPE_CHECKING:
    import socket
    import subprocess
    from collections.abc import AsyncIterator, Iterator

    from understudy.actors.clock import Clock
    from understudy.actors.processes.killing import Mark
    from understudy.actors.processes.proof import Needed

# A warden that has not answered by then, beyond its own time to confirm, is given up.
_WARDENS_PATIENCE = 3.0
_REAP_SECONDS = 0.005
_NEEDED: dict[str, Needed] = {"none": "none", "TERM": "TERM", "KILL": "KILL"}


class Process:
    """Runs below a warden. Whoever launched it calls `stop` in the end, also after it has exited by itself.

    Example:
        >>> from understudy.actors import SystemClock
        >>> from understudy.actors.processes import child_environment, launch
        >>> async def main():
        ...     process = await launch(["echo", "hello"], cwd="/", env=child_environment(), clock=SystemClock())
        ...     try:
        ...         print([line async for line in process.lines(longest=1_000)], await process.wait())
        ...     finally:
        ...         await process.stop(grace=1.0)
        >>> asyncio.run(main())
        [b'hello'] 0
    """

    def __init__(
        self,
        warden: subprocess.Popen[bytes],
        control: socket.socket,
        *,
        stdout: int,
        stderr: int | None,
        feed: Feed | None,
        clock: Clock,
    ) -> None:
        """Made by `launch`."""
        self.pid = 0
        self._ticks = 0
        self._warden = warden
        self._control = control
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._heard = b""
        self._begun: asyncio.Future[tuple[int, str] | None] = self._loop.create_future()
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._ended: asyncio.Future[Proof | None] = self._loop.create_future()
        self._reaped: asyncio.Future[None] = self._loop.create_future()
        self._stopping: asyncio.Task[Proof] | None = None
        self._stdout = Source(stdout, self._exited)
        self._stderr = None if stderr is None else Drain(stderr)
        self._feed = feed
        control.setblocking(False)  # noqa: FBT003 - sockets have no keyword for it
        self._loop.add_reader(control.fileno(), self._hear)

    # -- what it says ---------------------------------------------------------------------------------

    def chunks(self) -> AsyncIterator[bytes]:
        """Its output as it comes, until it exits: what others write to the same pipe after that is not waited for."""
        return self._stdout.chunks()

    def lines(self, *, longest: int) -> AsyncIterator[bytes]:
        """The same by lines, without their ends; one over ``longest`` bytes is cut, and says how many are missing."""
        return self._stdout.lines(longest)

    def follow(self, descriptor: int, *, longest: int) -> AsyncIterator[bytes]:
        """The same of another pipe that it writes to; ``descriptor`` stays the caller's."""
        return Source(descriptor, self._exited).lines(longest)

    @property
    def stderr_tail(self) -> str:
        """The last few KB it wrote to stderr, as it wrote them; empty where stderr goes with stdout."""
        return "" if self._stderr is None else self._stderr.tail.decode("utf-8", "replace")

    # -- how it ends ----------------------------------------------------------------------------------

    async def begun(self) -> tuple[int, str] | None:
        """Wait until it runs; where it cannot, the error number and whether it is about ``cwd`` or ``program``."""
        with _in_flight(self._clock):
            return await asyncio.shield(self._begun)

    def abandon(self) -> None:
        """Let go of a warden that has not heard what to start: it leaves."""
        self._close()

    async def wait(self) -> int:
        """The exit code, negative for a signal. Others may live on below it: only `stop` sees to them."""
        return await asyncio.shield(self._exited)

    async def stop(self, grace: float) -> Proof:
        """End it and everything below it: TERM, ``grace`` seconds, KILL; gives the proof.

        It goes on to the end even if its caller is cancelled. The first call decides on the grace, every further one
        gets the same proof.
        """
        if self._stopping is None:
            self._stopping = self._loop.create_task(self._stop(grace))
        return await asyncio.shield(self._stopping)

    async def _stop(self, grace: float) -> Proof:
        try:
            if grace > 0:
                self._say(b"T")
                with contextlib.suppress(TimeoutError):
                    await within(self._clock, grace, self._proof())
            if not self._ended.done():
                self._say(b"K")
                with contextlib.suppress(TimeoutError), _in_flight(self._clock):
                    await within(self._clock, CONFIRM_SECONDS + _WARDENS_PATIENCE, self._proof())
            proof = self._ended.result() if self._ended.done() else None
            if proof is None:
                proof = await self._loop.run_in_executor(None, self._end_without_warden)
        finally:
            # A warden that still lives sees its line closed, and does the same by itself.
            self._close()
        with _in_flight(self._clock):
            await self._reaped
        return proof

    async def _proof(self) -> None:
        await asyncio.shield(self._ended)

    def _end_without_warden(self) -> Proof:
        """The warden was killed, or hangs: what can still be found is ended from here."""
        if not self.pid:  # nothing was ever started
            return Proof(())
        if not self._warden.returncode:
            self._warden.kill()
        if started(self.pid) not in {0, self._ticks}:  # the number is somebody else's by now
            return Proof((Death(self.pid, self._ticks),))
        needed, survivors = end_tree(self._warden.pid, self.pid, lambda _seconds: False)
        needed.setdefault((self.pid, self._ticks), "none")
        return _proof(needed, survivors)

    def _close(self) -> None:
        if self._control.fileno() < 0:
            return
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        for pipe in (self._stdout, self._stderr, self._feed):
            if pipe is not None:
                pipe.close()
        if not self._exited.done():
            self._exited.set_result(-9)
        self._reap()

    def _reap(self) -> None:
        # Its line closed an instant before it became a zombie, so this is looked at once or twice.
        if self._warden.poll() is not None:
            if not self._reaped.done():
                self._reaped.set_result(None)
        elif not self._loop.is_closed():
            self._loop.call_later(_REAP_SECONDS, self._reap)

    # -- the line to the warden -----------------------------------------------------------------------

    async def order(self, order: bytes) -> None:
        """Tell the warden what to start."""
        with contextlib.suppress(ConnectionError):  # as below
            await self._loop.sock_sendall(self._control, len(order).to_bytes(4, "big") + order)

    def _say(self, words: bytes) -> None:
        with contextlib.suppress(OSError):  # a warden that is gone is noticed by its silence
            self._control.send(words)

    def _hear(self) -> None:
        try:
            data = self._control.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            kind, *words = line.decode("ascii").split()
            _WORDS[kind](self, words)

    def _has_started(self, words: list[str]) -> None:
        self.pid, self._ticks = int(words[0]), int(words[1])
        if not self._begun.done():
            self._begun.set_result(None)

    def _was_refused(self, words: list[str]) -> None:
        if not self._begun.done():
            self._begun.set_result((int(words[0]), words[1]))

    def _has_exited(self, words: list[str]) -> None:
        if self._stderr is not None:
            self._stderr.read()
        if not self._exited.done():
            self._exited.set_result(int(words[0]))

    def _has_ended(self, words: list[str]) -> None:
        needed: dict[Mark, str] = {}
        for word in words:
            pid, ticks, how = word.split(":")
            needed[int(pid), int(ticks)] = how
        if not self._ended.done():
            self._ended.set_result(_proof(needed, [mark for mark, how in needed.items() if how == "ALIVE"]))

    def _lost(self) -> None:
        """The warden has left: after its work, or because somebody killed it, and the process with it."""
        self._loop.remove_reader(self._control.fileno())
        if not self._begun.done():
            self._begun.set_result((0, "warden"))
        if not self._exited.done():
            self._has_exited(["-9"])
        if not self._ended.done():
            self._ended.set_result(None)


_WORDS = {
    "started": Process._has_started,  # noqa: SLF001 - this very class
    "refused": Process._was_refused,  # noqa: SLF001
    "exited": Process._has_exited,  # noqa: SLF001
    "ended": Process._has_ended,  # noqa: SLF001
}


def _proof(needed: dict[Mark, str], survivors: list[Mark]) -> Proof:
    alive = set(survivors)
    deaths = [Death(pid, ticks, _NEEDED.get(how, "KILL")) for (pid, ticks), how in needed.items()]
    return Proof(
        tuple(death for death in deaths if (death.pid, death.started) not in alive),
        tuple(death for death in deaths if (death.pid, death.started) in alive),
    )


@contextlib.contextmanager
def _in_flight(clock: Clock) -> Iterator[None]:
    """While real processes begin or die, a manual clock waits for them."""
    clock.work_started()
    try:
        yield
    finally:
        clock.work_finished()
