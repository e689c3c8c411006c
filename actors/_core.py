"""What both runtimes are: the beginning, the sessions, the end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import reprlib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from understudy.actors import recovery
from understudy.actors._kernel.actor import LoopActor
from understudy.actors._kernel.loop import ActorLoop, actor_of
from understudy.actors.archivist import Archivist
from understudy.actors.backstage import Backstage
from understudy.actors.clock import SystemClock
from understudy.actors.delivery import bring
from understudy.actors.errors import SessionBusy, UnknownRunError
from understudy.actors.estimator import Careful, default_estimator
from understudy.actors.ghost_sweep import GhostSweep
from understudy.actors.hooks import Hooks
from understudy.actors.host import incarnation, process_started
from understudy.actors.mind import Mind
from understudy.actors.runners.model import ModelRunner
from understudy.actors.searching import Searcher
from understudy.actors.session import Place, SessionActor
from understudy.actors.tree import Tally, tree_budget
from understudy.actors.watchdog import Watchdog
from understudy.persistence import MemoryStore, Store, StoreClosedError, StoreError
from understudy.persistence import operations as op
from understudy.protocol import RunId, RuntimeConfig, SessionKey, WorkingContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pykka import ActorRef

    from understudy.actors._kernel.exits import DeadLetter
    from understudy.actors._kernel.lag import LagGauge
    from understudy.actors.announcing import OnResults
    from understudy.actors.clock import Clock
    from understudy.actors.events import Subscription
    from understudy.actors.hooks import OnEnded, PrepareSpawn
    from understudy.actors.runners.contract import Runner
    from understudy.actors.sending import MaySend
    from understudy.persistence import Commit, DeadLetterRecord, Ledger, Page, RunRecord
    from understudy.persistence.operations import Visibility
    from understudy.protocol import Event
    from understudy.protocol.commit_points import CommitHook
    from understudy.protocol.model import Model
    from understudy.protocol.run_facts import RunStatus
    from understudy.protocol.tokens import TokenEstimator

logger = logging.getLogger("understudy")

A = TypeVar("A", bound=LoopActor)
DEFAULT_RUNNER = "default"
DEFAULT_AGENT = "default"
IN_MEMORY = ":memory:"

# It bounds every part, and survives objects that cannot show themselves.
_REPR = reprlib.Repr()
_REPR.maxdict = _REPR.maxlist = _REPR.maxtuple = 20
_REPR.maxstring = _REPR.maxother = 500


class Core:
    """The runtime, whoever's thread its loop is on."""

    def __init__(
        self,
        store: Path | str | None = None,
        *,
        runners: Mapping[str, Runner] | None = None,
        config: RuntimeConfig | None = None,
        clock: Clock | None = None,
        prepare_spawn: PrepareSpawn | None = None,
        on_ended: OnEnded | None = None,
        secrets: Iterable[str] = (),
        results_dir: Path | None = None,
        commit_hook: CommitHook | None = None,
        may_send: MaySend | None = None,
        estimator: TokenEstimator | None = None,
        summarizer: Model | None = None,
    ) -> None:
        """``store`` is the database's path; without one it is a private temporary file, gone at exit.

        ":memory:" keeps everything in memory and nothing after it: for hosts that want speed and no history.
        ``runners`` do the work, by name; ``secrets`` are values that are never written; ``results_dir`` is by
        default the folder ``results`` beside the database; ``commit_hook`` is for tests (see
        `understudy.actors.testing.CrashPoint`). ``may_send`` decides what may be said to which session, before the
        configuration's ``send_rules`` do; it must not block. ``estimator`` counts tokens, by default tiktoken where it
        is installed and has its vocabulary, else four characters a token; ``summarizer`` is the model that condenses
        long results, by default the child's own, or its parent's.
        """
        self.config = config or RuntimeConfig()
        self.clock: Clock = clock or SystemClock()
        self._kernel = ActorLoop(clock=self.clock, dead_letters=self._unhandled)
        self._letters: list[Commit] = []
        self._opening: asyncio.Lock
        self._open_store: Callable[[], Ledger] = partial(
            _open_store, store, self.clock, tuple(secrets), results_dir, commit_hook
        )
        self._runners = dict(runners or {})
        self._hooks = Hooks(prepare_spawn, on_ended)
        self._may_send = may_send
        self._estimator: TokenEstimator = default_estimator() if estimator is None else Careful(estimator)
        self._summarizer = summarizer
        self._backstage: Backstage

    # -- beginning and end ----------------------------------------------------------------------------

    async def begin(self) -> None:
        """Open the store, say that this host lives, and recover what dead ones left."""
        self._opening = asyncio.Lock()
        self._backstage = backstage = Backstage(
            clock=self.clock,
            config=self.config,
            store=self._open_store(),
            kernel=self._kernel,
            runners=self._runners,
            hooks=self._hooks,
            host=incarnation(),
            may_send=self._may_send,
            estimator=self._estimator,
            summarizer=self._summarizer,
        )
        now, pid = backstage.now(), os.getpid()
        await backstage.store.transaction(op.HostStarted(backstage.host, pid, process_started(pid), now))
        backstage.watchdog = actor_of(self._kernel.start(Watchdog, backstage))
        backstage.archivist = actor_of(self._kernel.start(Archivist, backstage))
        backstage.archivist.expect()  # what a crash kept from being exported
        self._sweep = self._kernel.start(GhostSweep, backstage, self._recover)
        await self._recover()

    async def end(self, grace: float) -> None:
        """Stop everything this runtime started, deepest first; what is committed stays."""
        backstage = self._backstage
        backstage.closing = True
        with self.clock.unattended():
            async with self._opening:
                pass  # what is being opened is opened first: then it is one of those that are shut
            roots = [session for session in backstage.sessions.values() if session.owner is None]
            await asyncio.gather(*(session.shut("host_stopped") for session in roots))
        try:
            await backstage.store.transaction(op.HostStopped(backstage.host, backstage.now()))
        except StoreError:
            logger.warning("the host could not sign off; the next start will notice", exc_info=True)
        backstage.bus.close()
        await backstage.dismiss(grace)
        await self._kernel.close(grace=grace)  # last, because it ends the thread this runs on

    async def _recover(self) -> None:
        """Sessions whose host died are opened here, so that their runs and results are not left lying."""
        backstage = self._backstage
        await recovery.sign_off_the_dead(backstage)
        for key in recovery.in_need(backstage):
            record = backstage.store.sessions.get(key)
            if record is None:
                continue
            if recovery.closed_for_good(backstage, record):
                await recovery.bury_orphans(backstage, key)
                continue
            try:
                await self._recovered(key)
            except SessionBusy:
                continue  # another host was faster

    # -- sessions -------------------------------------------------------------------------------------

    async def open_session(
        self,
        key: str,
        *,
        agent_id: str | None = None,
        visibility: Visibility | None = None,
        workspace: Path | str | None = None,
        cwd: Path | str | None = None,
        runner: str | None = None,
        objective: str | None = None,
        on_results: OnResults | None = None,
    ) -> SessionActor:
        """Create a session, or restore it with everything that belongs to it."""
        session = await self._opened(SessionKey(key), agent_id, visibility, workspace, cwd, runner)
        if objective is not None and objective != session.objective:
            await self._backstage.store.transaction(op.SetObjective(session.key, objective))
            session.objective = objective
        session.announcer.attend(on_results)
        return session

    async def _opened(self, key: SessionKey, *place: Any) -> SessionActor:
        session = self._backstage.sessions.get(key)
        if session is not None and session.recovered:
            return session
        # Whoever asked may give up: a session that is half opened would hold back what is still to be recovered.
        opening = self._kernel.create_task(self._recovered(key, *place))
        opening.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may be left to hear it
        return await asyncio.shield(opening)

    async def _recovered(self, key: SessionKey, *place: Any) -> SessionActor:
        """The open session, with everything below it where it belongs; where that failed before, it is tried again."""
        async with self._opening:
            if self._backstage.closing:
                raise RuntimeError(f"session {key} cannot be opened: the runtime is closed")
            session = self._backstage.sessions.get(key) or await self._open(key, *place)
            if not session.recovered:
                await recovery.recover(session)
                await recovery.deliver_waiting(session)
                session.recovered = True
            return session

    async def _open(
        self,
        key: SessionKey,
        agent_id: str | None = None,
        visibility: Visibility | None = None,
        workspace: Path | str | None = None,
        cwd: Path | str | None = None,
        runner: str | None = None,
    ) -> SessionActor:
        backstage, store = self._backstage, self._backstage.store
        record = store.sessions.get(key)
        if record is not None and agent_id not in {None, record.agent_id}:
            raise ValueError(f"session {key} is of agent {record.agent_id!r}, not {agent_id!r}: use another key")
        known_workspace = None if record is None else record.workspace_dir
        workspace_dir = _canonical(workspace or known_workspace or ".")
        place = Place(
            agent_id=agent_id or (record.agent_id if record is not None else DEFAULT_AGENT),
            visibility=visibility or (record.visibility if record is not None else "isolated"),
            workspace_dir=workspace_dir,
            cwd=_canonical(cwd or (record.cwd if record is not None and record.cwd else workspace_dir)),
            runner=runner or (record.runner if record is not None and record.runner else DEFAULT_RUNNER),
        )
        now = backstage.now()
        _, holder = await store.transaction(
            op.OpenSession(
                key,
                at=now,
                agent_id=place.agent_id,
                visibility=place.visibility,
                runner=place.runner,
                workspace_dir=place.workspace_dir,
                cwd=place.cwd,
            ),
            op.ClaimSession(key, backstage.host, recovery.stale_before(backstage)),
        )
        if holder is not None:
            raise SessionBusy(key, str(holder))
        context = store.sessions.working_context(key)
        files = () if context is None else context.recent_files[: self.config.recent_files_max]
        context = WorkingContext(files, place.cwd, self.config.recent_files_max)
        tree = Tally(tree_budget(self.config), store.runs.usage(key))
        session: SessionActor = actor_of(self._kernel.start(SessionActor, backstage, key, place, context, tree))
        session.objective = None if record is None else record.objective
        session.announcer.attended = False
        session.stuck.update(entry.run_id for entry in store.outbox.undelivered(key, dead=True) if entry.dead_at)
        mind = self._runners.get(place.runner)
        if isinstance(mind, ModelRunner):
            session.mind = Mind(session, mind)
            session.announcer.on_results = session.mind.wake
        backstage.sessions[key] = session
        return session

    def at_work(self, session_key: str) -> SessionActor | None:
        """The session under which a sub-agent's own children live; None unless the sub-agent is at work here."""
        live = self._backstage.live.values()
        run = next((run for run in live if run.packet.session_key == session_key and run.ending is None), None)
        return None if run is None or run.queued else run.own_session()

    # -- what a host asks -----------------------------------------------------------------------------

    @property
    def lag(self) -> LagGauge:
        """How late the event loop is."""
        return self._kernel.lag

    @property
    def abandoned_threads(self) -> int:
        """Blocking calls that outlived their deadline and still hold a thread."""
        return self._kernel.pool.abandoned_threads

    @property
    def store(self) -> Ledger:
        """Everything that survives, to be read."""
        return self._backstage.store

    def events(
        self,
        *,
        names: Iterable[str] | None = None,
        run_id: str | None = None,
        session_key: str | None = None,
        backlog: int = 1_000,
    ) -> Subscription:
        """Events from now on, all or some of them; iterate it, and close it when done."""
        wanted_names = None if names is None else frozenset(names)

        def wanted(event: Event) -> bool:
            return (
                (wanted_names is None or event.name in wanted_names)
                and (run_id is None or event.run_id == run_id)
                and (session_key is None or event.session_key == session_key)
            )

        return self._backstage.bus.subscribe(wanted, backlog=backlog)

    def runs(
        self,
        *,
        runner: str | None = None,
        status: RunStatus | None = None,
        since: int | None = None,
        session_key: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[RunRecord]:
        """Runs, the newest first, of this and of earlier hosts; ``session_key`` is the parent's."""
        return self.store.runs.find(
            runner=runner, status=status, since=since, parent_session_key=session_key, limit=limit, cursor=cursor
        )

    def searcher(self, session_key: str | None, agent_id: str | None, visibility: Visibility) -> Searcher:
        """Who searches: an agent, or whoever's the session is that is named, as that one may see."""
        if agent_id is None:
            record = None if session_key is None else self.store.sessions.get(session_key)
            agent_id = DEFAULT_AGENT if record is None else record.agent_id
        return Searcher(self.store, agent_id, visibility, session_key)

    def start_actor(
        self, actor_class: type[A], *args: Any, parent: ActorRef[Any] | None = None, **kwargs: Any
    ) -> ActorRef[A]:
        """Start one of the host's own actors on this runtime's loop.

        ``parent`` is told with `ActorExited`, exactly once, when it has left, in whatever way.
        """
        return self._kernel.start(actor_class, *args, parent=parent, **kwargs)

    # -- dead letters ---------------------------------------------------------------------------------

    def _unhandled(self, letter: DeadLetter) -> None:
        """A message that no actor handled; from whatever thread it was sent."""
        logger.warning("nobody handled a message to %s: %s", letter.recipient, letter.reason)
        payload = f"to {letter.recipient}: {_described(letter.message)}"
        try:
            self._letters.append(self._backstage.store.transaction(op.DeadLetter(letter.at, letter.reason, payload)))
        except StoreClosedError:
            logger.exception("it came after the store was closed")

    async def letters(self, session_key: str | None, *, replayed: bool, limit: int) -> list[DeadLetterRecord]:
        """What could not be delivered, the newest first."""
        waiting, self._letters = self._letters, []
        for commit in waiting:
            await commit
        found = self.store.dead_letters.find(session_key=session_key, replayed=replayed, limit=limit)
        return list(found.items)

    async def put_back(self, dead_letter_id: int) -> bool:
        """Put a dead letter back on the road; False when that was done before."""
        backstage, store = self._backstage, self._backstage.store
        letter = store.dead_letters.get(dead_letter_id)
        if letter is None:
            raise UnknownRunError(f"there is no dead letter {dead_letter_id}: `runtime.dead_letters()` lists them")
        if letter.session_key is None:
            raise ValueError(f"of dead letter {dead_letter_id} only a description is kept: send it again yourself")
        session = backstage.sessions.get(letter.session_key)
        if letter.run_id is None and (session is None or session.announcer.on_results is None):
            raise ValueError(f"nobody would hear it: open session {letter.session_key} with its on_results first")
        (first,) = await store.transaction(op.ReplayDeadLetter(dead_letter_id, backstage.now()))
        if not first or session is None:
            return bool(first)  # a session that is not open gets it when it is
        for run_id in [letter.run_id] if letter.run_id is not None else map(RunId, json.loads(letter.payload)):
            record, result = store.runs.get(run_id), store.runs.result(run_id)
            if record is None or result is None:
                continue
            if letter.run_id is None:
                session.announcer.add(result)
            elif not await bring(session, result, announce=record.announce):
                continue  # it is a dead letter again, or was delivered on another way
            backstage.emit_about(result, "session:sub_agent_dead_letter_delivered", session.key)
        return True


def _open_store(
    path: Path | str | None,
    clock: Clock,
    secrets: tuple[str, ...],
    results_dir: Path | None,
    commit_hook: CommitHook | None,
) -> Ledger:
    if str(path) == IN_MEMORY:
        return MemoryStore(wall_ms=clock.wall_ms, commit_hook=commit_hook, results_dir=results_dir, secrets=secrets)
    return Store.open(
        path,
        wall_ms=clock.wall_ms,
        busy=clock,
        secrets=secrets,
        results_dir=results_dir,
        commit_hook=commit_hook,
    )


def _described(message: object) -> str:
    """A message for a person: short, whatever it is, and without the values meant for a child's environment."""
    if isinstance(message, dict) and "env" in message:
        message = {**message, "env": "…"}
    return _REPR.repr(message)


def _canonical(path: Path | str) -> str:
    return os.path.realpath(path)
