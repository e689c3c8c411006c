"""The archivist: results as files, after the fact, and away again when their time is over."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar

from understudy.actors._kernel.actor import LoopActor
from understudy.protocol import EndReason, Event

if TYPE_CHECKING:
    from understudy.actors.backstage import Backstage
    from understudy.actors.clock import Timer
    from understudy.protocol import RunId
    from understudy.protocol.events import EventName, EventValue

logger = logging.getLogger("understudy")

# A file costs more than a whole child: they are written in helpings, when the rush is over.
_QUIET_SECONDS = 2.0
_EXPORT, _SWEEP = "export", "sweep"


class Archivist(LoopActor):
    """Exports delivered results and applies retention. What it cannot do now, it finds again later."""

    registered: ClassVar[bool] = False

    def __init__(self, backstage: Backstage) -> None:
        super().__init__()
        self._backstage = backstage
        self._timer: Timer | None = None

    def expect(self) -> None:
        """A result was delivered: export it soon."""
        if self._timer is None:
            self._timer = self._backstage.clock.call_later(_QUIET_SECONDS, self._due)

    def _due(self) -> None:
        self._timer = None
        if not self.actor_stopped.is_set():
            self.actor_ref.tell(_EXPORT)

    async def on_receive(self, message: Any) -> None:
        """Export what is new, or sweep away what is old."""
        backstage = self._backstage
        results, pool = backstage.store.results, backstage.kernel.pool
        try:
            if message == _EXPORT:
                for run_id in await pool.run(results.export_pending):
                    self._tell("session:sub_agent_archived", run_id)
            elif message == _SWEEP:
                before = backstage.now() - backstage.config.result_retention_ms
                for run_id in await pool.run(lambda: results.sweep(ended_before=before)):
                    self._tell("session:sub_agent_lifecycle_ended", run_id, end_reason=EndReason.SWEPT)
        except Exception:
            # A full disk, a folder taken away: the database has it all, and the next time comes.
            logger.exception("results could not be archived")

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
