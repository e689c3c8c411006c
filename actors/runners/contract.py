"""The one contract of all runners: a packet in, events out, the last of them final."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Protocol, TypeVar

from understudy.actors import checkpoints
from understudy.actors.errors import SessionClosedError
from understudy.actors.runners.resumption import find_resumable
from understudy.actors.searching import Searcher
from understudy.actors.turns.exchange import Exchange
from understudy.persistence import StoreClosedError
from understudy.persistence.operations import RecordEvent
from understudy.protocol.model import Turn
from understudy.protocol.runner import Said

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from understudy.actors.backstage import Backstage
    from understudy.actors.live_run import LiveRun
    from understudy.actors.models.errors import ProviderError
    from understudy.actors.processes import Proof
    from understudy.actors.runners.resumption import Resumable
    from understudy.actors.session import SessionActor
    from understudy.protocol import RunId, Spawn, SpawnPacket
    from understudy.protocol.runner import RunnerEvent

logger = logging.getLogger("understudy")

T = TypeVar("T")


class Runner(Protocol):
    """Does a sub-agent's work. Limits, deadline, transcript, files, budget and events are the runtime's.

    An async generator method fits: yield events as they happen, a `Final` last. Cancellation arrives as
    ``asyncio.CancelledError``; what is yielded after the run has ended is dropped.

    A runner may also have ``refusal(spawn) -> str | None``: asked before a spawn is accepted, it says in one sentence
    why it cannot be, and what to do instead.
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
    def resumable(self) -> Resumable | None:
        """The conversation an earlier run of this child told of (`SessionIdentified`), from the store."""
        return find_resumable(self._run.backstage.store, self._run.packet)

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
        run = self._run
        if isinstance(event, Said) and event.turn.tool_calls:
            run.exchange = run.exchange or Exchange()
            run.exchange.begin()
        run.take(event)

    def answer(self, turns: Sequence[Turn]) -> None:
        """The tools' results, all of one exchange; results of children among them are acknowledged with it."""
        run = self._run
        if run.ending is None:
            run.append(*turns, also=() if run.nested is None else run.nested.settle_debts())

    def proved(self, proof: Proof) -> None:
        """Record how a process of this run died, with everything below it; also when the run is long over."""
        backstage = self._run.backstage
        if proof.survivors:
            logger.warning("run %s left processes that cannot be killed: %s", self._run.packet.run_id, proof)
        event = backstage.event(
            "session:sub_agent_process_ended", self._run, proof=str(proof), survivors=len(proof.survivors)
        )
        with contextlib.suppress(StoreClosedError):  # the runtime did not wait for it
            backstage.store.transaction(RecordEvent(event))
        backstage.bus.emit(event)

    async def flush(self) -> None:
        """Return when every turn so far is durable."""
        await self._run.flush()

    async def boundary(self) -> list[Turn]:
        """Between two model calls: new instructions, and results of this run's own children."""
        run = self._run
        arrived: list[Turn] = []
        if run.exchange is not None:
            run.exchange.end()
            await run.exchange.settled()
        if run.nested is not None:
            arrived, run.nested.arrived = run.nested.arrived, []
        return [*arrived, *(Turn("user", told) for told in self.steered())]

    def aside(self) -> str:
        """What the next model call gets besides the history."""
        return "" if self._run.nested is None else self._run.nested.aside()

    def objective(self) -> str | None:
        """What the run is for: its objective, else its task."""
        packet = self._run.packet
        return packet.objective or packet.task

    def files(self) -> Sequence[str]:
        """The files the run has touched, most recent first."""
        return tuple(reversed(self._run.files))

    async def compacted(self, summary: str, kept: int) -> None:
        """The history was compacted: record it, and the checkpoint before it."""
        await checkpoints.compacted(self._run.backstage, self._run.packet.session_key, summary, kept)

    def own_session(self) -> SessionActor:
        """The session this run's own children live under; made when the first one is wanted."""
        return self._run.own_session()

    @property
    def searcher(self) -> Searcher | None:
        """Searches as the parent's agent, always, and the parent's session if no other is named."""
        run = self._run
        return Searcher(run.backstage.store, run.packet.agent_id, run.session.place.visibility, run.session.key)

    @property
    def deadline(self) -> float:
        """When the run's time is up, in the clock's monotonic seconds."""
        return self._run.due

    def attempted(self, error: ProviderError | None) -> None:
        """A call of the provider ended like this."""
        packet = self._run.packet
        self._run.backstage.attempted(packet.runner, packet.session_key, error)

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
