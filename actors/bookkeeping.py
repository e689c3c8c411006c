"""Sub-agents as plain records: invoke, look up, list, forget. The same rows as everything else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from understudy.actors.errors import UnknownRunError
from understudy.protocol import Spawn, Usage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from understudy.actors.backstage import Backstage
    from understudy.actors.session import SessionActor
    from understudy.persistence import RunRecord
    from understudy.protocol.run_facts import RunStatus

    # Below, `list` is a method.
    Sessions: TypeAlias = list["SubAgentSession"]

T = TypeVar("T")

MANAGED_SESSION = "subagents:main"
"""The session under which invoked sub-agents run."""


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What an invoked sub-agent is told besides its prompt."""

    workspace_path: str
    spec_id: str | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionResult:
    """What came of it."""

    content: str
    token_usage: Usage
    duration_ms: int


@dataclass(frozen=True, slots=True)
class SubAgentSession:
    """The record of one sub-agent; times are milliseconds since the epoch."""

    id: str
    runner_id: str
    status: RunStatus
    created_at: int
    completed_at: int | None
    prompt: str
    context: SessionContext
    result: SessionResult | None
    error: str | None


class _Manager:
    """What both faces share."""

    def __init__(self, backstage: Backstage, open_session: Callable[[str], Awaitable[SessionActor]]) -> None:
        self._backstage = backstage
        self._open_session = open_session

    async def _invoke(self, runner_id: str, prompt: str, context: SessionContext) -> SubAgentSession:
        session = await self._open_session(MANAGED_SESSION)
        spawn = Spawn(
            task=prompt,
            runner=runner_id,
            cwd=context.workspace_path,
            spec_id=context.spec_id,
            artifact_refs=context.files,
        )
        accepted = await session.spawn(spawn)
        run_id = accepted if isinstance(accepted, str) else accepted.packet.run_id
        found = self._get(run_id)
        assert found is not None, "an accepted run is in the store"
        return found

    def _get(self, session_id: str) -> SubAgentSession | None:
        record = self._backstage.store.runs.get(session_id)
        return None if record is None else self._told(record)

    def _list(
        self,
        runner_id: str | None,
        status: RunStatus | None,
        since: int | None,
        spec_id: str | None,
        limit: int,
    ) -> Sessions:
        page = self._backstage.store.runs.find(
            runner=runner_id, status=status, since=since, spec_id=spec_id, limit=limit
        )
        return [self._told(record) for record in page.items]

    async def _delete(self, session_id: str) -> bool:
        store = self._backstage.store
        record = store.runs.get(session_id)
        if record is None:
            raise UnknownRunError(f"there is no sub-agent {session_id!r}: list() has those there are")
        if record.facts.ended_at is None:
            raise ValueError(f"sub-agent {session_id} is {record.facts.status}: only finished ones can be deleted")
        return await self._backstage.kernel.pool.run(lambda: store.results.forget(record.run_id))

    def _told(self, record: RunRecord) -> SubAgentSession:
        facts, packet = record.facts, record.packet
        result = None
        if facts.ended_at is not None:
            content = self._backstage.store.runs.full_output(record.run_id) or ""
            result = SessionResult(content, record.usage, facts.ended_at - (facts.started_at or facts.ended_at))
        return SubAgentSession(
            id=record.run_id,
            runner_id=record.runner,
            status=facts.status,
            created_at=facts.accepted_at,
            completed_at=facts.ended_at,
            prompt=packet.task,
            context=SessionContext(packet.cwd, record.spec_id, packet.artifact_refs),
            result=result,
            error=None if facts.failure is None else f"{facts.failure.kind}: {facts.failure.message}",
        )


class SubAgentSessionManager(_Manager):
    """For sync hosts: ``runtime.subagents``."""

    def invoke(self, runner_id: str, prompt: str, context: SessionContext) -> SubAgentSession:
        """Start a sub-agent; returns its record once it is durable."""
        return self._do(self._invoke(runner_id, prompt, context))

    def get(self, session_id: str) -> SubAgentSession | None:
        """The record of that id, also of an earlier host."""
        return self._get(session_id)

    def list(
        self,
        *,
        runner_id: str | None = None,
        status: RunStatus | None = None,
        since: int | None = None,
        limit: int = 100,
    ) -> Sessions:
        """Records, the newest first."""
        return self._list(runner_id, status, since, None, limit)

    def get_spec_history(self, spec_id: str, *, limit: int = 100) -> Sessions:
        """Everything that was done for a spec, the newest first."""
        return self._list(None, None, None, spec_id, limit)

    def delete(self, session_id: str) -> bool:
        """Forget a finished sub-agent and its result."""
        return self._do(self._delete(session_id))

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._backstage.kernel.run_from_thread(work)


class AsyncSubAgentSessionManager(_Manager):
    """For async hosts: the same, awaited."""

    async def invoke(self, runner_id: str, prompt: str, context: SessionContext) -> SubAgentSession:
        """Start a sub-agent; returns its record once it is durable."""
        return await self._invoke(runner_id, prompt, context)

    async def get(self, session_id: str) -> SubAgentSession | None:
        """The record of that id, also of an earlier host."""
        return self._get(session_id)

    async def list(
        self,
        *,
        runner_id: str | None = None,
        status: RunStatus | None = None,
        since: int | None = None,
        limit: int = 100,
    ) -> Sessions:
        """Records, the newest first."""
        return self._list(runner_id, status, since, None, limit)

    async def get_spec_history(self, spec_id: str, *, limit: int = 100) -> Sessions:
        """Everything that was done for a spec, the newest first."""
        return self._list(None, None, None, spec_id, limit)

    async def delete(self, session_id: str) -> bool:
        """Forget a finished sub-agent and its result."""
        return await self._delete(session_id)
