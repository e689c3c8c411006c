"""The archivist: results as files, after the fact, and away again when their time is over."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from understudy.actors._kernel.actor import LoopActor
from understudy.protocol import EndReason, Event

if TYPE_CHECKING:
    from understudy.actors.backstage import Backstage
    from understudy.actors.clock import Timer
    from understudy.protocol import RunId
    from understudy.protocol.events import EventName, EventValue

logger = logging.getLogger("understudy")

# A file costs more than a whole child: they are written in helpings, when the rush is over or has lasted long.
_QUIET_SECONDS = 2.0
_LONGEST_RUSH = 30.0
_HELPING = 20
_EXPORT, _SWEEP = "export", "sweep"


class Archivist(LoopActor):
    """Exports delivered results and applies retention. What it cannot do now, it finds again later."""

    registered: ClassVar[bool] = False

    def __init__(self, backstage: Backstage) -> None:
        super().__init__()
        self._backstage = backstage
        self._timer: Timer | None = None
        self._as_files = backstage.store.results.as_files
        self._exported_at = backstage.clock.monotonic()

    def expect(self) -> None:
        """A result was delivered: export it soon."""
        if self._timer is None and self._as_files:
            self._timer = self._backstage.clock.call_later(_QUIET_SECONDS, self._due)

    def _due(self) -> None:
        self._timer = None
        if not self.actor_stopped.is_set():
            self.actor_ref.tell(_EXPORT)

    async def on_receive(self, message: Any) -> None:
        """Export what is new, or sweep away what is old."""
        try:
            if message == _EXPORT:
                await self._export()
            elif message == _SWEEP:
                await self._sweep_old()
        except Exception:
            # A full disk, a folder taken away: the database has it all, and the next time comes.
            logger.exception("results could not be archived")

    async def _export(self) -> None:
        backstage = self._backstage
        store, pool = backstage.store, backstage.kernel.pool
        helping: list[RunId] = []
        while True:
            if backstage.closing:
                return  # the next start goes on
            if backstage.live and backstage.clock.monotonic() - self._exported_at < _LONGEST_RUSH:
                self.expect()  # children work: a file costs more than one of them
                return
            # No more than that is looked up: in a rush tens of thousands wait, and this is the event loop.
            helping = store.runs.unexported(after=helping[-1] if helping else None, limit=_HELPING)
            if not helping:
                break
            exported = await pool.run(partial(store.results.export_all, helping))
            for run_id in exported:
                self._tell("session:sub_agent_archived", run_id)
        self._exported_at = backstage.clock.monotonic()

    async def _sweep_old(self) -> None:
        backstage = self._backstage
        before = backstage.now() - backstage.config.result_retention_ms
        results = backstage.store.results
        for run_id in await backstage.kernel.pool.run(lambda: results.sweep(ended_before=before)):
            self._tell("session:sub_agent_lifecycle_ended", run_id, end_reason=EndReason.SWEPT)

    def sweep(self) -> None:
        """Apply retention now."""
        self.actor_ref.tell(_SWEEP)

    def _tell(self, name: EventName, run_id: RunId, **data: EventValue) -> None:
        backstage = self._backstage
        if backstage.bus.subscriptions:
            record = backstage.store.runs.get(run_id)
            if record is not None:
                key, parent = record.parent_session_key, record.parent_run_id
                backstage.bus.emit(Event(name, backstage.now(), key, run_id, parent, record.depth, data))

    def on_stop(self) -> None:
        """No more timers."""
        if self._timer is not None:
            self._timer.cancel()
