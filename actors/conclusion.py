"""The second commit point: a run's end, its full result and its outbox entry, together."""

from __future__ import annotations

import logging
import os.path
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenacity import AsyncRetrying, retry_if_exception, wait_exponential

from understudy.actors.clock import sleep
from understudy.actors.condensing import condensed
from understudy.actors.delivery import deliver
from understudy.actors.endings import killed
from understudy.actors.hooks import call_hook
from understudy.actors.live_run import below
from understudy.persistence import StoreClosedError, StoreError
from understudy.persistence.operations import AppendTurns, FinishRun
from understudy.protocol import EndReason, RecentFile, SubAgentResult
from understudy.protocol.condense import condense
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from understudy.actors.endings import Ending
    from understudy.actors.live_run import LiveRun
    from understudy.persistence._commit import Points
    from understudy.persistence.operations import MergeResult, Operation
    from understudy.protocol import SpawnPacket

logger = logging.getLogger("understudy")

# A store that is full or locked is tried again, ever more slowly, for as long as the host lives.
_LONGEST_WAIT = 30
_TRIES_WHILE_CLOSING = 3


async def conclude(run: LiveRun) -> None:
    """From a claimed end to a delivered result."""
    assert run.ending is not None
    run.seen_out = True
    ending = run.ending
    if run.exchange is not None:
        run.exchange.end()  # those who wait for the model's tools to answer wait in vain
    if run.nested is not None and ending.reason is not EndReason.COMPLETED:
        # First those below: their results are merged here, so their files and usage are part of this one.
        await run.nested.end_children(killed("parent_stopped", f"its parent run {run.packet.run_id} ended"))
    if run.nested is not None:
        await run.nested.take_in()
        await run.nested.deliver_owed()
        run.nested.seal()
    if ending.output is None:
        full = run.output
    else:
        full = ending.output
        run.steps += 1  # the answer itself
    if run.unconfirmed:
        await run.flush()
    try:
        now = run.backstage.now()
        own = _result(run, ending, full, now)
        # A parent that can take the result in as it is does so in the same commit.
        merge = run.session.merge_of(own) if _goes_straight_in(run, own) else None
        result, merged = await _commit(run, own, full, now, merge)
    except Exception as error:  # noqa: BLE001 - the runtime is closing, and the store takes no more
        run.session.ended(run)
        run.session.settle(run, error if isinstance(error, StoreError) else StoreError(str(error)))
        return
    run.session.ended(run)
    backstage = run.backstage
    if not merged and _wants_condensing(run, result):
        # Only now: the end is safe and the slot is free, whatever a model makes of the result.
        result = await condensed(run, result, full if result is own else None)
    if backstage.bus.subscriptions:
        _tell(run, result)
    if backstage.hooks.on_ended is not None:
        backstage.task(_ended(run, result))
    await deliver(run, result, merged=merged)


def _wants_condensing(run: LiveRun, result: SubAgentResult) -> bool:
    return result.condensation.level > 1 or run.backstage.config.condensation_strategy == "always"


def _goes_straight_in(run: LiveRun, result: SubAgentResult) -> bool:
    """Whether nothing stands between the end and its delivery: no model to shorten it, no tool that waits for it.

    Nor a run that it is delivered to: that one may end before the commit, and must then know what it still gets.
    """
    session = run.session
    exchange = session.exchange
    return (
        session.owner is None
        and (exchange is None or not exchange.under_way)
        and not (run.waited or session.sealed or _wants_condensing(run, result))
    )


def _tell(run: LiveRun, result: SubAgentResult) -> None:
    backstage = run.backstage
    backstage.emit("session:sub_agent_completed", run, status=result.status)
    backstage.emit(
        "session:sub_agent_lifecycle_ended",
        run,
        end_reason=result.end_reason,
        runtime_ms=result.runtime_ms,
        tokens=result.usage.total_tokens,
        cost_usd=result.usage.cost_usd,
        condensation_level=result.condensation.level,
        result_path=result.full_ref,
    )


async def _ended(run: LiveRun, result: SubAgentResult) -> None:
    assert run.backstage.hooks.on_ended is not None
    await call_hook(run.backstage.kernel, run.backstage.hooks.on_ended, result)


def _result(run: LiveRun, ending: Ending, full: str, now: int) -> SubAgentResult:
    """What the parent gets: truthful, and small enough."""
    packet, backstage = run.packet, run.backstage
    output, condensation = condense(full, backstage.config.max_result_tokens, backstage.estimator)
    # What most results do not have is only given where there is some: each field costs its validation.
    more: dict[str, Any] = {}
    if ending.reason is not EndReason.COMPLETED:
        more |= {"failure": ending.failure, "partial": bool(output.strip())}
    if run.files or run.dropped_files:
        files = tuple([RecentFile(path=path, provenance=how) for path, how in run.files.items()])
        more |= {"recent_files": files, "dropped_files": run.dropped_files}
    if packet.expected_outputs:
        more |= outputs_of(packet)
    return SubAgentResult(
        run_id=packet.run_id,
        generation=run.generation,
        session_key=packet.session_key,
        parent_session_key=packet.parent_session_key,
        label=packet.label,
        end_reason=ending.reason,
        output=output,
        condensation=condensation,
        usage=run.usage,
        steps=run.steps,
        runtime_ms=0 if run.started_at is None else max(0, now - run.started_at),
        full_ref=backstage.full_reference(packet.session_key, packet.run_id),
        kept=packet.cleanup == "keep",
        is_follow_up=run.is_follow_up,
        **more,
    )


def outputs_of(packet: SpawnPacket) -> dict[str, Any]:
    """Of the outputs that were expected: those that are on disk, those that are not, and those that are elsewhere."""
    verified, missing, outside = [], [], []
    for path in packet.expected_outputs:
        # Where it leads, links included: what lies outside is not even looked for.
        place = os.path.realpath(Path(packet.cwd, path))
        if not any(below(place, root) for root in (packet.cwd, packet.workspace_dir)):
            outside.append(path)
            missing.append(path)
        # os.path: a path that cannot even be looked for is not there. Path.exists would raise.
        elif os.path.exists(place):  # noqa: PTH110
            verified.append(path)
        else:
            missing.append(path)
    return {
        "verified_outputs": tuple(verified),
        "missing_outputs": tuple(missing),
        "outside_outputs": tuple(outside),
    }


async def _commit(
    run: LiveRun, result: SubAgentResult, full: str, now: int, merge: MergeResult | None
) -> tuple[SubAgentResult, bool]:
    """Commit the end, and ``merge`` with it.

    Gives the result that stands, which is another's where another end came first; and whether it was merged.
    """
    backstage, session = run.backstage, run.session
    answer = Turn("assistant", full)
    operations = (
        *run.unstored,
        FinishRun(
            result,
            now,
            full_output=None if result.output == full else full,
            deliver_to=session.living().key,
            merge=merge,
        ),
        *((AppendTurns(result.session_key, now, (answer,), result.run_id),) if full.strip() else ()),
    )

    points: Points = "terminal" if merge is None else ("terminal", "merge")
    exchange = None if merge is None else session.exchange
    if exchange is not None:
        exchange.enter()  # the next call of the parent's model waits for this
    problem: Exception | None = None
    try:
        won = (await backstage.store.transaction(*operations, point=points))[len(run.unstored)]
        if won and merge is not None:
            session.took_in(result, merge)
    except StoreClosedError:
        raise
    except Exception as error:  # noqa: BLE001 - a commit hook may raise anything, before the commit or after it
        problem = error
    finally:
        if exchange is not None:
            exchange.arrived()
    if problem is not None:
        return await _commit_again(run, result, operations, merge, problem)
    return (result, merge is not None) if won else (backstage.store.runs.result(result.run_id) or result, False)


async def _commit_again(
    run: LiveRun,
    result: SubAgentResult,
    operations: tuple[Operation, ...],
    merge: MergeResult | None,
    error: Exception,
) -> tuple[SubAgentResult, bool]:
    """The same with patience; where an attempt failed after its commit, that commit stands.

    Without the merge: what delivers a result has a patience of its own, and an end must not wait for that.
    """
    backstage = run.backstage
    stored = backstage.store.runs.result(result.run_id)
    if stored is not None:
        record = backstage.store.runs.get(result.run_id)
        merged = merge is not None and record is not None and record.facts.delivered_at is not None
        if merged:
            run.session.took_in(stored, merge)
        return stored, merged
    operations = tuple(
        replace(operation, merge=None) if isinstance(operation, FinishRun) else operation for operation in operations
    )
    logger.warning("the end of run %s could not be stored yet: %s", result.run_id, error)
    async for trying in AsyncRetrying(
        sleep=lambda seconds: sleep(backstage.clock, seconds),
        wait=wait_exponential(max=_LONGEST_WAIT),
        stop=lambda state: backstage.closing and state.attempt_number >= _TRIES_WHILE_CLOSING,
        retry=retry_if_exception(lambda failure: not isinstance(failure, StoreClosedError)),
        reraise=True,
    ):
        with trying:
            stored = backstage.store.runs.result(result.run_id)
            if stored is None:
                await backstage.store.transaction(*operations, point="terminal")
                stored = backstage.store.runs.result(result.run_id)
            return stored or result, False
    raise AssertionError("unreachable: the retry gives or raises")
