"""Saying more to a kept sub-agent: another run of the same session, which remembers everything."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.actors import control
from understudy.actors.admission import admit
from understudy.actors.clock import within
from understudy.actors.errors import NotSentError, UnknownRunError
from understudy.actors.inheritance import inheriting
from understudy.actors.live_run import LiveRun, awaited_reply
from understudy.actors.sending import admitted
from understudy.persistence.redaction import REDACTED
from understudy.protocol import Rejection, Spawn, SpawnRejected, SubAgentResult

if TYPE_CHECKING:
    from understudy.actors.backstage import Backstage
    from understudy.actors.session import SessionActor
    from understudy.persistence import RunRecord
    from understudy.protocol import FollowUp, SessionKey, SpawnPacket


@dataclass(frozen=True, slots=True)
class _Kept:
    """A kept sub-agent as it stands."""

    last: RunRecord
    """Its newest run."""
    busy: bool
    """Whether a run of it has not ended yet."""


async def follow_up(
    session: SessionActor, message: FollowUp, *, announce: bool = False, waited: bool = False
) -> LiveRun:
    """Accept ``message`` as a new run of a kept child, at once or behind what the child still does.

    Raises UnknownRunError, NotSentError, SessionClosedError, or SpawnRejected; then nothing was begun.
    """
    kept = _find(session, message.session_key)
    text = admitted(session.backstage, session.key, message.session_key, message.message)
    verdict = _admit(session, kept)
    home = _home(session, kept.last.packet)
    home.ensure_open()
    packet = _packet(kept.last.packet, text, session.backstage)
    accepted, reply = awaited_reply(session.backstage.kernel.asyncio_loop)
    run = LiveRun(packet, home, [reply], now=session.backstage.now())
    run.is_follow_up = True
    # Somebody else's child: its own parent gets the result as any other, and who asked hears it too.
    run.waited = waited and home is session
    run.announce = announce
    home.begin(run, queued=verdict == "queue" or kept.busy)
    try:
        await accepted
    except asyncio.CancelledError:
        run.waited = False  # whoever asked has gone; the reply comes as any other result
        raise
    return run


async def reply_within(session: SessionActor, run: LiveRun, seconds: float) -> SubAgentResult | None:
    """The follow-up's result if it comes in time; else None, and it is delivered like any other."""

    async def settled() -> SubAgentResult:
        return await run.settled

    try:
        return await within(session.backstage.clock, seconds, settled())
    except asyncio.CancelledError:
        session.disclaim_answers([run.packet.run_id])
        raise
    except TimeoutError:
        # It may have come in the very moment in which the time was up.
        owed = next((result for result in session.owed if result.run_id == run.packet.run_id), None)
        if owed is None and run.waited:
            run.waited, run.announce = False, True
        return owed


def _find(session: SessionActor, key: SessionKey) -> _Kept:
    """The kept child of that name, if it is there, this session's to talk to, and able to go on."""
    backstage = session.backstage
    runs = backstage.store.runs.find(session_key=key, limit=1).items
    unknown = UnknownRunError(f"session {key!r} is not one of this session's sub-agents")
    if not runs:
        raise unknown
    last = runs[0]
    try:
        control.owned(session, last.run_id)
    except UnknownRunError:
        raise unknown from None  # a stranger's: its run is not to be named
    if last.packet.cleanup == "delete":
        raise NotSentError(f"sub-agent {key} was not kept: spawn another with cleanup='keep' to follow it up")
    record = backstage.store.sessions.get(key)
    if record is None or record.completed_at is not None:
        raise NotSentError(f"sub-agent {key} was released: spawn another")
    busy = any(run.packet.session_key == key for run in backstage.live.values())
    if not busy:
        _able(last, backstage)
    return _Kept(last, busy)


def _able(last: RunRecord, backstage: Backstage) -> None:
    """A child that has rested, perhaps for a restart or two: is what it needs still there?"""
    packet = last.packet
    why = None
    if last.facts.ended_at is None:
        why = "its last run is another host's, and has not ended"
    elif packet.runner not in backstage.runners:
        why = f"this host has no runner {packet.runner!r}"
    elif not Path(packet.cwd).is_dir():
        why = f"its working directory {packet.cwd!r} is gone"
    elif any(REDACTED in value for value in packet.env.values()):
        why = "its environment held a secret, which is never stored"
    elif not backstage.store.transcripts.turns(packet.session_key, limit=1):
        why = "its transcript is gone"
    else:
        why = backstage.refusal(packet.runner, Spawn(task=packet.task, tool_groups=packet.tool_groups))
    if why is not None:
        raise NotSentError(f"sub-agent {packet.session_key} cannot go on: {why}; spawn another")


def _admit(session: SessionActor, kept: _Kept) -> str:
    """The same questions as for a spawn; a busy child has its slot already, and needs no second one."""
    packet = kept.last.packet
    spawn = Spawn(task=packet.task, runner=packet.runner, graph=packet.graph)
    standing = session.standing(spawn)._replace(depth=packet.depth - 1)
    if kept.busy:
        standing = standing._replace(running=0, running_in_total=0, queued=0)
    verdict = admit(spawn, standing)
    if isinstance(verdict, Rejection):
        session.refuse(verdict, (), ())
        raise SpawnRejected(verdict)
    return verdict


def _home(session: SessionActor, packet: SpawnPacket) -> SessionActor:
    """Whose child it is: the session that spawned it, while that lives, and else the one that asks."""
    parent = session.backstage.sessions.get(packet.parent_session_key)
    return session if parent is None or parent.sealed else parent


def _packet(before: SpawnPacket, message: str, backstage: Backstage) -> SpawnPacket:
    """The child's packet with a new task: where it works, how long, with what and for whom stays."""
    return inheriting(before, backstage.store, backstage.config).model_copy(
        update={
            "run_id": backstage.next_run_id(),
            "task": message,
            "deadline_at": backstage.now() + before.timeout_ms,
        }
    )
