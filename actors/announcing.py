"""Waking the parent: once for all results that settled together, and never in vain."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from tenacity import AsyncRetrying, wait_exponential
from tenacity.retry import retry_if_exception_type

from understudy.actors._kernel.exits import contained
from understudy.actors.clock import sleep
from understudy.persistence import StoreClosedError, StoreError
from understudy.persistence.operations import DeadLetter
from understudy.protocol import SubAgentResult

if TYPE_CHECKING:
    from tenacity import RetryCallState

    from understudy.actors.session import SessionActor

logger = logging.getLogger("understudy")

Results: TypeAlias = tuple[SubAgentResult, ...]
OnResults: TypeAlias = Callable[[Results], Awaitable[bool | None] | bool | None]
"""Told of results that were announced. Returning False and raising both mean that it did not arrive."""


class NotWokenError(RuntimeError):
    """The parent did not take the announcement."""


class Announcer:
    """Collects announced results of one session and wakes it after a quiet moment."""

    def __init__(self, session: SessionActor) -> None:
        self._session = session
        self._waiting: list[SubAgentResult] = []
        self._due = False
        self.on_results: OnResults | None = None
        self.attended = True
        """Whether the host has had its chance to give an ``on_results``: not yet, where recovery opened the session."""

    def add(self, result: SubAgentResult) -> None:
        """Announce a result, together with all that settle before the debounce is over."""
        self._waiting.append(result)
        self._schedule()

    def attend(self, on_results: OnResults | None) -> None:
        """The host opens the session: what could not be announced before is announced to ``on_results``."""
        self.on_results = on_results or self.on_results
        self.attended = True
        if self._waiting:
            self._schedule()

    def _schedule(self) -> None:
        if not self._due:
            self._due = True
            backstage = self._session.backstage
            backstage.clock.call_later(backstage.config.announce_debounce_ms / 1000, self._announce)

    def _announce(self) -> None:
        self._due = False
        if not self.attended:
            return
        results, self._waiting = tuple(self._waiting), []
        if self.on_results is not None and results and not self._session.sealed:
            self._session.backstage.task(self._wake(self.on_results, results))

    async def _wake(self, wake: OnResults, results: Results) -> None:
        backstage = self._session.backstage
        config, clock = backstage.config, backstage.clock
        give_up = clock.monotonic() + config.delivery_max_age_ms / 1000

        def patience_is_over(state: RetryCallState) -> bool:
            tried = state.attempt_number >= config.delivery_max_attempts
            return tried or backstage.closing or clock.monotonic() >= give_up

        try:
            async for trying in AsyncRetrying(
                sleep=lambda seconds: sleep(clock, seconds),
                wait=wait_exponential(
                    multiplier=config.delivery_backoff_ms / 1000, max=config.delivery_max_age_ms / 1000
                ),
                stop=patience_is_over,
                retry=retry_if_exception_type(Exception),
                reraise=True,
            ):
                with trying:
                    await self._try(wake, results)
        except Exception as error:  # noqa: BLE001 - the host's own callback
            await self._give_up(results, error)

    async def _try(self, wake: OnResults, results: Results) -> None:
        kernel = self._session.backstage.kernel
        if inspect.iscoroutinefunction(wake):
            taken = await contained(wake(results))
        else:
            answer = await kernel.pool.run(lambda: wake(results))
            taken = await contained(answer) if inspect.isawaitable(answer) else answer
        if taken is False:
            raise NotWokenError("the session's callback returned False")

    async def _give_up(self, results: Results, error: Exception) -> None:
        """The results are merged already; what failed is the announcement, and that is kept as a dead letter."""
        session = self._session
        backstage = session.backstage
        names = json.dumps([result.run_id for result in results])
        reason = f"the parent could not be woken: {error}"
        logger.warning("%s: %s", session.key, reason)
        try:
            await backstage.store.transaction(DeadLetter(backstage.now(), reason, names, session.key))
        except StoreClosedError:
            return
        except StoreError:
            logger.exception("the dead letter about %s could not be stored", names)
        for result in results:
            backstage.emit_about(result, "session:sub_agent_dead_lettered", session.key, reason=reason)
