"""A session's children: who runs, who waits for a slot, whose result is still on its way."""

from __future__ import annotations

import asyncio
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
        """Waiting for a slot; who waits for its own child to be free stands in ``backstage.lines``."""
        self._departure: asyncio.Future[None] | None = None

    def enter(self, run: LiveRun, *, queued: bool) -> None:
        """A run begins: at once, or when there is a slot."""
        run_id, backstage = run.packet.run_id, self._backstage
        self.unfinished[run_id] = self.unsettled[run_id] = backstage.live[run_id] = run
        if queued:
            run.queued = True
            run.granted = backstage.kernel.asyncio_loop.create_future()
            run.started_at = None
            if run.is_follow_up and self._line_up(run):
                return
            self._queue(run)
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
            if run in self.queue:
                self.queue.remove(run)
                if backstage.lines:
                    self._call_next(run)
            else:
                backstage.lines[run.packet.session_key].remove(run)
            return
        if run.packet.graph is None:
            self._occupy(-1)
        if backstage.lines:
            self._call_next(run)
        if run.packet.graph is None:
            # First come, first served, also between sessions where the runtime as a whole is full.
            for roster in tuple(backstage.hungry):
                roster.grant()

    def part_with(self, run: LiveRun) -> None:
        """Its result has arrived, or it never was accepted."""
        self.unsettled.pop(run.packet.run_id, None)
        departure, self._departure = self._departure, None
        if departure is not None and not departure.done():
            departure.set_result(None)

    async def departure(self) -> None:
        """Wait until one more result has arrived."""
        if self._departure is None:
            self._departure = self._backstage.kernel.asyncio_loop.create_future()
        await asyncio.shield(self._departure)

    def grant(self) -> None:
        """Let those who wait start, as far as there is room."""
        while self.queue and self._has_room():
            self._start(self.queue.popleft())
        if not self.queue:
            self._backstage.hungry.pop(self, None)

    def _line_up(self, run: LiveRun) -> bool:
        """Wait behind the child's own earlier runs, if it has any: one child does one thing at a time."""
        backstage, key = self._backstage, run.packet.session_key
        if not any(other.packet.session_key == key for other in backstage.live.values() if other is not run):
            return False
        backstage.lines.setdefault(key, deque()).append(run)
        return True

    def _call_next(self, run: LiveRun) -> None:
        """The child is free: the next thing it was told takes the place of the one before."""
        line = self._backstage.lines.get(run.packet.session_key)
        if line:
            follower = line.popleft()
            roster = follower.session.roster
            if follower.packet.graph is not None or roster._has_room():  # noqa: SLF001 - the same class
                roster._start(follower)  # noqa: SLF001
            else:
                roster._queue(follower)  # noqa: SLF001
        elif line is not None:
            del self._backstage.lines[run.packet.session_key]

    def _queue(self, run: LiveRun) -> None:
        self.queue.append(run)
        self._backstage.hungry[self] = None
        self._backstage.watchdog.watch_queued(run)

    def _has_room(self) -> bool:
        config, running = self._backstage.config, self._backstage.running
        total = config.max_total_children
        return self.running < config.max_children_per_agent and (total is None or running < total)

    def _start(self, run: LiveRun) -> None:
        if run.packet.graph is None:
            self._occupy(1)
        run.queued = False
        assert run.granted is not None
        if not run.granted.done():  # cancelled with its actor otherwise
            run.granted.set_result(None)

    def _occupy(self, slots: int) -> None:
        self.running += slots
        self._backstage.running += slots
