"""The session: it lets spawns in, knows its children, and takes their results in."""

from __future__ import annotations

import asyncio
import logging
import os.path
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from understudy.actors import checkpoints, control
from understudy.actors._kernel.actor import LoopActor
from understudy.actors._kernel.loop import actor_of, mailbox_of
from understudy.actors.admission import Standing, admit
from understudy.actors.announcing import Announcer
from understudy.actors.aside import aside
from understudy.actors.conclusion import conclude
from understudy.actors.delivery import bring, tell
from understudy.actors.endings import killed
from understudy.actors.errors import SessionClosedError, UnknownRunError
from understudy.actors.follow_ups import follow_up, reply_within
from understudy.actors.idempotency import SeenKeys
from understudy.actors.inheritance import Legacy
from understudy.actors.live_run import LiveRun, awaited_reply
from understudy.actors.packets import assemble, child_prefix
from understudy.actors.roster import Roster
from understudy.actors.sub_agent import SubAgentActor
from understudy.persistence import StoreError
from understudy.persistence.operations import CompleteSession, MergeResult, ReleaseSession, SaveCheckpoint
from understudy.protocol import (
    Accepted,
    Event,
    FollowUp,
    InvalidMessageError,
    Kill,
    Rejection,
    Release,
    RunId,
    SessionKey,
    Spawn,
    SpawnRejected,
    Steer,
    SubAgentResult,
    WorkingContext,
    parse_message,
)
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from understudy.actors.backstage import Backstage
    from understudy.actors.endings import Ending
    from understudy.actors.live_run import Reply
    from understudy.actors.mind import Mind
    from understudy.actors.tree import Tally
    from understudy.actors.turns.exchange import Exchange
    from understudy.persistence import Commit
    from understudy.persistence.operations import Visibility
    from understudy.protocol import SpawnPacket
    from understudy.protocol.authority import Authority
    from understudy.protocol.events import EventName, EventValue
    from understudy.protocol.model import UsageReport
    from understudy.protocol.spawn import ReplyTo

logger = logging.getLogger("understudy")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session works and as whom."""

    agent_id: str
    visibility: Visibility
    workspace_dir: str
    cwd: str
    runner: str


class SessionActor(LoopActor):
    """A session and its children. Nothing in its mailbox ever waits, so that results always get through."""

    def __init__(
        self, backstage: Backstage, key: SessionKey, place: Place, context: WorkingContext, tree: Tally
    ) -> None:
        super().__init__()
        self.backstage = backstage
        self.key = key
        self.place = place
        self.context = context
        """What the parent keeps in view."""
        self._stored_context = context
        self.tree = tree
        """What the whole tree has consumed."""
        self.owner: LiveRun | None = None
        """The run whose session this is; none for a session of the host's."""
        self.depth = 0
        self.root_key = key
        self.child_prefix = child_prefix(place.agent_id)
        self.legacy = Legacy(backstage.store, key, backstage.config.tail_chars)
        """What its next child inherits."""
        self.roster = Roster(backstage)
        self.fostered: dict[SessionActor, None] = {}
        """Sessions of children that have finished while their own children still work."""
        self.stuck: set[RunId] = set()
        """Results that could not be delivered."""
        self.announcer = Announcer(self)
        self.recovered = False
        """Whether what earlier hosts have left below it is where it belongs."""
        self.objective: str | None = None
        """What the session is for, where its host has said so."""
        self.mind: Mind | None = None
        """The session's own model, if its runner has one."""
        self.own_exchange: Exchange | None = None
        self.arrived: list[Turn] = []
        """Narrative turns that were merged and not yet taken into a live history."""
        self.owed: list[SubAgentResult] = []
        """Results that a waiting tool call has, and that are merged with its answer."""
        self.sealed = False
        """Whether it is over: results that would come here go to whoever is above."""
        self._closing = False
        self._shutting: asyncio.Task[None] | None = None
        self._seen = SeenKeys(backstage.store, key)

    # -- messages -------------------------------------------------------------------------------------

    def on_receive(self, message: Any) -> Any:
        """Everything a session understands. What it cannot do is told to whoever asked, and it lives on."""
        try:
            return self._do(message)
        except InvalidMessageError:
            raise
        except Exception as error:  # noqa: BLE001 - a session with children must not die of one bad request
            reply = self.take_reply()
            if reply is None:
                self.backstage.kernel.dead_letter(message, self.name(), str(error))
            else:
                reply.set_exception((type(error), error, error.__traceback__))
            return None

    def _do(self, message: Any) -> Any:
        known = parse_message(message)
        if isinstance(known, Spawn):
            return self._spawn_told(known)
        if isinstance(known, FollowUp):
            return self._later(self._follow_up_told(known))
        if isinstance(known, Kill):
            return self._later(control.kill(self, known.run_id, known.reason))
        if isinstance(known, Steer):
            return control.steer(self, known.run_id, known.message)
        if isinstance(known, Release):
            return self._later(control.release(self, known.session_key))
        if isinstance(known, SubAgentResult):
            return self._later(self._redeliver(known))
        raise TypeError(f"{type(known).__name__} is not understood by this session")

    def _later(self, work: Coroutine[Any, Any, object]) -> None:
        """Answer when ``work`` is done, and handle other messages meanwhile."""
        reply = self.take_reply()

        async def answer() -> None:
            try:
                value = await work
            except Exception as error:  # noqa: BLE001 - goes to whoever asked
                if reply is None:
                    logger.warning("%s could not do what it was told: %s", self.key, error)
                else:
                    reply.set_exception((type(error), error, error.__traceback__))
            else:
                if reply is not None:
                    reply.set(value)

        self.backstage.task(answer())

    # -- the way of one spawn -------------------------------------------------------------------------

    async def spawn(
        self, spawn: Spawn, *, announce: bool = False, waited: bool = False, authority: Authority | None = None
    ) -> LiveRun | RunId:
        """Admit, make durable, start; gives the run once it is accepted, or the earlier one that this repeats.

        A ``waited`` run's result is the answer of a tool, and is merged with that answer. ``authority`` is of the
        model that spawns; without one the host does, or a function, which hands down what it was given.
        """
        accepted, reply = awaited_reply(self.backstage.kernel.asyncio_loop)
        self._spawn(spawn, [reply], announce=announce, waited=waited, authority=authority)
        try:
            return await accepted
        except asyncio.CancelledError:
            if not accepted.cancelled() and accepted.exception() is None:
                reply(accepted.result())  # in the very moment in which the caller gave up: it has gone as well
            raise

    def _spawn_told(self, spawn: Spawn) -> None:
        """A spawn that came by message: who asked hears of it, whatever goes wrong."""
        replies = self._replies()
        try:
            self._spawn(spawn, replies, announce=bool(spawn.announce))
        except Exception as error:
            if not replies:
                raise
            for reply in replies:
                reply(error)

    async def _follow_up_told(self, message: FollowUp) -> Accepted | SubAgentResult:
        """A follow-up that came by message: the reply, if it is wanted and comes in time."""
        run = await follow_up(self, message, announce=bool(message.announce))
        result = await reply_within(self, run, message.wait) if message.wait else None
        packet = run.packet
        return result or Accepted(run_id=packet.run_id, session_key=packet.session_key, queued=run.queued)

    def _replies(self) -> list[Reply]:
        """The answer to a spawn that came by message."""
        future = self.take_reply()
        if future is None:
            return []

        def reply(answer: LiveRun | RunId | Exception) -> None:
            if isinstance(answer, Exception):
                future.set_exception((type(answer), answer, None))
            elif isinstance(answer, LiveRun):
                packet = answer.packet
                future.set(Accepted(run_id=packet.run_id, session_key=packet.session_key, queued=answer.queued))
            else:
                key = SessionKey(f"{self.child_prefix}{answer}")
                future.set(Accepted(run_id=answer, session_key=key, duplicate=True))

        return [reply]

    def _spawn(
        self,
        spawn: Spawn,
        replies: list[Reply],
        *,
        announce: bool,
        waited: bool = False,
        authority: Authority | None = None,
    ) -> None:
        self.ensure_open()
        listeners = () if spawn.reply_to is None else (spawn.reply_to,)
        known = self._seen.find(spawn)
        if known is not None:
            self._answer_known(known, replies, listeners)
            return
        verdict = admit(spawn, self.standing(spawn))
        now = self.backstage.now()
        packet = verdict if isinstance(verdict, Rejection) else assemble(spawn, self, now=now, authority=authority)
        if isinstance(packet, Rejection):
            self.refuse(packet, replies, listeners)
            return
        run = LiveRun(packet, self, replies, now=now)
        run.announce = announce and spawn.mode == "background"
        run.waited = waited
        history = spawn.include_parent_history or self.backstage.config.include_parent_history
        run.wants_summary = history == "summary"
        run.reply_to = listeners
        self._seen.remember(run, spawn)
        self.begin(run, queued=verdict == "queue")

    def ensure_open(self) -> None:
        """What would begin while everything below is being ended would outlive it: raises SessionClosedError."""
        if self._closing:
            raise SessionClosedError(f"session {self.key} is closed: open it again to spawn")

    def begin(self, run: LiveRun, *, queued: bool) -> None:
        """Give the run its place and its actor, which does the rest."""
        self.roster.enter(run, queued=queued)
        self.backstage.kernel.start_unaddressed(SubAgentActor, run)

    def standing(self, spawn: Spawn) -> Standing:
        """Everything that admission asks about."""
        tallies: tuple[Tally, ...] = (self.tree,)
        run = self.owner
        while run is not None:
            tallies += (run.tally,)
            run = run.session.owner
        backstage, roster = self.backstage, self.roster
        return Standing(  # by position: this is asked for every spawn
            backstage.config,
            self.depth,
            spawn.runner or self.place.runner,
            backstage.runners,
            tallies,
            roster.running,
            backstage.running,
            len(roster.queue),
            len(self.stuck),
        )

    def _answer_known(
        self, known: LiveRun | RunId | Rejection, replies: list[Reply], listeners: tuple[ReplyTo, ...]
    ) -> None:
        if isinstance(known, Rejection):
            self.refuse(known, replies, listeners)
        elif isinstance(known, LiveRun) and not known.durable:
            known.replies = (*known.replies, *replies)  # they are told together with the first
            known.reply_to += listeners
        else:
            self.answer_duplicate(known.packet.run_id if isinstance(known, LiveRun) else known, replies, listeners)

    def answer_duplicate(self, run_id: RunId, replies: Sequence[Reply], listeners: tuple[ReplyTo, ...]) -> None:
        """Tell who asked again which run it is, and what became or becomes of it."""
        live = self.backstage.unsettled(run_id)
        if live is not None:
            live.reply_to += listeners
        elif listeners and (result := self.backstage.store.runs.result(run_id)) is not None:
            tell(listeners, result)
        for reply in replies:
            reply(run_id)

    def refuse(self, rejection: Rejection, replies: Sequence[Reply], listeners: tuple[ReplyTo, ...]) -> None:
        """Tell everybody concerned that nothing was begun."""
        backstage = self.backstage
        if backstage.bus.subscriptions:
            owner = None if self.owner is None else self.owner.packet.run_id
            data: dict[str, EventValue] = {"reason": rejection.reason, "message": rejection.message}
            name: EventName = "session:sub_agent_spawn_rejected"
            backstage.bus.emit(Event(name, backstage.now(), self.key, None, owner, self.depth + 1, data))
        for reply in replies:
            reply(SpawnRejected(rejection))
        tell(listeners, rejection)

    def forget(self, run: LiveRun, why: Exception) -> None:
        """A spawn that was not accepted: as if it had never been."""
        self.roster.leave(run)
        self._seen.forget(run)
        self.roster.part_with(run)
        run.settled.set_exception((type(why), why, None))

    # -- the end of a run -----------------------------------------------------------------------------

    def see_out(self, run: LiveRun) -> None:
        """A run was ended from outside: stop what it does, and bring it to its result."""
        run.seen_out = True
        if run.actor is not None:
            self.backstage.kernel.cancel(run.actor)
        self.backstage.task(conclude(run))

    def ended(self, run: LiveRun) -> None:
        """The run's end is committed: its slot is free."""
        self.roster.leave(run)
        self._seen.forget(run)

    async def merge(self, result: SubAgentResult) -> bool:
        """Working context, narrative turn and acknowledgement in one transaction; False if it was done before."""
        exchange = self.exchange
        if exchange is None:
            return await self._merge(result)
        # Between a model's tool calls and their results there is no place for anything else.
        await exchange.over()
        try:
            return await self._merge(result)
        finally:
            exchange.arrived()

    async def _merge(self, result: SubAgentResult) -> bool:
        store = self.backstage.store
        merge = self.merge_of(result)
        try:
            (merged,) = await store.transaction(merge, point="merge")
        except StoreError:
            raise
        except Exception as error:
            # A commit hook may raise anything, before the commit or after it.
            record = store.runs.get(result.run_id)
            if record is None or record.facts.delivered_at is None:
                raise StoreError(f"run {result.run_id} was not merged: {error}") from error
            merged = True
        self.took_in(result, merge if merged else None)
        return bool(merged)

    def merge_of(self, result: SubAgentResult) -> MergeResult:
        """What takes ``result`` in: its files, a narrative turn, and the acknowledgement."""
        config = self.backstage.config
        note = Turn("user", result.cast(tag_prefix=config.result_tag_prefix, narrative=config.narrative_casting))
        return self._acknowledgement(result, (note,))

    def took_in(self, result: SubAgentResult, merge: MergeResult | None) -> None:
        """The merge is committed; none where it had been before."""
        if merge is not None:
            if merge.context is not None:
                self._stored_context = merge.context
            if self.exchange is not None:
                self.arrived += merge.turns
        if self.owner is not None:
            self.owner.inherit_files(result.recent_files)

    def _acknowledgement(self, result: SubAgentResult, notes: tuple[Turn, ...]) -> MergeResult:
        # In memory first: several results on their way at once each build on the one before.
        if result.recent_files:
            self.context = self.context.merge([file.path for file in result.recent_files])
        changed = None if self.context is self._stored_context else self.context
        return MergeResult(result.run_id, self.key, self.backstage.now(), result.generation, changed, notes)

    def claim_answers(self, run_ids: Iterable[RunId]) -> None:
        """A tool call waits for these children: their results are its answer, and not narrated as well."""
        for run_id in run_ids:
            run = self.roster.unsettled.get(run_id)
            if run is None:
                continue
            run.waited = True
            if run_id in self.roster.unfinished or run_id in self.backstage.condensing:
                continue  # it is still to be delivered, and will be so as an answer
            result = self.backstage.store.runs.result(run_id)
            if result is not None and result not in self.owed:
                self.owed.append(result)  # it stands at the door until the tools are done: it goes in with the answer

    def disclaim_answers(self, run_ids: Iterable[RunId]) -> None:
        """The tool call was given up: its results come as any other."""
        given_up = set(run_ids)
        for run_id in given_up:
            run = self.roster.unsettled.get(run_id)
            if run is not None:
                run.waited = False
        late = [result for result in self.owed if result.run_id in given_up]
        if late:
            self.owed = [result for result in self.owed if result.run_id not in given_up]
            self.backstage.task(self._bring_all(late))

    async def see_merged(self, commit: Commit, run_ids: Sequence[RunId]) -> None:
        """A tool's answer takes these in; where it could not be stored, they come as any other result."""
        try:
            await commit
        except Exception:  # noqa: BLE001 - a commit hook may raise anything
            found = [self.backstage.store.runs.result(run_id) for run_id in run_ids]
            await self._bring_all(result for result in found if result is not None)

    def settle_debts(self) -> list[MergeResult]:
        """What acknowledges the results that are tools' answers; to be committed with those answers."""
        owed, self.owed = self.owed, []
        for result in owed:
            if self.owner is not None:
                self.owner.inherit_files(result.recent_files)
            self.delivered(result, announce=False)
        return [self._acknowledgement(result, ()) for result in owed]

    async def deliver_owed(self) -> None:
        """The tool calls that asked for these will not be answered: they come as any other result."""
        owed, self.owed = self.owed, []
        await self._bring_all(owed)

    async def _bring_all(self, results: Iterable[SubAgentResult]) -> None:
        for result in results:
            await bring(self.living(), result, announce=False)

    @property
    def exchange(self) -> Exchange | None:
        """Whether a model's tool calls wait for their results; None where no model has called any."""
        return self.own_exchange if self.owner is None else self.owner.exchange

    def consumed(self, report: UsageReport) -> None:
        """A model call was made for this session, outside of its own turns: it counts where those do."""
        if self.owner is None:
            self.tree.add(report.usage)
        else:
            self.owner.take(report)

    def touch(self, path: str) -> None:
        """The session's own model used a file."""
        self.context = self.context.add_recent_file(os.path.realpath(Path(self.place.cwd, path)))

    def aside(self) -> str:
        """What the next model call gets besides the history; empty when there is nothing to say."""
        return aside(self)

    def delivered(self, result: SubAgentResult, *, announce: bool, packet: SpawnPacket | None = None) -> None:
        """A result was merged just now."""
        self.stuck.discard(result.run_id)
        self.backstage.archivist.expect()
        self.backstage.emit_about(result, "session:sub_agent_delivered", self.key, packet)
        if announce:
            self.announcer.add(result)

    def settle(self, run: LiveRun, result: SubAgentResult | StoreError) -> None:
        """Everybody who waits for the run gets its result, or learns that it could not be stored."""
        self.roster.part_with(run)
        if run.settled.settled():
            pass  # told before the merge, see `deliver`
        elif isinstance(result, SubAgentResult):
            run.settled.set(result)
        else:
            run.settled.set_exception((type(result), result, None))
        self._leave_if_done()

    async def _redeliver(self, result: SubAgentResult) -> None:
        """A result told from outside is only a reminder: what counts is what the store has."""
        stored = self.backstage.store.runs.result(result.run_id)
        if stored is None or stored.parent_session_key != self.key:
            raise UnknownRunError(f"run {result.run_id} is not one of session {self.key}'s")
        await bring(self, stored, announce=False)

    # -- those above and below ------------------------------------------------------------------------

    def nest(self, run: LiveRun) -> SessionActor:
        """The session of one of the children, under which its own children live."""
        packet = run.packet
        place = Place(packet.agent_id, self.place.visibility, packet.workspace_dir, packet.cwd, packet.runner)
        context = WorkingContext(project_dir=packet.cwd, max_files=self.backstage.config.recent_files_max)
        if run.is_follow_up:
            kept = self.backstage.store.sessions.working_context(packet.session_key)
            context = context if kept is None else context.merge(reversed(kept.recent_files))
        nested = actor_of(
            self.backstage.kernel.start(NestedSession, self.backstage, packet.session_key, place, context, self.tree)
        )
        nested.recovered = True  # with the host's own session above it
        nested.owner, nested.depth, nested.root_key = run, packet.depth, packet.root_session_key
        self.backstage.sessions[packet.session_key] = nested
        return nested

    def living(self) -> SessionActor:
        """This session, or the nearest above it that is not over; the host's own comes last."""
        session = self
        while session.sealed and session.owner is not None:
            session = session.owner.session
        return session

    async def take_in(self) -> None:
        """Wait for results that are being merged right now: what comes with them belongs to the owner's own."""
        roster = self.roster
        while coming := [run for run_id, run in roster.unsettled.items() if run_id not in roster.unfinished]:
            for run in coming:
                run.hurry()  # who would read a summary has said its last word
            # Not for what they settle with: a result that waits for the exchange was told before it is merged.
            await roster.departure()

    def seal(self) -> None:
        """The owner's result is being made: from now on results go to whoever is above."""
        assert self.owner is not None
        self.sealed = self._closing = True
        if self.roster.unsettled or self.fostered:
            self.owner.session.fostered[self] = None
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        if self.sealed and self.owner is not None and not self.roster.unsettled and not self.fostered:
            above = self.owner.session
            above.fostered.pop(self, None)
            if self.backstage.sessions.get(self.key) is self:  # else a follow-up has opened it anew
                del self.backstage.sessions[self.key]
            self._part()
            above._leave_if_done()  # noqa: SLF001 - the same class

    # -- closing --------------------------------------------------------------------------------------

    async def end_children(self, ending: Ending) -> None:
        """End everything below, and wait until all of it has settled."""
        waiting = list(self.roster.unsettled.values())
        for run in waiting:
            run.end(ending)
        for nested in tuple(self.fostered):
            await nested.end_children(ending)
        for run in waiting:
            await control.settled(run)

    async def shut(self, kind: Literal["parent_stopped", "host_stopped"]) -> None:
        """Stop the whole subtree, its queue included, and let the session go."""
        if self._shutting is None:
            if self._closing:
                return  # sealed: whoever is above sees to the rest
            self._closing = True
            self._shutting = self.backstage.task(self._shut(kind))
        # The second to come waits for the first; and who gives up waiting leaves no session half closed.
        await asyncio.shield(self._shutting)

    async def _shut(self, kind: Literal["parent_stopped", "host_stopped"]) -> None:
        if self.own_exchange is not None:
            self.own_exchange.end()  # nobody waits for a model that is not heard any more
        if kind == "host_stopped":
            await self._interrupt_resumable()
        words = "its session was closed" if kind == "parent_stopped" else "the host stopped"
        await self.end_children(killed(kind, words))
        self.sealed = True
        store, now = self.backstage.store, self.backstage.now()
        goodbye: list[CompleteSession | ReleaseSession | SaveCheckpoint] = [
            ReleaseSession(self.key, self.backstage.host)
        ]
        if kind == "parent_stopped":
            goodbye.append(CompleteSession(self.key, now))
            last = checkpoints.made(self.backstage, self.key, "session_end")
            goodbye += () if last is None else (last,)
        try:
            await store.transaction(*goodbye)
        except StoreError:
            logger.warning("session %s could not be signed off; its host will be", self.key, exc_info=True)
        self.backstage.sessions.pop(self.key, None)
        self._part()

    async def _interrupt_resumable(self) -> None:
        """Runs that may resume are left without an end: the next start takes them up."""
        stopped = killed("host_stopped", "the host stopped")
        for nested in tuple(self.fostered):
            await nested._interrupt_resumable()  # noqa: SLF001 - the same class
        for run in tuple(self.roster.unfinished.values()):
            if run.packet.restart == "resume" and run.durable and run.claim(stopped):
                run.seen_out = True
                if run.actor is not None:
                    self.backstage.kernel.cancel(run.actor)
                if run.exchange is not None:
                    run.exchange.end()  # its model's tools will not answer any more: results need not wait for them
                if run.nested is not None:
                    await run.nested._interrupt_resumable()  # noqa: SLF001 - the same class
                    await run.nested.end_children(stopped)
                    run.nested.seal()
                self.ended(run)
                self.settle(run, StoreError(f"run {run.packet.run_id} was interrupted and resumes at the next start"))

    def _stop(self) -> None:
        """Close the session first, when pykka stops the actor; who asked hears when that is done."""
        reply = self.take_reply()

        async def close() -> None:
            await self.shut("parent_stopped")
            if reply is not None:
                reply.set(None)

        self.backstage.task(close())

    def _part(self) -> None:
        self.leave("stopped")
        mailbox_of(self).rouse()


class NestedSession(SessionActor):
    """The session of a sub-agent: found through its run, not through pykka's registry."""

    registered = False
