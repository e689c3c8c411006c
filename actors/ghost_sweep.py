"""The ghost sweep: the net under the watchdog. It believes evidence, not silence."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar

from understudy.actors._kernel.actor import LoopActor
from understudy.actors.endings import ghost
from understudy.actors.recovery import deliver_stranded
from understudy.persistence import StoreError
from understudy.persistence.operations import HostHeartbeat, RecordEvent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from understudy.actors.backstage import Backstage
    from understudy.actors.clock import Timer
    from understudy.actors.live_run import LiveRun

logger = logging.getLogger("understudy")

_SWEEP = "sweep"


class GhostSweep(LoopActor):
    """Looks, at every interval, for runs that only look alive; and says that this host is."""

    registered: ClassVar[bool] = False

    def __init__(self, backstage: Backstage, recover: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._backstage = backstage
        self._recover = recover
        self._timer: Timer | None = None

    def on_start(self) -> None:
        """The first sweep is one interval away: what the start found is recovered by then."""
        self._set_timer()

    async def on_receive(self, message: Any) -> int:
        """Sweep now; answers how many ghosts were found."""
        assert message == _SWEEP
        if self._backstage.closing:
            return 0  # everything is being ended, and this host has perhaps signed off
        found = 0
        try:
            found = self._look_at_the_living()
            await self._beat()
            await self._recover()
            if self._backstage.stranded:
                # Beside the sweep: it may take all the patience there is, and the next heartbeat must not wait for it.
                self._backstage.task(deliver_stranded(self._backstage))
            self._backstage.archivist.sweep()
        except Exception:
            # The net must hold: what went wrong now is tried again with the next sweep.
            if not self._backstage.closing:
                logger.exception("the ghost sweep failed")
        self._set_timer()
        return found

    def _look_at_the_living(self) -> int:
        backstage = self._backstage
        now, grace = backstage.now(), backstage.config.ghost_grace_ms
        found = 0
        for run in tuple(backstage.live.values()):
            if run.ending is not None or not run.durable or run.queued:
                continue
            deadline = run.packet.deadline_at
            if run.actor is None:
                found += run.end(ghost("ghost", "its actor is gone and left no result"))
            elif deadline is not None and now > deadline + grace:
                found += run.end(ghost("deadline", f"still there {(now - deadline) / 1000:g} s after its deadline"))
            else:
                self._suspect(run, grace)
        return found

    def _suspect(self, run: LiveRun, grace: int) -> None:
        """Silence alone is not death: it is worth a word, once."""
        backstage = self._backstage
        silent = backstage.clock.monotonic() - run.heard_at
        if silent * 1000 > grace and not run.suspected and not run.asking:
            run.suspected = True
            event = backstage.event("session:sub_agent_ghost_suspected", run, silent_ms=round(silent * 1000))
            backstage.store.transaction(RecordEvent(event))
            backstage.bus.emit(event)

    async def _beat(self) -> None:
        backstage = self._backstage
        try:
            (alive,) = await backstage.store.transaction(HostHeartbeat(backstage.host, backstage.now()))
        except StoreError:
            logger.warning("the heartbeat could not be stored", exc_info=True)
            return
        if not alive:
            logger.error(
                "host %s was taken for dead by another one, which may have ended its runs: close this runtime",
                backstage.host,
            )

    def _set_timer(self) -> None:
        if not self.actor_stopped.is_set():
            interval = self._backstage.config.ghost_sweep_interval_ms / 1000
            self._timer = self._backstage.clock.call_later(interval, self._due)

    def _due(self) -> None:
        if not self.actor_stopped.is_set():
            self.actor_ref.tell(_SWEEP)

    def on_stop(self) -> None:
        """No more timers."""
        if self._timer is not None:
            self._timer.cancel()
