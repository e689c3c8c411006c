"""A run while it lives: what it was given, what it has done so far, and the one slot for its end."""

from __future__ import annotations

import io
import os.path
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from understudy.actors._kernel.future import LoopFuture
from understudy.actors.endings import failed, killed
from understudy.actors.tree import Tally
from understudy.persistence.operations import AppendTurns, Progress, RecordEvent
from understudy.protocol.model import LONGEST_ANSWER, TextDelta, Turn, UsageReport
from understudy.protocol.runner import (
    Asking,
    Keepalive,
    Noted,
    Said,
    SessionIdentified,
    ToolEnded,
    ToolStarted,
    Touched,
)
from understudy.protocol.usage import NO_USAGE, Usage
from understudy.protocol.working_context import unfit

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from understudy.actors.backstage import Backstage
    from understudy.actors.endings import Ending
    from understudy.actors.session import SessionActor
    from understudy.actors.sub_agent import SubAgentActor
    from understudy.actors.turns.exchange import Exchange
    from understudy.persistence import Commit
    from understudy.persistence.operations import Operation
    from understudy.protocol import RecentFile, RunId, SpawnPacket, SubAgentResult
    from understudy.protocol.files import Provenance
    from understudy.protocol.runner import RunnerEvent
    from understudy.protocol.spawn import ReplyTo

Reply: TypeAlias = "Callable[[LiveRun | RunId | Exception], None]"
"""Takes the answer to a spawn: the run, the id of an earlier one that it repeats, or why there is none."""

_PROGRESS_EVERY = 1.0
"""Seconds between two notes of progress in the store; the event bus gets them all."""


def below(path: str, root: str) -> bool:
    """Whether a canonical path is a canonical folder, or in it."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def awaited_reply(loop: asyncio.AbstractEventLoop) -> tuple[asyncio.Future[LiveRun | RunId], Reply]:
    """The answer to a spawn for somebody who waits, and what takes it."""
    accepted: asyncio.Future[LiveRun | RunId] = loop.create_future()

    def reply(answer: LiveRun | RunId | Exception) -> None:
        if accepted.done():
            if isinstance(answer, LiveRun):
                answer.waited = False  # whoever asked has gone; the run goes on, and its result comes as any other
            return
        if isinstance(answer, Exception):
            accepted.set_exception(answer)
        else:
            accepted.set_result(answer)

    return accepted, reply


class LiveRun:
    """The state of one run. Only the event loop's thread touches it, `settled` excepted."""

    __slots__ = (
        "_appended",
        "_draft",
        "_instructions",
        "_noted_at",
        "_tally",
        "_text",
        "_unreported",
        "accepted_at",
        "actor",
        "announce",
        "asking",
        "backstage",
        "digest",
        "dropped_files",
        "due",
        "durable",
        "ending",
        "exchange",
        "files",
        "generation",
        "granted",
        "heard_at",
        "history",
        "idempotency_key",
        "is_follow_up",
        "look_at",
        "nested",
        "packet",
        "queued",
        "replies",
        "reply_to",
        "seen_out",
        "session",
        "settled",
        "spoke",
        "started_at",
        "steered_at",
        "steps",
        "suspected",
        "tools",
        "unstored",
        "usage",
        "waited",
        "wants_summary",
    )

    def __init__(  # noqa: PLR0915 - a line a fact
        self, packet: SpawnPacket, session: SessionActor, replies: Sequence[Reply], *, now: int
    ) -> None:
        self.packet = packet
        self.session = session
        self.backstage: Backstage = session.backstage
        self.generation = 1
        self.accepted_at = now
        self.started_at: int | None = now
        self.due = float("inf")
        """When its time is up, in the clock's monotonic seconds; the watchdog says so once it has started."""
        self.durable = False
        """Whether the acceptance is committed."""
        self.queued = False
        """Whether it still waits for a slot."""
        self.granted: asyncio.Future[None] | None = None
        """For one that had to queue: done once there is a slot."""
        self.actor: SubAgentActor | None = None
        self.nested: SessionActor | None = None
        """The run's own session, once it has children of its own."""
        self.history: tuple[Turn, ...] = ()
        """Its turns of an earlier life; a new one has its task."""
        self.settled: LoopFuture[SubAgentResult] = LoopFuture()
        """The result, once it is merged into the parent, or as far as it could be brought."""
        self.ending: Ending | None = None
        self.seen_out = False
        """Whether somebody brings the run to its result."""
        self.unstored: tuple[Operation, ...] = ()
        """What the store could not take so far; it goes with the end."""
        self.announce = False
        self.waited = False
        """Whether the result is somebody's tool answer, and so not narrated as well."""
        self.wants_summary = False
        """Whether the child is to have its parent's conversation in short; made before it is accepted."""
        self.exchange: Exchange | None = None
        """Between its model's tool calls and their results, once it has called any."""
        self.is_follow_up = False
        self.idempotency_key: str | None = None
        self.digest: str | None = None
        self.reply_to: tuple[ReplyTo, ...] = ()  # the host's own actors, told the result
        self.replies: Sequence[Reply] = replies
        """Who waits to hear of the acceptance."""

        self.usage: Usage = NO_USAGE
        self._tally: Tally | None = None
        self.steps = 0
        self.files: dict[str, Provenance] = {}
        """Touched files, in touch order."""
        self.dropped_files = 0
        # Containers are made when they are needed: most children need none of these.
        self._draft: io.StringIO | None = None
        self._text = ""
        self._instructions: list[str] | None = None
        self._appended: list[tuple[Commit, tuple[Operation, ...]]] | None = None

        self.heard_at = self.backstage.clock.monotonic()
        """When there was last real output."""
        self.spoke = False
        self.asking = 0
        self.tools: dict[str, float | None] | None = None
        """Tools that run: until when each may, by its own timeout."""
        self.look_at: float | None = None
        """When the watchdog next looks whether it is silent; None where silence is no matter."""
        self.suspected = False
        self.steered_at: float | None = None
        self._noted_at = float("-inf")
        self._unreported = False
        """Whether something was consumed that the store has not been told of."""

    @property
    def tally(self) -> Tally:
        """What the run and everything below it has consumed."""
        if self._tally is None:
            self._tally = Tally(self.packet.budget)
        return self._tally

    @property
    def out_of_budget(self) -> bool:
        """Whether its own budget, that of a run above it, or the whole tree's is spent."""
        run: LiveRun | None = self
        while run is not None:
            if run._tally is not None and run._tally.spent() is not None:  # noqa: SLF001 - the same class
                return True
            run = run.session.owner
        return self.session.tree.spent() is not None

    # -- the end --------------------------------------------------------------------------------------

    def claim(self, ending: Ending) -> bool:
        """End the run, if nobody has: from now on nothing it says counts. The first one wins, in this process."""
        if self.ending is not None:
            return False
        self.ending = ending
        return True

    @property
    def output(self) -> str:
        """What was said so far: the turn under way, or the last whole one."""
        return (self._draft.getvalue() if self._draft else "") or self._text

    # -- what the runner tells ------------------------------------------------------------------------

    def take(self, event: RunnerEvent) -> None:
        """Count, store and pass on an event. What comes after the end is dropped."""
        if self.ending is not None:
            return
        if type(event) is Keepalive:
            return
        self.heard_at = self.backstage.clock.monotonic()
        self.spoke = True
        self.suspected = False
        take = _TAKERS.get(type(event))
        if take is None:
            raise TypeError(f"{type(event).__name__} is no runner event: yield those of understudy.protocol.runner")
        take(self, event)
        if self.look_at is not None:
            self.backstage.watchdog.listen(self)

    def _drafted(self, event: TextDelta) -> None:
        if self._draft is None:
            self._draft = io.StringIO()
        self._draft.write(event.text)
        if self._draft.tell() > LONGEST_ANSWER:
            # Whatever the runner is: what nobody ends with a turn is not collected for ever.
            self.end(failed("invalid_output", f"more than {LONGEST_ANSWER} characters were said without an end"))

    def _tool_started(self, event: ToolStarted) -> None:
        limit = event.timeout_ms
        if self.tools is None:
            self.tools = {}
        self.tools[event.call_id] = None if limit is None else self.heard_at + limit / 1000

    def _tool_ended(self, event: ToolEnded) -> None:
        if self.tools is not None:
            self.tools.pop(event.call_id, None)

    def _asked(self, event: Asking) -> None:
        self.asking = max(0, self.asking + (1 if event.state == "asked" else -1))

    def _said(self, event: Said) -> None:
        turn = event.turn
        if turn.role == "assistant":
            self._draft = None
            self._text = turn.text or self._text
            self.steps += 1
        self.append(turn)
        self.backstage.emit("session:sub_agent_turn", self, role=turn.role, step=self.steps)
        if self.steps > self.packet.max_steps:
            limit = self.packet.max_steps
            self.end(failed("step_limit", f"{self.steps} steps are more than max_steps={limit} allows"))

    def append(self, *turns: Turn, also: Iterable[Operation] = ()) -> None:
        """Write turns of the child's own history, and what belongs to them; `flush` waits for it."""
        self._unreported = False
        now = self.backstage.now()
        key, run_id = self.packet.session_key, self.packet.run_id
        also = tuple(also)
        said = AppendTurns(key, now, turns, run_id)
        progress = Progress(run_id, now, self.generation, self.usage, self.steps)
        commit = self.backstage.store.transaction(said, progress, *also)
        if self._appended is None:
            self._appended = []
        elif len(self._appended) > 8:  # noqa: PLR2004 - often enough to stay short
            self._appended = [pair for pair in self._appended if not pair[0].done or pair[0].failed]
        self._appended.append((commit, (said, *also)))

    @property
    def unconfirmed(self) -> bool:
        """Whether turns are on their way to the store."""
        return self._appended is not None

    async def flush(self) -> None:
        """Wait until every turn so far is committed; what the store could not take goes with the end."""
        pending, self._appended = self._appended, None
        for commit, said in pending or ():
            try:
                await commit
            except Exception:  # noqa: BLE001 - whatever the store said, the turn is kept and tried again
                self.unstored += said

    def _consumed(self, event: UsageReport) -> None:
        usage = event.usage
        self.usage = self.usage + usage
        if not self._unreported:
            # With the next turn of the loop: what was used must count even if the host dies, but a turn or an end that
            # is said in the same breath tells it too.
            self._unreported = True
            self.backstage.report_soon(self)
        self.charge(usage)

    def charge(self, usage: Usage) -> None:
        """Count what was used for this run, and end whatever has spent its budget by it."""
        run: LiveRun | None = self
        while run is not None:
            run.tally.add(usage)
            spent = run.tally.spent()
            if spent is not None:
                amount, limit, unit = spent
                run.end(killed("budget", f"{amount:g} {unit} are more than the budget of {limit:g}"))
            run = run.session.owner
        tree = self.session.tree
        tree.add(usage)
        spent = tree.spent()
        if spent is not None:
            amount, limit, unit = spent
            self.end(killed("budget", f"the whole tree used {amount:g} of {limit:g} {unit}"))

    def _touched(self, touched: Touched) -> None:
        if not touched.ok:
            return
        # As given first: what is unfit may not even be a path. Then where it leads.
        path = "" if unfit(touched.path) else os.path.realpath(Path(self.packet.cwd, touched.path))
        if unfit(path) or not self.may_touch(path):
            self.dropped_files += 1
            return
        provenance: Provenance = "read" if touched.mode == "read" else "changed"
        self.remember_file(path, "observed" if touched.observed else provenance)
        event = self.backstage.event("session:sub_agent_progress", self, path=path, provenance=self.files[path])
        # Recorded, so that even a run that dies with its host hands over what it touched.
        self.backstage.store.transaction(RecordEvent(event))
        self.backstage.bus.emit(event)

    def may_touch(self, path: str) -> bool:
        """Whether a canonical path is below the run's cwd or workspace."""
        # Both were made canonical when the session was opened and the packet assembled.
        return below(path, self.packet.cwd) or below(path, self.packet.workspace_dir)

    def remember_file(self, path: str, provenance: Provenance) -> None:
        """The last touched ends last; once changed, a file stays changed."""
        if self.files.pop(path, None) == "changed":
            provenance = "changed"
        self.files[path] = provenance

    def inherit_files(self, files: Iterable[RecentFile]) -> None:
        """What a child of this run touched, this run touched."""
        for file in files:
            self.remember_file(file.path, file.provenance)

    def _identified(self, identified: SessionIdentified) -> None:
        # Recorded, so that a follow-up finds the conversation, also after a restart of the host.
        event = self.backstage.event("session:sub_agent_progress", self, resume_id=identified.id)
        self.backstage.store.transaction(RecordEvent(event))
        self.backstage.bus.emit(event)

    def _noted(self, event: Noted) -> None:
        self.backstage.emit("session:sub_agent_progress", self, text=event.text)
        if self.heard_at - self._noted_at >= _PROGRESS_EVERY:
            self._noted_at = self.heard_at
            self._progressed()

    def report(self) -> None:
        """Tell the store what was consumed, unless a turn or the end has done so."""
        if self._unreported and self.ending is None:
            self._progressed()

    def _progressed(self) -> None:
        self._unreported = False
        now = self.backstage.now()
        self.backstage.store.transaction(Progress(self.packet.run_id, now, self.generation, self.usage, self.steps))

    # -- what others want of it -----------------------------------------------------------------------

    def end(self, ending: Ending) -> bool:
        """End the run from outside of its own task; answers whether this was the end."""
        if not self.claim(ending):
            self.hurry()
            return False
        if self.durable:  # else its own task sees the end as soon as its acceptance is decided
            self.session.see_out(self)
        return True

    def hurry(self) -> None:
        """Nobody wants to wait for this run's result any longer: it goes out uncondensed."""
        condensing = self.backstage.condensing.get(self.packet.run_id)
        if condensing is not None:
            condensing.task.cancel()

    def steer(self, message: str) -> None:
        """Give the run a new instruction; it is part of its history."""
        self._instructions = [*(self._instructions or ()), message]
        self.append(Turn("user", message))

    def take_instructions(self) -> list[str]:
        """What was said to it since the last call."""
        taken, self._instructions = self._instructions, None
        return taken or []

    def own_session(self) -> SessionActor:
        """The session under which this run's own children live; made when the first one is wanted."""
        if self.nested is None:
            self.nested = self.session.nest(self)
        return self.nested

    def quiet_until(self) -> float | None:
        """When silence becomes a timeout, by what the run is doing; None when it does not."""
        packet = self.packet
        if self.asking or self.ending is not None or (self.spoke and packet.idle_timeout_ms is None):
            return None
        if self.tools:
            limits = [until for until in self.tools.values() if until is not None]
            return min(limits) if limits else None
        limit = packet.idle_timeout_ms
        if not self.spoke:
            limit = packet.first_token_timeout_ms or limit
        return None if limit is None else self.heard_at + limit / 1000


# Any: each takes the events of its own kind, which the dictionary's key guarantees.
_TAKERS: dict[type, Callable[[LiveRun, Any], None]] = {
    TextDelta: LiveRun._drafted,  # noqa: SLF001 - this very class
    Said: LiveRun._said,  # noqa: SLF001
    UsageReport: LiveRun._consumed,  # noqa: SLF001
    Touched: LiveRun._touched,  # noqa: SLF001
    ToolStarted: LiveRun._tool_started,  # noqa: SLF001
    ToolEnded: LiveRun._tool_ended,  # noqa: SLF001
    Asking: LiveRun._asked,  # noqa: SLF001
    SessionIdentified: LiveRun._identified,  # noqa: SLF001
    Noted: LiveRun._noted,  # noqa: SLF001
}
