"""The sub-agent: accepted, started, worked, ended. One task from beginning to end."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, ClassVar

from understudy.actors._kernel.actor import LoopActor
from understudy.actors._kernel.exits import is_ctrl_c
from understudy.actors._kernel.loop import mailbox_of
from understudy.actors.acceptance import accept, start_queued
from understudy.actors.conclusion import conclude
from understudy.actors.endings import crashed, failed, finished
from understudy.actors.runners.contract import RunContext
from understudy.protocol.runner import Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from understudy.actors._kernel.exits import ExitCause
    from understudy.actors.endings import Ending
    from understudy.actors.live_run import LiveRun
    from understudy.protocol.runner import RunnerEvent

logger = logging.getLogger("understudy")


class SubAgentActor(LoopActor):
    """Lives one run. Ephemeral, so its session knows it and pykka's registry does not."""

    registered: ClassVar[bool] = False

    def __init__(self, run: LiveRun) -> None:
        super().__init__()
        self.run = run
        run.actor = self

    def _start_actor_loop(self) -> None:
        assert self.kernel is not None
        self.kernel.adopt(self)
        mailbox_of(self).begin_at_once(self)

    async def on_start(self) -> None:  # type: ignore[override]  # the kernel awaits it
        """The whole life, top to bottom."""
        run = self.run
        if not run.durable and not await accept(run):
            self.leave("stopped")
            return
        if run.ending is not None and not run.seen_out:
            # Ended before it was durable: only now is there a row that can say so.
            await conclude(run)
        elif run.granted is None or await start_queued(run):
            run.backstage.watchdog.watch(run)
            events = self._events()
            ending = await self._work(events)
            if run.claim(ending):
                await conclude(run)
            await _close(events)
        self.leave("stopped")

    def _events(self) -> AsyncIterator[RunnerEvent]:
        run, packet = self.run, self.run.packet
        if packet.graph_shared_dir is not None:
            os.makedirs(packet.graph_shared_dir, mode=0o700, exist_ok=True)  # noqa: PTH103 - Path ignores the mode of parents
        runner = run.backstage.runners[packet.runner]
        return runner.run(packet, RunContext(run))

    async def _work(self, events: AsyncIterator[RunnerEvent]) -> Ending:
        """Let the runner work until it has an answer, or cannot."""
        run = self.run
        try:
            async for event in events:
                if isinstance(event, Final):
                    return finished(event)
                run.take(event)
                if run.ending is not None:  # ended by what it just said: a budget, the step limit
                    return run.ending
        except asyncio.CancelledError as error:
            if self.cancel_requested or self.cancelled_from_outside():
                raise
            return crashed(error)
        except Exception as error:
            logger.info("run %s failed", run.packet.run_id, exc_info=error)
            return crashed(error)
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            return crashed(error)
        return failed("invalid_output", "the runner stopped without a final answer")

    def report_exit(self, cause: ExitCause) -> None:
        """Every way out ends the run, also those nobody thought of."""
        super().report_exit(cause)
        run = self.run
        if run.durable and run.ending is None:
            run.end(crashed(self.exit_error) if self.exit_error else failed("runner_crash", f"the actor {cause}"))
        # The two know each other no longer: a finished child is freed at once, not by the garbage collector.
        run.actor = None


async def _close(events: AsyncIterator[RunnerEvent]) -> None:
    """Let the runner clean up; what it does wrong now no longer matters."""
    close = getattr(events, "aclose", None)
    if close is None:
        return
    try:
        await close()
    except Exception:
        logger.exception("a runner failed while it was being closed")
