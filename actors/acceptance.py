"""The first commit point: a spawn is acknowledged only once it is durable."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from understudy.actors.hooks import call_hook
from understudy.actors.idempotency import conflict
from understudy.actors.parent_summary import summarise_parent
from understudy.persistence import DuplicateRunError, StoreError
from understudy.persistence.operations import AcceptRun, AppendTurns, OpenSession, StartRun
from understudy.protocol import Rejection, RunId
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from understudy.actors.hooks import Rollback
    from understudy.actors.live_run import LiveRun
    from understudy.persistence.operations import Operation

logger = logging.getLogger("understudy")


async def accept(run: LiveRun) -> bool:
    """Make the run durable and tell whoever asked; or undo everything and tell them why."""
    backstage, packet = run.backstage, run.packet
    if run.wants_summary:
        summary = await summarise_parent(run)
        packet = run.packet = packet.model_copy(update={"parent_summary": summary})
    rollback: Rollback | None = None
    if backstage.hooks.prepare_spawn is not None:
        rollback = await call_hook(backstage.kernel, backstage.hooks.prepare_spawn, packet)
        backstage.emit("session:sub_agent_spawn_prepared", run)
    # A follow-up that waits for its child is said when the child is free: not in the middle of what it does now.
    waits = run.is_follow_up and run.granted is not None
    said = () if waits else (AppendTurns(packet.session_key, run.accepted_at, (task_of(run),), packet.run_id),)
    try:
        await backstage.store.transaction(
            OpenSession(
                packet.session_key,
                at=run.accepted_at,
                agent_id=packet.agent_id,
                visibility=run.session.place.visibility,
                parent_session_key=packet.parent_session_key,
                root_session_key=packet.root_session_key,
                depth=packet.depth,
                runner=packet.runner,
                workspace_dir=packet.workspace_dir,
                cwd=packet.cwd,
            ),
            AcceptRun(
                packet,
                at=run.accepted_at,
                host=backstage.host,
                queued=run.granted is not None,
                announce=run.announce,
                is_follow_up=run.is_follow_up,
                idempotency_key=run.idempotency_key,
                digest=run.digest,
                started=run.granted is None,
            ),
            *said,
            point="accept",
        )
    except Exception as error:  # noqa: BLE001 - a commit hook may raise anything
        if not _committed(run):
            await _unwind(run, error, rollback)
            return False
    run.durable = True
    _acknowledge(run)
    return True


def task_of(run: LiveRun) -> Turn:
    """What the run is told first."""
    return Turn("user", run.packet.task)


def _committed(run: LiveRun) -> bool:
    """Whether the acceptance stands although its caller was told otherwise."""
    try:
        return run.backstage.store.runs.get(run.packet.run_id) is not None
    except StoreError:
        return False


def _acknowledge(run: LiveRun) -> None:
    for reply in run.replies:
        reply(run)
    run.replies = ()
    packet, backstage = run.packet, run.backstage
    if not backstage.bus.subscriptions:
        return
    backstage.emit("session:sub_agent_spawned", run, label=packet.label, runner=packet.runner)
    backstage.emit("session:sub_agent_spawn_queued" if run.queued else "session:sub_agent_started", run)


async def _unwind(run: LiveRun, error: Exception, rollback: Rollback | None) -> None:
    """Leave nothing behind: no slot, no actor, and whatever the hook had prepared is undone."""
    run.session.forget(run, error)
    if rollback is not None:
        await call_hook(run.backstage.kernel, rollback)
    if isinstance(error, DuplicateRunError):
        if error.digest == run.digest:
            run.session.answer_duplicate(RunId(error.run_id), run.replies, run.reply_to)
            return
        rejection = conflict(str(run.idempotency_key), error.run_id)
    else:
        logger.warning("spawn %s was not accepted: %s", run.packet.run_id, error)
        rejection = Rejection(
            reason="store_unavailable",
            message=f"the spawn could not be made durable, so it was not accepted: {error}",
        )
    run.session.refuse(rejection, run.replies, run.reply_to)


async def start_queued(run: LiveRun) -> bool:
    """Wait for a slot, then start for good; False when the run ended while it waited."""
    backstage, packet = run.backstage, run.packet
    assert run.granted is not None
    await run.granted
    now = backstage.now()
    run.started_at = now
    run.packet = packet.model_copy(update={"deadline_at": now + packet.timeout_ms})
    start: tuple[Operation, ...] = (
        StartRun(packet.run_id, now, backstage.host, run.generation, run.packet.deadline_at),
    )
    if run.is_follow_up:
        start += (AppendTurns(packet.session_key, now, (task_of(run),), packet.run_id),)
    try:
        await backstage.store.transaction(*start)
    except StoreError:
        # The acceptance is durable, so the run goes on; its end will say when it began.
        logger.warning("the start of run %s could not be stored yet", packet.run_id, exc_info=True)
        run.unstored += start
    if run.ending is not None:
        return False
    backstage.emit("session:sub_agent_started", run)
    return True
