"""A session as the host sees it: one set of coroutines, a sync and an async face."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from understudy.actors import checkpoints, control
from understudy.actors.clock import within
from understudy.actors.follow_ups import follow_up, reply_within
from understudy.actors.handles import AsyncRunHandle, RunHandle
from understudy.actors.sending import admitted
from understudy.protocol import FollowUp, RunId, SessionKey, SubAgentResult

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from pykka import ActorRef

    from understudy.actors.control import ChildReport, KillReport
    from understudy.actors.live_run import LiveRun
    from understudy.actors.mind import Mind, Reply
    from understudy.actors.session import SessionActor
    from understudy.persistence import Checkpoint, StoredTurn
    from understudy.protocol import Spawn, WorkingContext

T = TypeVar("T")


class _Face:
    """What needs no waiting."""

    def __init__(self, actor: SessionActor) -> None:
        self._actor = actor
        self._backstage = actor.backstage

    @property
    def key(self) -> SessionKey:
        """The session's name."""
        return self._actor.key

    @property
    def ref(self) -> ActorRef[Any]:
        """The session as a pykka actor: ``ask`` or ``tell`` it any message of the protocol."""
        ref: ActorRef[Any] = self._actor.actor_ref
        return ref

    @property
    def working_context(self) -> WorkingContext:
        """Recent files, most recent first, and the project."""
        return self._actor.context

    def next_context(self) -> str:
        """Exactly what the next model call gets besides the history; empty when there is nothing to say."""
        return self._actor.aside()

    def transcript(self) -> list[StoredTurn]:
        """Everything that was said in this session, in order."""
        return self._backstage.store.transcripts.turns(self.key)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key}>"

    async def _spawn(self, spawn: Spawn) -> Any:
        return await self._actor.spawn(spawn, announce=bool(spawn.announce))

    @property
    def _mind(self) -> Mind:
        mind = self._actor.mind
        if mind is None:
            runner = self._actor.place.runner
            raise TypeError(f"session {self.key} has no model: its runner {runner!r} is no ModelRunner")
        return mind

    async def _prompt(self, text: str) -> Reply:
        return await self._mind.prompt(admitted(self._backstage, None, self.key, text))

    async def _compact(self) -> int:
        return await self._mind.compact()

    async def _checkpoint(
        self, digest: str | None, entities: Sequence[str] | None, constraints: Sequence[str] | None
    ) -> Checkpoint:
        return await checkpoints.save(self._backstage, self.key, digest, entities, constraints)

    async def _follow_up(self, session_key: str, message: str, wait: float) -> SubAgentResult | LiveRun:
        asked = FollowUp(session_key=SessionKey(session_key), message=message, wait=wait)
        run = await follow_up(self._actor, asked)
        return (await reply_within(self._actor, run, wait) if wait else None) or run

    async def _kill(self, run_id: str, reason: str) -> KillReport:
        return await control.kill(self._actor, RunId(run_id), reason)

    async def _steer(self, run_id: str, message: str) -> None:
        control.steer(self._actor, RunId(run_id), message)

    async def _wait(self, run_ids: Sequence[str], timeout: float | None, *, first: bool) -> dict[RunId, SubAgentResult]:
        work = control.wait(self._actor, [RunId(run_id) for run_id in run_ids], first=first)
        if timeout is None:
            return await work
        try:
            return await within(self._backstage.clock, timeout, work)
        except TimeoutError:
            # What has finished by now is not kept back because of what has not.
            stored = {RunId(run_id): self._backstage.store.runs.result(run_id) for run_id in run_ids}
            return {run_id: result for run_id, result in stored.items() if result is not None}

    async def _children(self) -> list[ChildReport]:
        return control.children(self._actor)

    async def _release(self, session_key: str) -> bool:
        return await control.release(self._actor, SessionKey(session_key))

    async def _close(self) -> None:
        await self._actor.shut("parent_stopped")


class Session(_Face):
    """A conversation of the host's, from which sub-agents are spawned and to which their results come; for sync hosts.

    Example:
        >>> from understudy.actors import FunctionRunner, Runtime
        >>> from understudy.protocol import Spawn
        >>> with Runtime(runners={"default": FunctionRunner(lambda packet, context: "done")}) as runtime:
        ...     session = runtime.session("agent:atlas:main")
        ...     session.spawn(Spawn(task="Summarise")).result(timeout=60).output
        'done'
    """

    def spawn(self, spawn: Spawn) -> RunHandle:
        """Start a sub-agent; returns once that is durable, raises SpawnRejected where it is refused."""
        return RunHandle(self._do(self._spawn(spawn)), self._backstage)

    def prompt(self, text: str) -> Reply:
        """The answer of the session's own model, its tools and spawns included."""
        return self._do(self._prompt(text))

    def follow_up(self, session_key: str, message: str, *, wait: float = 0.0) -> SubAgentResult | RunHandle:
        """Say more to a kept child: its reply if that comes within ``wait`` seconds, else a handle on its run.

        Raises NotSentError where it cannot listen, and SpawnRejected where a spawn would be refused.
        """
        answer = self._do(self._follow_up(session_key, message, wait))
        return answer if isinstance(answer, SubAgentResult) else RunHandle(answer, self._backstage)

    def compact(self) -> int:
        """Sum up the older turns of the model's history now; gives how many. The transcript keeps them all."""
        return self._do(self._compact())

    def checkpoint(
        self,
        *,
        digest: str | None = None,
        entities: Sequence[str] | None = None,
        constraints: Sequence[str] | None = None,
    ) -> Checkpoint:
        """Write down what the session is about, for sub-agents to begin from.

        A digest that is left out is made from the turns; entities and constraints that are left out stay, and an
        empty list clears them.
        """
        return self._do(self._checkpoint(digest, entities, constraints))

    def kill(self, run_id: str, reason: str = "killed on request") -> KillReport:
        """End a run and everything below it; returns when all of it has ended."""
        return self._do(self._kill(run_id, reason))

    def steer(self, run_id: str, message: str) -> None:
        """Give a running child a new instruction."""
        self._do(self._steer(run_id, message))

    def wait(
        self, run_ids: Sequence[str], *, timeout: float | None = None, first: bool = False
    ) -> dict[RunId, SubAgentResult]:
        """Results of 1 to 32 runs: of all, or with ``first`` of one; after ``timeout`` of those that are done."""
        return self._do(self._wait(run_ids, timeout, first=first))

    def children(self) -> list[ChildReport]:
        """The children that have not finished."""
        return self._do(self._children())

    def release(self, session_key: str) -> bool:
        """Let a kept child go."""
        return self._do(self._release(session_key))

    def close(self) -> None:
        """Stop the whole subtree and end the session for good."""
        self._do(self._close())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._backstage.kernel.run_from_thread(work)


class AsyncSession(_Face):
    """A `Session` for async hosts: the same, awaited."""

    async def spawn(self, spawn: Spawn) -> AsyncRunHandle:
        """Start a sub-agent; returns once that is durable, raises SpawnRejected where it is refused."""
        return AsyncRunHandle(await self._actor.spawn(spawn, announce=bool(spawn.announce)), self._backstage)

    async def prompt(self, text: str) -> Reply:
        """The answer of the session's own model, its tools and spawns included."""
        return await self._prompt(text)

    async def follow_up(self, session_key: str, message: str, *, wait: float = 0.0) -> SubAgentResult | AsyncRunHandle:
        """Say more to a kept child: its reply if that comes within ``wait`` seconds, else a handle on its run.

        Raises NotSentError where it cannot listen, and SpawnRejected where a spawn would be refused.
        """
        answer = await self._follow_up(session_key, message, wait)
        return answer if isinstance(answer, SubAgentResult) else AsyncRunHandle(answer, self._backstage)

    async def compact(self) -> int:
        """Sum up the older turns of the model's history now; gives how many. The transcript keeps them all."""
        return await self._compact()

    async def checkpoint(
        self,
        *,
        digest: str | None = None,
        entities: Sequence[str] | None = None,
        constraints: Sequence[str] | None = None,
    ) -> Checkpoint:
        """Write down what the session is about, for sub-agents to begin from.

        A digest that is left out is made from the turns; entities and constraints that are left out stay, and an
        empty list clears them.
        """
        return await self._checkpoint(digest, entities, constraints)

    async def kill(self, run_id: str, reason: str = "killed on request") -> KillReport:
        """End a run and everything below it; returns when all of it has ended."""
        return await self._kill(run_id, reason)

    async def steer(self, run_id: str, message: str) -> None:
        """Give a running child a new instruction."""
        await self._steer(run_id, message)

    async def wait(
        self, run_ids: Sequence[str], *, timeout: float | None = None, first: bool = False
    ) -> dict[RunId, SubAgentResult]:
        """Results of 1 to 32 runs: of all, or with ``first`` of one; after ``timeout`` of those that are done."""
        return await self._wait(run_ids, timeout, first=first)

    async def children(self) -> list[ChildReport]:
        """The children that have not finished."""
        return await self._children()

    async def release(self, session_key: str) -> bool:
        """Let a kept child go."""
        return await self._release(session_key)

    async def close(self) -> None:
        """Stop the whole subtree and end the session for good."""
        await self._close()
