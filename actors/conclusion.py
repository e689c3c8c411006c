"""The second commit point: a run's end, its full result and its outbox entry, together."""

from __future__ import annotations

import logging
import os.path
from pathlib import Path
from typing import TYPE_CHECKING

from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential

from understudy.actors.clock import sleep
from understudy.actors.delivery import deliver
from understudy.actors.endings import killed
from understudy.actors.hooks import call_hook
from understudy.persistence import StoreClosedError, StoreError
from understudy.persistence.operations import AppendTurns, FinishRun
from understudy.protocol import EndReason, RecentFile, SubAgentResult
from understudy.protocol.condense import condense
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from understudy.actors.endings import Ending
    from understudy.actors.live_run import LiveRun

logger = logging.getLogger("understudy")

# A store that is full or locked is tried again, ever more slowly, for as long as the host lives.
_LONGEST_WAIT = 30
_TRIES_WHILE_CLOSING = 3


async def conclude(run: LiveRun) -> None:
    """From a claimed end to a delivered result."""
    assert run.ending is not None
    run.seen_out = True
    ending = run.ending
    if run.nested is not None and ending.reason is not EndReason.COMPLETED:
        # First those below: their results are merged here, so their files and usage are part of this one.
        await run.nested.end_children(killed("parent_stopped", f"its parent run {run.packet.run_id} ended"))
    if run.nested is not None:
        run.nested.seal()
    if ending.output is None:
        full = run.output
    else:
        full = ending.output
        run.steps += 1  # the answer itself
    await run.flush()
    try:
        result = await _commit(run, _result(run, ending, full), full)
    except StoreError as error:
        run.session.ended(run)
        run.session.settle(run, error)
        return
    run.session.ended(run)
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
    if backstage.hooks.on_ended is not None:
        backstage.task(_ended(run, result))
    await deliver(run, result)


async def _ended(run: LiveRun, result: SubAgentResult) -> None:
    assert run.backstage.hooks.on_ended is not None
    await call_hook(run.backstage.kernel, run.backstage.hooks.on_ended, result)


def _result(run: LiveRun, ending: Ending, full: str) -> SubAgentResult:
    """What the parent gets: truthful, and small enough."""
    packet, backstage = run.packet, run.backstage
    output, condensation = condense(full, backstage.config.max_result_tokens)
    completed = ending.reason is EndReason.COMPLETED
    # Not Path.exists, which raises where a name is too long or a folder may not be looked into.
    outputs = {path: os.path.exists(Path(packet.cwd, path)) for path in packet.expected_outputs}  # noqa: PTH110
    return SubAgentResult(
        run_id=packet.run_id,
        generation=run.generation,
        session_key=packet.session_key,
        parent_session_key=packet.parent_session_key,
        label=packet.label,
        end_reason=ending.reason,
        partial=not completed and bool(output.strip()),
        failure=ending.failure,
        output=output,
        condensation=condensation,
        recent_files=tuple([RecentFile(path=path, provenance=how) for path, how in run.files.items()]),
        dropped_files=run.dropped_files,
        verified_outputs=tuple([path for path, there in outputs.items() if there]),
        missing_outputs=tuple([path for path, there in outputs.items() if not there]),
        usage=run.usage,
        steps=run.steps,
        runtime_ms=0 if run.started_at is None else max(0, backstage.now() - run.started_at),
        full_ref=backstage.full_reference(packet.session_key, packet.run_id),
        kept=packet.cleanup == "keep",
        is_follow_up=run.is_follow_up,
    )


async def _commit(run: LiveRun, result: SubAgentResult, full: str) -> SubAgentResult:
    """Commit the end; gives the result that stands, which is another's where another end came first."""
    backstage = run.backstage
    now = backstage.now()
    answer = Turn("assistant", full)
    operations = (
        *run.unstored,
        FinishRun(
            result,
            now,
            full_output=None if result.output == full else full,
            deliver_to=run.session.living().key,
        ),
        *((AppendTurns(result.session_key, now, (answer,), result.run_id),) if full.strip() else ()),
    )

    async def attempt() -> SubAgentResult:
        try:
            won = (await backstage.store.transaction(*operations, point="terminal"))[len(run.unstored)]
        except StoreError:
            raise
        except Exception as error:
            stored = backstage.store.runs.result(result.run_id)
            if stored is None:
                raise StoreError(f"the end of run {result.run_id} was not committed: {error}") from error
            return stored
        return result if won else backstage.store.runs.result(result.run_id) or result

    try:
        return await attempt()
    except StoreClosedError:
        raise
    except StoreError as error:
        logger.warning("the end of run %s could not be stored yet: %s", result.run_id, error)
    async for trying in AsyncRetrying(
        sleep=lambda seconds: sleep(backstage.clock, seconds),
        wait=wait_exponential(max=_LONGEST_WAIT),
        stop=lambda state: backstage.closing and state.attempt_number >= _TRIES_WHILE_CLOSING,
        retry=retry_if_exception_type(StoreError),
        reraise=True,
    ):
        with trying:
            stored = backstage.store.runs.result(result.run_id)
            return stored or await attempt()
    raise AssertionError("unreachable: the retry gives or raises")
