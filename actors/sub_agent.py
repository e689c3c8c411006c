"""The sub-agent: accepted, started, worked, ended. One task from beginning to end."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, ClassVar

from understudy.actors._kernel.actor import LoopActor
from understudy.actors._kernel.exits import is_ctrl_c
from understudy.actors._kernel.loop import mailbox_of
from understudy.actors.acceptance import accept, start_queued
from understudy.actors.conclusion import conclude
from understudy.actors.endings import crashed, failed, finished
from understudy.actors.runners.contract import RunContext
from understudy.persistence.operations import AppendTurns
from understudy.protocol.runner import Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from understudy.actors._kernel.exits import ExitCause
    from understudy.actors.live_run import LiveRun
    from understudy.protocol.runner import RunnerEvent

logger = logging.getLogger("understudy")

_NO_ANSWER = failed("invalid_output", "the runner stopped without a final answer")


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

    def run_on_start(self) -> Coroutine[Any, Any, None]:
        """The kernel's way in. Its usual guard stands inside `_life`: a frame less for every child that waits."""
        return self._life()

    async def _life(self) -> None:  # noqa: C901, PLR0912 - one frame on purpose, see above
        """The whole life, top to bottom."""
        run = self.run
        try:
            if not run.durable and not await accept(run):
                return
            if run.ending is not None and not run.seen_out:
                # Ended before it was durable: only now is there a row that can say so.
                await conclude(run)
            elif run.granted is None or await start_queued(run):
                run.backstage.watchdog.watch(run)
                events = self._events()
                ending = _NO_ANSWER
                try:
                    async for event in events:
                        if isinstance(event, Final):
                            ending = finished(event)
                            break
                        run.take(event)
                        if run.ending is not None:  # ended by what it just said: a budget, the step limit
                            break
                except BaseException as error:
                    if self._must_pass(error):
                        raise
                    logger.info("run %s failed", run.packet.run_id, exc_info=error)
                    ending = crashed(error)
                if run.claim(ending):
                    await conclude(run)
                if isinstance(events, AsyncGenerator):
                    await _close(events)
        except (asyncio.CancelledError, GeneratorExit) as error:
            self.leave("cancelled", error)
            raise
        except BaseException as error:
            self._handle_failure(type(error), error, error.__traceback__)
            if is_ctrl_c(error):
                raise
        finally:
            self.leave("stopped")  # unless it has left already: the first cause stands

    def _must_pass(self, error: BaseException) -> bool:
        """Whether a runner's error is not the runner's: the run was ended, the host's loop ends or is gone, Ctrl-C."""
        if isinstance(error, GeneratorExit):
            return True  # thrown away with a loop that nobody will run again: there is nothing left to await
        if isinstance(error, asyncio.CancelledError):
            return self.cancel_requested or self.cancelled_from_outside()
        return is_ctrl_c(error)

    def _events(self) -> AsyncIterator[RunnerEvent]:
        run, packet = self.run, self.run.packet
        if packet.graph_shared_dir is not None:
            os.makedirs(packet.graph_shared_dir, mode=0o700, exist_ok=True)  # noqa: PTH103 - Path ignores the mode of parents
        if run.is_follow_up and not run.history:
            unstored = [said for said in run.unstored if isinstance(said, AppendTurns)]
            run.history = run.backstage.history_of(packet.session_key, pinned=1)
            run.history += tuple(turn for said in unstored for turn in said.turns)
        runner = run.backstage.runners[packet.runner]
        return runner.run(packet, RunContext(run))

    def report_exit(self, cause: ExitCause) -> None:
        """Every way out ends the run, also those nobody thought of."""
        super().report_exit(cause)
        run = self.run
        if run.durable and run.ending is None:
            run.end(crashed(self.exit_error) if self.exit_error else failed("runner_crash", f"the actor {cause}"))
        # The two know each other no longer: a finished child is freed at once, not by the garbage collector.
        run.actor = None


async def _close(events: AsyncGenerator[RunnerEvent, None]) -> None:
    """Let the runner clean up; what it does wrong now no longer matters."""
    try:
        await events.aclose()
    except Exception:
        logger.exception("a runner failed while it was being closed")
