"""The third commit point: a result is merged, narrated and acknowledged in one transaction, exactly once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential

from understudy.actors.clock import sleep
from understudy.persistence import StoreClosedError, StoreError
from understudy.persistence.operations import DeadLetter, DeliveryFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenacity import RetryCallState

    from understudy.actors.backstage import Backstage
    from understudy.actors.live_run import LiveRun
    from understudy.actors.session import SessionActor
    from understudy.protocol import SessionKey, SpawnPacket, SubAgentResult
    from understudy.protocol.spawn import ReplyTo

logger = logging.getLogger("understudy")


async def deliver(run: LiveRun, result: SubAgentResult, *, merged: bool = False) -> None:
    """Bring the result to the parent, or to whoever is left above it; then tell all who wait for it.

    ``merged``: it went in with its end already.
    """
    session = run.session.living()
    if merged:
        run.session.delivered(result, announce=run.announce, packet=run.packet)
    elif run.waited and session is run.session and not session.sealed:
        # It is a tool's answer: merged together with that answer, so that a crash between the two loses neither.
        session.owed.append(result)
    else:
        if session.exchange is not None and session.exchange.under_way:
            # The merge waits for the tools of the parent's model, and one of those may wait for this very result.
            run.settled.set(result)
        await bring(session, result, announce=run.announce, packet=run.packet)
    tell(run.reply_to, result)
    run.session.settle(run, result)


def tell(listeners: Iterable[ReplyTo], message: object) -> None:
    """Reply to the host's own actors. They live only as long as it wants; the session knows all the same."""
    for listener in listeners:
        try:
            listener.tell(message)
        except Exception as error:  # noqa: BLE001 - whatever has a tell may be one
            logger.warning("%r could not be told of %s: %s", listener, type(message).__name__, error)


async def bring(
    session: SessionActor, result: SubAgentResult, *, announce: bool, packet: SpawnPacket | None = None
) -> bool:
    """Merge ``result`` into ``session``; what cannot be merged becomes a dead letter and is never dropped.

    Answers whether it was merged now. ``packet`` is the run's, where it is at hand.
    """
    if session.sealed:
        await bury(session.backstage, session.key, result, "the session is closed and nobody above it is left")
        return False
    try:
        merged = await session.merge(result)
    except StoreClosedError:
        return False  # the outbox has it: the next start delivers
    except StoreError as error:
        merged = await _again(session, result, error)
    if merged:
        session.delivered(result, announce=announce, packet=packet)
    return merged


async def _again(session: SessionActor, result: SubAgentResult, error: StoreError) -> bool:
    """Try again by the configured patience; then give up without losing anything."""
    backstage, config = session.backstage, session.backstage.config
    give_up = backstage.clock.monotonic() + config.delivery_max_age_ms / 1000
    session.stuck.add(result.run_id)

    def patience_is_over(state: RetryCallState) -> bool:
        # The first attempt was the caller's.
        tried = state.attempt_number + 1
        return backstage.closing or tried >= config.delivery_max_attempts or backstage.clock.monotonic() >= give_up

    wait = wait_exponential(multiplier=config.delivery_backoff_ms / 1000, max=config.delivery_max_age_ms / 1000)
    await sleep(backstage.clock, config.delivery_backoff_ms / 1000)
    try:
        async for trying in AsyncRetrying(
            sleep=lambda seconds: sleep(backstage.clock, seconds),
            wait=wait,
            stop=patience_is_over,
            retry=retry_if_exception_type(StoreError),
            reraise=True,
        ):
            with trying:
                _note(session, result, error)
                merged = await session.merge(result)
    except StoreError as last:
        await bury(backstage, session.key, result, f"it could not be merged: {last}")
        return False
    session.stuck.discard(result.run_id)
    return merged


def _note(session: SessionActor, result: SubAgentResult, error: StoreError) -> None:
    backstage = session.backstage
    # For whoever looks at the outbox; where even this cannot be written, the log has it.
    logger.warning("run %s could not be delivered yet: %s", result.run_id, error)
    backstage.store.transaction(
        DeliveryFailed(result.run_id, str(error), backstage.now() + backstage.config.delivery_backoff_ms)
    )


async def bury(backstage: Backstage, session_key: SessionKey, result: SubAgentResult, reason: str) -> None:
    """Set a result aside as a dead letter: listed, inspectable, replayable."""
    logger.warning("run %s became a dead letter: %s", result.run_id, reason)
    letter = DeadLetter(backstage.now(), reason, result.model_dump_json(exclude_none=True), session_key, result.run_id)
    try:
        await backstage.store.transaction(letter)
    except StoreClosedError:
        return  # its outbox entry stands: the next start delivers, or buries it then
    except StoreError:
        # Its outbox entry stands: the next sweep, or the next start, delivers it, or buries it then.
        logger.exception("the dead letter of run %s could not be stored", result.run_id)
        backstage.stranded[result.run_id] = session_key
        return
    backstage.emit_about(result, "session:sub_agent_dead_lettered", session_key, reason=reason)
