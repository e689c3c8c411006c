"""The one contract of all runners: a packet in, events out, the last of them final."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from understudy.actors.errors import SessionClosedError
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from understudy.actors.backstage import Backstage
    from understudy.actors.live_run import LiveRun
    from understudy.protocol import RunId, Spawn, SpawnPacket
    from understudy.protocol.runner import RunnerEvent

T = TypeVar("T")


class Runner(Protocol):
    """Does a sub-agent's work. Limits, deadline, transcript, files, budget and events are the runtime's.

    An async generator method fits: yield events as they happen, a `Final` last. Cancellation arrives as
    ``asyncio.CancelledError``; what is yielded after the run has ended is dropped.
    """

    def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        """Work on ``packet``."""


class RunContext:
    """What a runner may use while it works, on the event loop."""

    __slots__ = ("_run",)

    def __init__(self, run: LiveRun) -> None:
        self._run = run

    @property
    def history(self) -> Sequence[Turn]:
        """The child's own turns so far: its task, or everything up to where an earlier run of it left off."""
        return self._run.history or (Turn("user", self._run.packet.task),)

    @property
    def backstage(self) -> Backstage:
        """Clock, store and event loop of the runtime."""
        return self._run.backstage

    @property
    def cancelled(self) -> bool:
        """Whether the run is over: whatever is said from now on is dropped."""
        return self._run.ending is not None

    def emit(self, event: RunnerEvent) -> None:
        """Tell something between two yields."""
        self._run.take(event)

    def steered(self) -> list[str]:
        """New instructions that came since the last call; put them before the model as the user's words."""
        return self._run.take_instructions()

    async def spawn(self, spawn: Spawn) -> LiveRun | RunId:
        """Delegate to a child of this run; returns once that is durable."""
        if self._run.ending is not None:
            # A thread nobody could stop: what it starts now would outlive everybody who could take it in.
            raise SessionClosedError(f"run {self._run.packet.run_id} is over: it cannot spawn any more")
        return await self._run.own_session().spawn(spawn)

    async def blocking(self, function: Callable[[], T]) -> T:
        """Run blocking code on a thread; a run that ends meanwhile leaves it behind."""
        return await self._run.backstage.kernel.pool.run(function)
