"""A runner at work in a process of its own: what it says goes to the host, what it asks comes from there."""

from __future__ import annotations

import asyncio
import base64
import importlib
import io
import itertools
import pickle
import signal
import sys
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from understudy.actors._kernel.loop import ActorLoop
from understudy.actors.clock import SystemClock
from understudy.actors.estimator import default_estimator
from understudy.actors.glances import Glances
from understudy.actors.runners import _wire
from understudy.actors.runners.contract import RunContext
from understudy.actors.runners.function import FunctionRunner
from understudy.protocol import RuntimeConfig, SpawnPacket
from understudy.protocol.model import Turn
from understudy.protocol.runner import Final, Said

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from understudy.actors.backstage import Backstage
    from understudy.actors.models.errors import ProviderError
    from understudy.actors.processes import Proof
    from understudy.actors.runners.contract import Runner
    from understudy.protocol import Spawn
    from understudy.protocol.runner import RunnerEvent

T = TypeVar("T")

_CHUNK = 65_536


def work(order: dict[str, Any], line: socket.socket) -> int:
    """Do one order; the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what it prints is told as it happens
    return asyncio.run(_work(order, line))


async def _work(order: dict[str, Any], line: socket.socket) -> int:
    context, task = WorkerContext(order, line), asyncio.current_task()
    assert task is not None

    def cancel() -> None:
        context.over = True
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, cancel)
    try:
        packet = SpawnPacket.model_validate_json(order["packet"])
        async for event in as_runner(found(order)).run(packet, context):
            context.emit(event)
            if isinstance(event, Final):
                break
    except asyncio.CancelledError:
        if not context.over:
            raise
        return 128 + signal.SIGTERM
    except Exception as error:
        words = str(error).strip()
        context.say({"crash": f"{type(error).__name__}: {words}" if words else type(error).__name__})
        raise
    return 0


def found(order: dict[str, Any]) -> object:
    """What is to run: by its name, or as it was packed."""
    if order["name"] is None:
        return pickle.loads(base64.b64decode(order["pickle"]))  # noqa: S301 - packed by our own host
    return named(order["name"])


def named(name: str) -> object:
    """What ``module:attribute`` names."""
    module, _, attribute = name.partition(":")
    return reduce(getattr, attribute.split("."), cast("object", importlib.import_module(module)))


def as_runner(thing: Any) -> Runner:
    """A runner as it is, a class of runners made, a function as its runner."""
    if isinstance(thing, type):
        thing = thing()
    return cast("Runner", thing) if hasattr(thing, "run") else FunctionRunner(thing)


class _Offstage:
    """What a runner may use of a runtime's backstage in a process without one."""

    def __init__(self, config: RuntimeConfig) -> None:
        self.config = config
        self.estimator = default_estimator()
        self.clock = SystemClock()
        self.kernel = ActorLoop(clock=self.clock, dead_letters=lambda _letter: None)
        self.kernel.run_here()
        self.glances = Glances(self.kernel.asyncio_loop)


class WorkerContext(RunContext):
    """The context of a run whose host is in another process."""

    __slots__ = (
        "_asked",
        "_backstage",
        "_deadline",
        "_heard",
        "_history",
        "_instructions",
        "_line",
        "_numbers",
        "_objective",
        "over",
    )

    def __init__(self, order: dict[str, Any], line: socket.socket) -> None:
        self._line = line
        self._backstage = _Offstage(RuntimeConfig.model_validate(order["config"]))
        self._objective: str | None = order["objective"]
        self._history = _wire.turns_of(order["history"])
        self._deadline: float = self._backstage.clock.monotonic() + order["seconds"]
        self._instructions: list[str] = []
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._heard = b""
        self.over = False
        asyncio.get_running_loop().add_reader(line, self._hear)

    # -- what it says ---------------------------------------------------------------------------------

    def say(self, said: dict[str, Any]) -> None:
        """Write a line; it waits while the host is behind."""
        self._line.sendall(_wire.line(said))

    def emit(self, event: RunnerEvent) -> None:
        """Tell something between two yields."""
        self._line.sendall(_wire.event_line(event))

    def answer(self, turns: Sequence[Turn]) -> None:
        """The tools' results."""
        for turn in turns:
            self.emit(Said(turn))

    def proved(self, proof: Proof) -> None:
        """The host has a proof of its own, of this process and all below it."""

    def attempted(self, error: ProviderError | None) -> None:
        """The health of a provider is judged where all runs are known, and so not from here."""

    # -- what it knows --------------------------------------------------------------------------------

    @property
    def history(self) -> Sequence[Turn]:
        """As the host had it when the worker started."""
        return self._history

    @property
    def backstage(self) -> Backstage:
        """Clock and event loop, and nothing else."""
        return cast("Backstage", self._backstage)

    @property
    def cancelled(self) -> bool:
        """Whether the host wants it to end."""
        return self.over

    @property
    def deadline(self) -> float:
        """When the run's time is up, in the clock's monotonic seconds."""
        return self._deadline

    def steered(self) -> list[str]:
        """New instructions; they come with the answer to whatever was said last."""
        taken, self._instructions = self._instructions, []
        return taken

    def aside(self) -> str:
        """Nothing: it has no children."""
        return ""

    def objective(self) -> str | None:
        """What the run is for."""
        return self._objective

    def files(self) -> Sequence[str]:
        """The host knows them."""
        return ()

    async def compacted(self, summary: str, kept: int) -> None:
        """Only here: after a restart the history is longer than it was, and compacted again."""

    @property
    def resumable(self) -> None:
        """The host's business."""

    @property
    def searcher(self) -> None:
        """There is no store here."""

    async def flush(self) -> None:
        """Return when every turn so far is durable."""
        await self._ask("flush")

    async def boundary(self) -> list[Turn]:
        """New instructions, as turns."""
        arrived = _wire.turns_of((await self._ask("boundary"))["turns"])
        return [*(Turn("user", told) for told in self.steered()), *arrived]

    def own_session(self) -> NoReturn:
        """There is none."""
        raise RuntimeError("a run in a worker process cannot delegate: do the work here, or run it in the host")

    async def spawn(self, spawn: Spawn) -> NoReturn:
        """Likewise."""
        del spawn
        self.own_session()

    async def blocking(self, function: Callable[[], T]) -> T:
        """Run blocking code on a thread."""
        return await self._backstage.kernel.pool.run(function)

    # -- the line -------------------------------------------------------------------------------------

    async def _ask(self, what: str) -> dict[str, Any]:
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self.say({"ask": what, "number": number})
        return await answer

    def _hear(self) -> None:
        data = self._line.recv(_CHUNK)
        if not data:  # the host is gone, and the warden about to end this
            asyncio.get_running_loop().remove_reader(self._line)
        *lines, self._heard = (self._heard + data).split(b"\n")
        for said in map(_wire.parse, lines):
            self._instructions += said.get("steer", ())
            answer = self._asked.pop(said.get("number", 0), None)
            if answer is not None and not answer.done():
                answer.set_result(said)
