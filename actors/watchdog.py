"""The watchdog: every run has an absolute deadline, and silence one where it is asked for."""

from __future__ import annotations

import heapq
import itertools
import logging
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from understudy.actors._kernel.actor import LoopActor
from understudy.actors.endings import failed, timed_out

if TYPE_CHECKING:
    from understudy.actors.backstage import Backstage
    from understudy.actors.clock import Timer
    from understudy.actors.live_run import LiveRun

logger = logging.getLogger("understudy")

Limit: TypeAlias = Literal["deadline", "silence", "queue"]
_DUE = "due"
# Entries of finished runs are thrown out once they are the greater part: the heap stays as large as the living.
_WORTH_CLEANING = 64


class Watchdog(LoopActor):
    """Ends runs whose time is up. One timer for all of them: the earliest."""

    registered: ClassVar[bool] = False

    def __init__(self, backstage: Backstage) -> None:
        super().__init__()
        self._backstage = backstage
        self._heap: list[tuple[float, int, LiveRun, Limit]] = []
        self._order = itertools.count()
        self._forgotten = 0
        self._timer: Timer | None = None
        self._timer_due = float("inf")

    def watch(self, run: LiveRun) -> None:
        """A run has started. Its deadline is absolute, so that a restart buys no time."""
        deadline = run.packet.deadline_at
        assert deadline is not None
        left = (deadline - self._backstage.now()) / 1000
        run.due = self._backstage.clock.monotonic() + left
        self._add(run.due, run, "deadline")
        if run.packet.idle_timeout_ms is not None or run.packet.first_token_timeout_ms is not None:
            run.heard_at = self._backstage.clock.monotonic()
            self._look(run.quiet_until() or run.heard_at, run)

    def listen(self, run: LiveRun) -> None:
        """The run does something else now: where that may take less time, look sooner."""
        until = run.quiet_until()
        if until is not None and run.look_at is not None and until < run.look_at:
            self._look(until, run)

    def _look(self, due: float, run: LiveRun) -> None:
        run.look_at = due
        self._add(due, run, "silence")

    def watch_queued(self, run: LiveRun) -> None:
        """A run waits for a slot, but not for ever."""
        waited = self._backstage.now() - run.accepted_at
        left = (self._backstage.config.queue_timeout_ms - waited) / 1000
        self._add(self._backstage.clock.monotonic() + left, run, "queue")

    def forget(self, run: LiveRun) -> None:
        """The run has ended."""
        self._forgotten += 1
        if self._forgotten > _WORTH_CLEANING and 2 * self._forgotten > len(self._heap):
            alive = self._backstage.live
            self._heap = [entry for entry in self._heap if entry[2].packet.run_id in alive and entry[2] is not run]
            heapq.heapify(self._heap)
            self._forgotten = 0

    def on_receive(self, message: Any) -> None:
        """Look at everything that is due."""
        assert message == _DUE
        self._timer, self._timer_due = None, float("inf")
        now = self._backstage.clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            due, _, run, limit = heapq.heappop(self._heap)
            if limit == "silence" and due != run.look_at:
                continue  # it was looked at sooner
            try:
                self._examine(run, limit, now)
            except Exception:
                # One run that cannot be ended must not keep the others alive.
                logger.exception("the watchdog could not examine run %s", run.packet.run_id)
        self._set_timer()

    def _examine(self, run: LiveRun, limit: Limit, now: float) -> None:
        if run.ending is not None:
            return
        packet = run.packet
        if limit == "deadline":
            run.end(timed_out("deadline", f"not done within {packet.timeout_ms / 1000:g} s"))
        elif limit == "queue":
            if run.queued:
                seconds = self._backstage.config.queue_timeout_ms / 1000
                run.end(failed("queue_timeout", f"no slot became free within {seconds:g} s", retryable=True))
        else:
            until = run.quiet_until()
            if until is not None and until <= now:
                run.end(timed_out("idle", f"nothing was heard for {now - run.heard_at:g} s"))
            else:
                # Paused runs are looked at again after one more idle time.
                again = (packet.idle_timeout_ms or packet.first_token_timeout_ms or 0) / 1000
                self._look(now + again if until is None else until, run)

    def _add(self, due: float, run: LiveRun, limit: Limit) -> None:
        heapq.heappush(self._heap, (due, next(self._order), run, limit))
        if due < self._timer_due:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_due = None, float("inf")
        if self._heap and not self.actor_stopped.is_set():
            self._timer_due = due = self._heap[0][0]
            self._timer = self._backstage.clock.call_later(due - self._backstage.clock.monotonic(), self._due)

    def _due(self) -> None:
        if not self.actor_stopped.is_set():
            self.actor_ref.tell(_DUE)

    def on_stop(self) -> None:
        """No more timers."""
        if self._timer is not None:
            self._timer.cancel()
