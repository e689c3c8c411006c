"""What all actors of one runtime share: clock, store, configuration, and who is alive."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import tempfile
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.actors.clock import within
from understudy.actors.events import EventBus
from understudy.actors.glances import Glances
from understudy.actors.models.health import ProviderHealth
from understudy.actors.turns.history import restored
from understudy.protocol import Event, RunId, SessionKey

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Coroutine, Mapping

    from understudy.actors._kernel.loop import ActorLoop
    from understudy.actors.archivist import Archivist
    from understudy.actors.clock import Clock
    from understudy.actors.condensing import Condensing
    from understudy.actors.hooks import Hooks
    from understudy.actors.live_run import LiveRun
    from understudy.actors.models.errors import ProviderError
    from understudy.actors.roster import Roster
    from understudy.actors.runners.contract import Runner
    from understudy.actors.sending import MaySend
    from understudy.actors.session import SessionActor
    from understudy.actors.watchdog import Watchdog
    from understudy.persistence import Ledger
    from understudy.protocol import RuntimeConfig, Spawn, SpawnPacket, SubAgentResult
    from understudy.protocol.events import EventName, EventValue
    from understudy.protocol.model import Model, Turn
    from understudy.protocol.tokens import TokenEstimator

logger = logging.getLogger("understudy")


class Backstage:
    """One of these a runtime; every actor has a reference to it."""

    def __init__(
        self,
        *,
        clock: Clock,
        config: RuntimeConfig,
        store: Ledger,
        kernel: ActorLoop,
        runners: Mapping[str, Runner],
        hooks: Hooks,
        host: str,
        estimator: TokenEstimator,
        summarizer: Model | None,
        may_send: MaySend | None = None,
    ) -> None:
        self.clock = clock
        self.config = config
        self.store = store
        self.kernel = kernel
        self.runners = runners
        self.hooks = hooks
        self.host = host
        self.may_send = may_send
        self.estimator = estimator
        """How everybody counts tokens."""
        self.summarizer = summarizer
        """The host's choice of who condenses long results; without one their own models do."""
        self.bus = EventBus()
        self.live: dict[RunId, LiveRun] = {}
        """Runs without a committed end, of this process."""
        self.sessions: dict[SessionKey, SessionActor] = {}
        """Open sessions, nested ones included."""
        self.running = 0
        """Children that hold a slot, in the whole runtime."""
        self.hungry: dict[Roster, None] = {}
        """Rosters with a queue, those that wait longest first."""
        self.lines: dict[SessionKey, deque[LiveRun]] = {}
        """Follow-ups that wait for their busy child, the first one first."""
        self.stranded: dict[RunId, SessionKey] = {}
        """Results that could be neither merged nor set aside, and for whom they are."""
        self.condensing: dict[RunId, Condensing] = {}
        """Results that a model is condensing, before they are delivered."""
        self.closing = False
        self.watchdog: Watchdog
        self.archivist: Archivist
        self._count = itertools.count(1)
        self._latest = 0
        self._health: dict[str, ProviderHealth] = {}
        self.glances = Glances(kernel.asyncio_loop)
        self._unreported: list[LiveRun] = []
        self._results_root = str(store.results.root) if store.results.as_files else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._lasting: set[asyncio.Task[None]] = set()

    def now(self) -> int:
        """The wall clock in milliseconds, except that it never goes back: facts stay in order."""
        self._latest = now = max(self._latest, self.clock.wall_ms())
        return now

    def next_run_id(self) -> RunId:
        """Unique across hosts: no two incarnations share a name."""
        return RunId.made(f"{self.host}-{next(self._count)}")

    def report_soon(self, run: LiveRun) -> None:
        """Have the run's consumption stored with the next turn of the loop: one call back for all that consume now."""
        if not self._unreported:
            self.kernel.asyncio_loop.call_soon(self._report)
        self._unreported.append(run)

    def _report(self) -> None:
        unreported, self._unreported = self._unreported, []
        for run in unreported:
            run.report()

    def graph_dir(self, graph_id: str) -> str:
        """The folder the nodes of a graph share, beside the results; made when the first node starts."""
        name = urllib.parse.quote(graph_id, safe="")[:200].replace(".", "%2E")
        beside = tempfile.gettempdir() if self._results_root is None else Path(self._results_root).parent
        return str(Path(beside) / f"graphs-{self.host}" / name)

    def full_reference(self, session_key: SessionKey, run_id: RunId) -> str | None:
        """Where the full result will be found as a file. Put together as text: a Path would cost more than a turn."""
        if self._results_root is None:
            return None
        return f"{self._results_root}/{session_key.file_name}/{run_id.file_name}.json"

    def history_of(self, session_key: SessionKey, *, pinned: int = 0) -> tuple[Turn, ...]:
        """What was said in a session, for whoever goes on with it; its first ``pinned`` turns are never summed up."""
        return tuple(restored(self.store.transcripts, session_key, pinned=pinned))

    def refusal(self, name: str, spawn: Spawn) -> str | None:
        """Why a runner will not take this spawn; most have no say in it."""
        refuse = getattr(self.runners[name], "refusal", None)
        return None if refuse is None else refuse(spawn)

    def unsettled(self, run_id: str) -> LiveRun | None:
        """The run of that name whose result is still to come, of this process; also one that a model condenses."""
        key = RunId.made(run_id)
        condensing = self.condensing.get(key)
        return self.live.get(key) if condensing is None else condensing.run

    def attempted(self, runner: str, agent: str, error: ProviderError | None) -> None:
        """A call of the provider behind ``runner`` ended like this."""
        health = self._health.get(runner)
        if health is None:
            if error is None:
                return  # well, as ever
            health = self._health[runner] = ProviderHealth(
                self.clock,
                on_degraded=lambda: self._tell_health("session:sub_agent_provider_degraded", runner),
                on_recovered=lambda: self._tell_health("session:sub_agent_provider_recovered", runner),
            )
        health.attempted(agent, error)

    def _tell_health(self, name: EventName, runner: str) -> None:
        self.bus.emit(Event(name, self.now(), SessionKey(f"runtime:{self.host}"), data={"runner": runner}))

    def task(self, work: Coroutine[Any, Any, None], *, lasting: bool = False) -> asyncio.Task[None]:
        """Work beside the mailboxes; what it raises is logged. ``lasting`` work is not dismissed at the end."""
        task = self.kernel.create_task(work)
        self._tasks.add(task)
        if lasting:
            self._lasting.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._lasting.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a task of the runtime failed", exc_info=task.exception())

    async def dismiss(self, grace: float) -> None:
        """End what still works beside the mailboxes: announcements that wait for a better moment, callbacks."""
        # Not whoever closes the runtime from within its own callback; and a process is seen off to its end, for which
        # its actor waits.
        tasks = [task for task in self._tasks - self._lasting if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            with self.clock.unattended(), contextlib.suppress(TimeoutError):
                await within(self.clock, grace, asyncio.wait(tasks))

    def event(self, name: EventName, run: LiveRun, **data: EventValue) -> Event:
        """An event about a run."""
        packet = run.packet
        return Event(
            name, self.now(), packet.parent_session_key, packet.run_id, packet.parent_run_id, packet.depth, data
        )

    def emit_about(
        self,
        result: SubAgentResult,
        name: EventName,
        session_key: SessionKey,
        packet: SpawnPacket | None = None,
        **data: EventValue,
    ) -> None:
        """Tell of a result on its way, whose run may be long over: then its place in the tree is looked up."""
        if self.bus.subscriptions:
            place = packet or self.store.runs.get(result.run_id)
            if place is not None:
                above, depth = place.parent_run_id, place.depth
                self.bus.emit(Event(name, self.now(), session_key, result.run_id, above, depth, data))

    def emit(self, name: EventName, run: LiveRun, **data: EventValue) -> None:
        """Tell whoever listens; free when nobody does."""
        if self.bus.subscriptions:
            self.bus.emit(self.event(name, run, **data))
