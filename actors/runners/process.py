"""Any importable runner in a process of its own, which can be killed whatever it does."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import pickle
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.actors.clock import within
from understudy.actors.processes import child_environment, launch
from understudy.actors.runners import _wire
from understudy.actors.runners._offstage import named
from understudy.persistence import Redactor
from understudy.protocol.runner import Final, Noted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from understudy.actors.processes import Process
    from understudy.actors.runners.contract import RunContext, Runner
    from understudy.protocol import SpawnPacket
    from understudy.protocol.runner import RunnerEvent

TERM_GRACE = 3.0
LONGEST_LINE = 16 * 1024 * 1024
"""The most one event may hold; a longer one is dropped as if it were noise."""

_LONGEST_NOTE = 500
_MOST_NOTES = 1_000
_LAST_WORDS = 1_000
# A shorter value of the environment is a switch or a word, not a key.
_SECRET_LENGTH = 8


class _Discretion:
    """Takes secrets out of a worker's words, those of the spawn's env too: the words reach results, logs and models."""

    def __init__(self, packet: SpawnPacket, context: RunContext) -> None:
        self._given = Redactor(value for value in packet.env.values() if len(value) >= _SECRET_LENGTH)
        self._known = context.backstage.store.redactor

    def text(self, words: str) -> str:
        """Without them."""
        return self._given.text(self._known.text(words))


class WorkerDied(Exception):  # noqa: N818 - it is what happened, as the result tells it
    """The worker ended without having said how it went."""


class ProcessRunner:
    """Runs ``runner`` in a worker process: ``"module:attribute"``, or an object that can be packed for one.

    What it names may be a runner, a class of runners that is made without arguments, or a function as `FunctionRunner`
    takes it. The worker sees few variables of the host and those of the spawn, works in the run's cwd, and cannot
    delegate. However the run ends, the worker and everything it started are ended: asked first, killed after
    ``term_grace`` seconds; the proof is among the run's recorded events.

    Example:
        >>> runner = ProcessRunner("understudy.actors.testing:ScriptedRunner")
        >>> ProcessRunner("nowhere:runner")
        Traceback (most recent call last):
        ValueError: 'nowhere:runner' cannot be imported: No module named 'nowhere'
    """

    def __init__(
        self,
        runner: str | Runner | Callable[..., Any],
        *,
        term_grace: float = TERM_GRACE,
    ) -> None:
        if term_grace < 0:
            raise ValueError(f"term_grace = {term_grace} is not allowed: use 0 or more seconds")
        self._name: str | None = None
        self._packed: str | None = None
        if isinstance(runner, str):
            _check(runner)
            self._name = runner
        else:
            self._packed = _packed(runner)
        self._term_grace = term_grace

    async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        """The worker's events as they come."""
        line, theirs = socket.socketpair()
        with line:
            line.setblocking(False)  # noqa: FBT003 - sockets have no keyword for it
            with theirs:
                process = await self._launched(packet, context, theirs.fileno())
            discreet = _Discretion(packet, context)
            listening = asyncio.ensure_future(_note_prints(process, context, discreet))
            finished = False
            try:
                async for event in _events(process, line, context, discreet):
                    finished = isinstance(event, Final)
                    yield event
            finally:
                # A task, so that a second cancellation interrupts the waiting and not the killing.
                ending = context.backstage.task(self._see_off(process, context, finished=finished), lasting=True)
                await asyncio.shield(ending)
                await listening

    async def _launched(self, packet: SpawnPacket, context: RunContext, descriptor: int) -> Process:
        clock = context.backstage.clock
        order = {
            "path": _import_path(),
            "name": self._name,
            "pickle": self._packed,
            # It cannot delegate, and is told so by what it is: a leaf.
            "packet": packet.model_copy(update={"max_depth": packet.depth + 1}).model_dump_json(),
            "history": list(context.history),
            "config": context.backstage.config.model_dump(mode="json"),
            "objective": context.objective(),
            "seconds": context.deadline - clock.monotonic(),
        }
        try:
            return await launch(
                # -P: a module in the run's cwd is not taken for one of the host's.
                [sys.executable, "-P", str(Path(__file__).with_name("_worker.py")), str(descriptor)],
                cwd=packet.cwd,
                env=child_environment(packet.env),
                clock=clock,
                stdin=_wire.line(order),
                pass_fds=(descriptor,),
            )
        except OSError as error:
            raise WorkerDied(f"the worker could not be started: {error.strerror or error}") from None

    async def _see_off(self, process: Process, context: RunContext, *, finished: bool) -> None:
        if finished:  # it has said its last word, and may leave by itself
            with contextlib.suppress(TimeoutError):
                await within(context.backstage.clock, self._term_grace, process.wait())
        context.proved(await process.stop(self._term_grace))


async def _events(
    process: Process, line: socket.socket, context: RunContext, discreet: _Discretion
) -> AsyncIterator[RunnerEvent]:
    """What the worker says, until its final answer or its death, which is a `WorkerDied`."""
    noise, crash = 0, ""
    async for written in process.follow(line.fileno(), longest=LONGEST_LINE):
        said = _wire.parse(written)
        event = _wire.event_of(said)
        if event is not None:
            yield event
            if isinstance(event, Final):
                return
        elif "ask" in said:
            await _answer(line, said, context)
        elif "crash" in said:
            crash = str(said["crash"])
        else:
            noise += 1
        if instructions := context.steered():
            await _tell(line, {"steer": instructions})
    code = await process.wait()
    if crash or code or noise:
        raise WorkerDied(discreet.text(crash or _how(process, code, noise)))


async def _answer(line: socket.socket, said: dict[str, Any], context: RunContext) -> None:
    reply: dict[str, Any] = {"number": said.get("number")}
    if said["ask"] == "boundary":
        reply["turns"] = await context.boundary()
    else:
        await context.flush()
    await _tell(line, reply)


async def _tell(line: socket.socket, said: dict[str, Any]) -> None:
    with contextlib.suppress(ConnectionError):  # it is dying: its exit tells more
        await asyncio.get_running_loop().sock_sendall(line, _wire.line(said))


def _how(process: Process, code: int, noise: int) -> str:
    how = f"the worker was killed by signal {-code}" if code < 0 else f"the worker exited with code {code}"
    if noise:
        how += f"; {noise} of its lines were no events"
    tail = process.stderr_tail.strip()
    if len(tail) > _LAST_WORDS:
        tail = f"…{tail[-_LAST_WORDS:]}"
    return f"{how}; stderr: {tail}" if tail else how


async def _note_prints(process: Process, context: RunContext, discreet: _Discretion) -> None:
    """What the worker prints is a word on how it goes; so many are told, and the rest is only read."""
    told = 0
    async for printed in process.lines(longest=_LONGEST_NOTE):
        text = printed.decode("utf-8", "replace").strip()
        if text and told < _MOST_NOTES:
            told += 1
            context.emit(Noted(discreet.text(text)))


def _import_path() -> list[str]:
    # As seen from where the host stands; what is no path there belongs to an import hook.
    return [str(Path(entry).resolve()) if Path(entry).exists() else entry for entry in sys.path]


def _check(name: str) -> None:
    """Import what is named, here and now, so that a mistake is told where it was made."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ValueError(f"{name!r} names no runner: write 'module:attribute'")
    try:
        thing = named(name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name!r} cannot be imported: {error}") from None
    if not (callable(thing) or hasattr(thing, "run")):
        raise ValueError(f"{name!r} is no runner: it has no `run`, and is no function or class")


def _packed(runner: object) -> str:
    if not (callable(runner) or hasattr(runner, "run")):
        raise ValueError(f"{runner!r} is no runner: it has no `run`, and is no function or class")
    thing = runner if hasattr(runner, "__qualname__") else type(runner)
    if thing.__module__ == "__main__":
        raise ValueError(f"{thing.__qualname__} is defined in the main program, which a worker cannot import: "
                         "move it to a module")  # fmt: skip
    try:
        return base64.b64encode(pickle.dumps(runner)).decode("ascii")
    except Exception as error:  # noqa: BLE001 - an object's own way of packing itself may raise anything
        raise ValueError(f"{thing.__qualname__} cannot be sent to a worker process: {error}") from None
