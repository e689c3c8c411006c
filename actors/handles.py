"""A grip on one run: its result, and the means to end it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NoReturn

import pykka

from understudy.actors.clock import sleep, within
from understudy.actors.errors import UnknownRunError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from understudy.actors.backstage import Backstage
    from understudy.actors.live_run import LiveRun
    from understudy.protocol import RunId, SessionKey, SubAgentResult
    from understudy.protocol.run_facts import RunStatus

# How often another process's run is looked for in the store.
_POLL_SECONDS = 0.2


class _Handle:
    """What both faces share. It outlives its run, and a restart of the host."""

    def __init__(self, run: LiveRun | RunId, backstage: Backstage) -> None:
        self._backstage = backstage
        self._live = None if isinstance(run, str) else run
        self.run_id: RunId
        self.session_key: SessionKey
        if not isinstance(run, str):
            self.run_id, self.session_key = run.packet.run_id, run.packet.session_key
        else:
            record = backstage.store.runs.get(run)
            if record is None:
                raise UnknownRunError(f"there is no run {run!r}: `runtime.runs()` lists those there are")
            self.run_id, self.session_key = record.run_id, record.session_key

    @property
    def status(self) -> RunStatus:
        """Pending, running, completed or failed, as the facts have it."""
        record = self._backstage.store.runs.get(self.run_id)
        assert record is not None
        return record.facts.status

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.run_id}>"

    async def _wait(self) -> SubAgentResult:
        if self._live is not None:
            return await self._live.settled
        while True:
            live = self._backstage.unsettled(self.run_id)
            if live is not None:
                return await live.settled
            result = self._backstage.store.runs.result(self.run_id)
            if result is not None:
                return result
            await sleep(self._backstage.clock, _POLL_SECONDS)  # it runs in another process

    def _late(self, timeout: float | None) -> NoReturn:
        raise TimeoutError(f"run {self.run_id} has no result after {timeout} s; it goes on") from None


class RunHandle(_Handle):
    """A grip on one run, for sync hosts; it outlives the run, and a restart of the host."""

    def __init__(
        self,
        run: LiveRun | RunId,
        backstage: Backstage,
        *,
        waiting: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        super().__init__(run, backstage)
        self._waiting = waiting

    def result(self, timeout: float | None = None) -> SubAgentResult:
        """The run's one result, merged into its parent; TimeoutError leaves the run alone."""
        with self._waiting():
            if self._live is None:
                return self._backstage.kernel.run_from_thread(self._within(timeout))
            try:
                return self._live.settled.get(timeout=timeout)
            except pykka.Timeout:
                self._late(timeout)

    async def _within(self, timeout: float | None) -> SubAgentResult:
        if timeout is None:
            return await self._wait()
        try:
            return await within(self._backstage.clock, timeout, self._wait())
        except TimeoutError:
            self._late(timeout)


class AsyncRunHandle(_Handle):
    """A `RunHandle` for async hosts: the same, awaited."""

    async def result(self, timeout: float | None = None) -> SubAgentResult:
        """The run's one result, merged into its parent; TimeoutError leaves the run alone."""
        if timeout is None:
            return await self._wait()
        try:
            return await within(self._backstage.clock, timeout, self._wait())
        except TimeoutError:
            self._late(timeout)
