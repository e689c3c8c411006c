"""A session's children: who runs, who waits for a slot, whose result is still on its way."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy.actors.backstage import Backstage
    from understudy.actors.live_run import LiveRun
    from understudy.protocol import RunId


class Roster:
    """Slots are taken at admission and freed with the committed end, whatever the child's actor still does."""

    def __init__(self, backstage: Backstage) -> None:
        self._backstage = backstage
        self.unfinished: dict[RunId, LiveRun] = {}
        """Without a committed end."""
        self.unsettled: dict[RunId, LiveRun] = {}
        """Without a result that has arrived; includes the unfinished."""
        self.running = 0
        self.queue: deque[LiveRun] = deque()

    def enter(self, run: LiveRun, *, queued: bool) -> None:
        """A run begins: at once, or when there is a slot."""
        run_id, backstage = run.packet.run_id, self._backstage
        self.unfinished[run_id] = self.unsettled[run_id] = backstage.live[run_id] = run
        if queued:
            run.queued = True
            run.granted = backstage.kernel.asyncio_loop.create_future()
            run.started_at = None
            self.queue.append(run)
            backstage.hungry[self] = None
        elif run.packet.graph is None:
            self._occupy(1)

    def leave(self, run: LiveRun) -> None:
        """Its end is committed, or it never was accepted: its place is free."""
        run_id, backstage = run.packet.run_id, self._backstage
        if self.unfinished.pop(run_id, None) is None:
            return
        backstage.live.pop(run_id, None)
        backstage.watchdog.forget(run)
        if run.queued:
            run.queued = False
            self.queue.remove(run)
        elif run.packet.graph is None:
            self._occupy(-1)
            # First come, first served, also between sessions where the runtime as a whole is full.
            for roster in tuple(backstage.hungry):
                roster.grant()

    def grant(self) -> None:
        """Let those who wait start, as far as there is room."""
        config = self._backstage.config
        total = config.max_total_children
        while self.queue and self.running < config.max_children_per_agent:
            if total is not None and self._backstage.running >= total:
                return
            run = self.queue.popleft()
            self._occupy(1)
            run.queued = False
            assert run.granted is not None
            if not run.granted.done():  # cancelled with its actor otherwise
                run.granted.set_result(None)
        if not self.queue:
            self._backstage.hungry.pop(self, None)

    def _occupy(self, slots: int) -> None:
        self.running += slots
        self._backstage.running += slots
