"""The runtime a host embeds: `Runtime` for sync hosts on a thread of its own, `AsyncRuntime` on the host's loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Self

from understudy.actors._core import Core
from understudy.actors._kernel.loop import DEFAULT_GRACE
from understudy.actors.bookkeeping import AsyncSubAgentSessionManager, SubAgentSessionManager
from understudy.actors.faces import AsyncSession, Session
from understudy.actors.handles import AsyncRunHandle, RunHandle
from understudy.actors.searching import USUAL_HITS
from understudy.protocol import RunId

if TYPE_CHECKING:
    from types import TracebackType

    from understudy.persistence import DeadLetterRecord, SearchHit
    from understudy.persistence.operations import Visibility


class Runtime(Core):
    """Runs sessions and their sub-agents on an event loop in a thread of its own.

    Example:
        >>> from understudy.actors import FunctionRunner
        >>> from understudy.protocol import Spawn
        >>> runner = FunctionRunner(lambda packet, context: f"done: {packet.task}")
        >>> with Runtime(runners={"default": runner}) as runtime:
        ...     session = runtime.session("agent:atlas:main")
        ...     session.spawn(Spawn(task="count the lines")).result(timeout=60).output
        'done: count the lines'
    """

    _closed = False

    def __enter__(self) -> Self:
        self._closing = threading.Lock()
        self._kernel.run_in_thread()
        try:
            self._kernel.run_from_thread(self.begin())
        except BaseException:
            self._kernel.run_from_thread(self._kernel.close(grace=0))
            self._kernel.join()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self, *, grace: float = DEFAULT_GRACE) -> None:
        """Stop everything this runtime started: asked first, cancelled after ``grace`` seconds. Once is enough."""
        with self._closing:
            if not self._closed:
                self._kernel.run_from_thread(self.end(grace))
                self._kernel.join()
                self.store.close()
                self._closed = True

    def session(self, key: str, **options: Any) -> Session:
        """Create a session, or restore it from the store with everything that belongs to it.

        Options: ``workspace``, ``cwd``, ``runner``, ``agent_id``, ``visibility``, ``objective``,
        ``on_results``. An objective that is left out stays what it was.
        """
        return Session(self._kernel.run_from_thread(self.open_session(key, **options)))

    def run(self, run_id: str) -> RunHandle:
        """A handle on any run, also one of an earlier host."""
        return RunHandle(self._backstage.live.get(RunId(run_id)) or RunId(run_id), self._backstage)

    @property
    def subagents(self) -> SubAgentSessionManager:
        """Sub-agents as plain records."""
        return SubAgentSessionManager(self._backstage, self.open_session)

    def search(
        self,
        query: str,
        *,
        session_key: str | None = None,
        agent_id: str | None = None,
        visibility: Visibility = "isolated",
        limit: int = USUAL_HITS,
    ) -> list[SearchHit]:
        """The turns that fit best, at most 20: of one session, or of all an agent may see.

        Who asks is ``agent_id``; left out it is whoever's session is named, else "default". As a ``shared`` agent
        it also sees other agents' sessions that are shared.
        """
        return self.searcher(session_key, agent_id, visibility)(query, limit=limit)

    def dead_letters(
        self, session_key: str | None = None, *, replayed: bool = False, limit: int = 100
    ) -> list[DeadLetterRecord]:
        """What could not be delivered, each with its reason, the newest first."""
        return self._kernel.run_from_thread(self.letters(session_key, replayed=replayed, limit=limit))

    def replay(self, dead_letter_id: int) -> bool:
        """Put a dead letter back on the road; False when that was done before."""
        return self._kernel.run_from_thread(self.put_back(dead_letter_id))

    def sweep(self) -> int:
        """Sweep for ghosts now; answers how many were found."""
        found: Any = self._sweep.ask("sweep")
        return int(found)


class AsyncRuntime(Core):
    """A `Runtime` on the host's own event loop: await what that one blocks for."""

    _closed = False

    async def __aenter__(self) -> Self:
        self._closing = asyncio.Lock()
        self._kernel.run_here()
        try:
            await self.begin()
        except BaseException:
            await self._kernel.close(grace=0)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, *, grace: float = DEFAULT_GRACE) -> None:
        """Stop everything this runtime started: asked first, cancelled after ``grace`` seconds. Once is enough."""
        async with self._closing:
            if not self._closed:
                await self.end(grace)
                await asyncio.get_running_loop().run_in_executor(None, self.store.close)
                self._closed = True

    async def session(self, key: str, **options: Any) -> AsyncSession:
        """Create a session, or restore it from the store with everything that belongs to it.

        Options: ``workspace``, ``cwd``, ``runner``, ``agent_id``, ``visibility``, ``objective``,
        ``on_results``. An objective that is left out stays what it was.
        """
        return AsyncSession(await self.open_session(key, **options))

    def run(self, run_id: str) -> AsyncRunHandle:
        """A handle on any run, also one of an earlier host."""
        return AsyncRunHandle(self._backstage.live.get(RunId(run_id)) or RunId(run_id), self._backstage)

    @property
    def subagents(self) -> AsyncSubAgentSessionManager:
        """Sub-agents as plain records."""
        return AsyncSubAgentSessionManager(self._backstage, self.open_session)

    async def search(
        self,
        query: str,
        *,
        session_key: str | None = None,
        agent_id: str | None = None,
        visibility: Visibility = "isolated",
        limit: int = USUAL_HITS,
    ) -> list[SearchHit]:
        """The turns that fit best, at most 20: of one session, or of all an agent may see.

        Who asks is ``agent_id``; left out it is whoever's session is named, else "default". As a ``shared`` agent
        it also sees other agents' sessions that are shared.
        """
        return await self._kernel.pool.run(lambda: self.searcher(session_key, agent_id, visibility)(query, limit=limit))

    async def dead_letters(
        self, session_key: str | None = None, *, replayed: bool = False, limit: int = 100
    ) -> list[DeadLetterRecord]:
        """What could not be delivered, each with its reason, the newest first."""
        return await self.letters(session_key, replayed=replayed, limit=limit)

    async def replay(self, dead_letter_id: int) -> bool:
        """Put a dead letter back on the road; False when that was done before."""
        return await self.put_back(dead_letter_id)

    async def sweep(self) -> int:
        """Sweep for ghosts now; answers how many were found."""
        found = await self._sweep.ask("sweep", block=False)
        return int(found)
