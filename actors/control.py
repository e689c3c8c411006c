"""Acting on runs: kill, steer, wait, list, release. Only for those above them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from understudy.actors.endings import killed
from understudy.actors.errors import SteerError, UnknownRunError
from understudy.actors.sending import admitted
from understudy.persistence.operations import CompleteSession, RequestCancel
from understudy.protocol import EndReason, RunId, SessionKey, SubAgentResult, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from understudy.actors.live_run import LiveRun
    from understudy.actors.session import SessionActor

STEER_EVERY_SECONDS = 2.0
MOST_WAITED_FOR = 32


@dataclass(frozen=True, slots=True)
class KillReport:
    """What a kill really did."""

    killed: tuple[RunId, ...]
    """Runs that ended by it, descendants and queued ones included."""
    already_ended: tuple[RunId, ...]
    """Runs that had ended, or ended in another way first."""


@dataclass(frozen=True, slots=True)
class ChildReport:
    """A child that has not finished yet."""

    run_id: RunId
    session_key: SessionKey
    label: str
    runner: str
    state: Literal["queued", "running", "ending"]
    depth: int
    age_ms: int
    steps: int
    usage: Usage


def lineage(run: LiveRun) -> Iterator[LiveRun]:
    """The run itself, the run that spawned it, and so on up."""
    above: LiveRun | None = run
    while above is not None:
        yield above
        above = above.session.owner


def owned(session: SessionActor, run_id: str) -> list[LiveRun]:
    """The live run of that name and everything alive below it; empty when all of it has ended.

    Raises UnknownRunError unless the run was spawned by ``session`` or below it.
    """
    backstage = session.backstage
    below = [run for run in backstage.live.values() if any(r.packet.run_id == run_id for r in lineage(run))]
    if below:
        top = next(run for run in lineage(below[0]) if run.packet.run_id == run_id)
        if all(above.session is not session for above in lineage(top)):
            raise _unknown(run_id)
        return below
    record = backstage.store.runs.get(run_id)
    while record is not None and record.parent_session_key != session.key:
        above = record.parent_run_id
        record = None if above is None else backstage.store.runs.get(above)
    if record is None:
        raise _unknown(run_id)
    return []


def _unknown(run_id: str) -> UnknownRunError:
    return UnknownRunError(f"run {run_id!r} is not one of this session's: ask for its children to see those that are")


async def kill(session: SessionActor, run_id: RunId, reason: str) -> KillReport:
    """End a run and everything below it; usage and what was said so far are kept."""
    runs = owned(session, run_id)
    backstage = session.backstage
    if not runs:
        return KillReport((), (run_id,))
    for run in runs:
        # For the record, and for a host that dies before the end is committed.
        backstage.store.transaction(RequestCancel(run.packet.run_id, backstage.now(), reason))
    ending = killed("killed", reason)
    top = [run for run in runs if run.packet.run_id == run_id]
    for run in top or runs:
        run.end(ending)
    if any(run.ending is not None and run.ending.reason is EndReason.COMPLETED for run in top):
        # Any other end takes what is below along; one that is just completing leaves it working.
        for run in runs:
            run.end(ending)
    ended: list[RunId] = []
    others: list[RunId] = [] if top else [run_id]
    for run in runs:
        result = await settled(run)
        by_kill = result is not None and result.end_reason is EndReason.KILLED
        (ended if by_kill else others).append(run.packet.run_id)
    return KillReport(tuple(ended), tuple(others))


async def settled(run: LiveRun) -> SubAgentResult | None:
    """The run's result; None when it could not be stored, or was never accepted."""
    try:
        return await run.settled
    except Exception:  # noqa: BLE001 - whoever holds the handle sees it; here only the end matters
        return None


def steer(session: SessionActor, run_id: RunId, message: str) -> None:
    """Give a running child a new instruction; depth, packet, deadline and budget stay."""
    run = next((run for run in owned(session, run_id) if run.packet.run_id == run_id), None)
    if run is None or run.ending is not None:
        raise SteerError(f"run {run_id} has ended: follow up, or spawn another")
    if run.queued and run.is_follow_up:
        raise SteerError(f"run {run_id} has not begun: its sub-agent is still at work on what it was told before")
    message = admitted(session.backstage, session.key, run.packet.session_key, message)
    now = session.backstage.clock.monotonic()
    if run.steered_at is not None and now - run.steered_at < STEER_EVERY_SECONDS:
        raise SteerError(f"run {run_id} was steered less than {STEER_EVERY_SECONDS:g} s ago: wait a moment")
    run.steered_at = now
    run.steer(message)


async def wait(
    session: SessionActor, run_ids: Sequence[RunId], *, first: bool = False, as_answer: bool = False
) -> dict[RunId, SubAgentResult]:
    """The results of these runs, once all of them are there, or with ``first`` once one is.

    ``as_answer``: a tool of the session's model waits, so that its answer is how they come in.
    """
    if not 1 <= len(run_ids) <= MOST_WAITED_FOR:
        raise ValueError(f"{len(run_ids)} runs are not allowed: wait for 1 to {MOST_WAITED_FOR}")
    alive: dict[RunId, LiveRun | None] = {}
    for run_id in run_ids:
        live = next((run for run in owned(session, run_id) if run.packet.run_id == run_id), None)
        alive[run_id] = live or session.backstage.unsettled(run_id)
    if as_answer:
        session.claim_answers(run_ids)
    try:
        return await _results(session, alive, first=first)
    except BaseException:
        if as_answer:
            session.disclaim_answers(run_ids)
        raise


async def _results(
    session: SessionActor, runs: Mapping[RunId, LiveRun | None], *, first: bool
) -> dict[RunId, SubAgentResult]:
    """What these runs ended with, or end with; one that is not alive any more has it in the store."""
    stored = {run_id: session.backstage.store.runs.result(run_id) for run_id, live in runs.items() if live is None}
    results = {run_id: result for run_id, result in stored.items() if result is not None}
    pending = {asyncio.ensure_future(settled(live)): run_id for run_id, live in runs.items() if live is not None}
    try:
        if pending and not (first and results):
            until = asyncio.FIRST_COMPLETED if first else asyncio.ALL_COMPLETED
            done, _ = await asyncio.wait(pending, return_when=until)
            for task in done:
                result = task.result()
                if result is not None:
                    results[pending[task]] = result
    finally:
        for task in pending:
            task.cancel()
    return results


def children(session: SessionActor) -> list[ChildReport]:
    """Those that have not finished, in order of acceptance."""
    now = session.backstage.now()
    return [
        ChildReport(
            run_id=run.packet.run_id,
            session_key=run.packet.session_key,
            label=run.packet.label,
            runner=run.packet.runner,
            state="ending" if run.ending is not None else "queued" if run.queued else "running",
            depth=run.packet.depth,
            age_ms=now - run.accepted_at,
            steps=run.steps,
            usage=run.usage,
        )
        for run in session.roster.unfinished.values()
        if run.durable
    ]


async def release(session: SessionActor, session_key: SessionKey) -> bool:
    """Let a kept child go, ending what it still does; answers whether it was there to be released."""
    backstage = session.backstage
    runs = backstage.store.runs.find(session_key=session_key).items
    unknown = UnknownRunError(f"session {session_key!r} is not one of this session's sub-agents")
    if not runs:
        raise unknown
    try:
        owned(session, runs[0].run_id)
    except UnknownRunError:
        raise unknown from None  # a stranger's: its run is not to be named
    # First, so that nothing more is said to it while its last words are waited for.
    (first,) = await backstage.store.transaction(CompleteSession(session_key, backstage.now()))
    # The last one first: a follow-up that waits must not begin because the run before it is ended.
    for run in [run for run in reversed(backstage.live.values()) if run.packet.session_key == session_key]:
        await kill(session, run.packet.run_id, "released")
    return bool(first)
