"""The second level of condensation: a model puts a long result into fewer words.

The run's end is committed by then, with the form that needs no model, and its slot is free; so whatever goes wrong
here, the parent gets that one. A summary that succeeds takes its place in the store before it is delivered.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from understudy.actors.clock import within
from understudy.actors.models.retry import retrying
from understudy.actors.runners.model import ModelRunner
from understudy.persistence import StoreError
from understudy.persistence.operations import CondenseResult
from understudy.protocol import EndReason
from understudy.protocol.condense import fits, shortened
from understudy.protocol.model import ModelRequest, TextDelta, UsageReport
from understudy.protocol.result import Condensation
from understudy.protocol.summary import (
    LONGEST_ANSWER,
    MOST_PATHS,
    parse_summary,
    paths_in,
    retry_request,
    summary_request,
)
from understudy.protocol.truncate import truncate
from understudy.protocol.usage import NO_USAGE

if TYPE_CHECKING:
    from understudy.actors.live_run import LiveRun
    from understudy.protocol import SubAgentResult, Usage
    from understudy.protocol.model import Model, Turn
    from understudy.protocol.summary import ResultSummary

logger = logging.getLogger("understudy")

LONGEST_SECONDS = 60.0
"""How long a parent waits for a summary, retries included, before it gets head and tail."""
MOST_READ_TOKENS = 24_000
"""What the model is given of a huge original: its head and its tail, as any context window has room for."""
_ANSWERS = 2
_LONGEST_QUOTED = 4_000


@dataclass(frozen=True, slots=True)
class Condensing:
    """A result that is being condensed, and whose it is."""

    run: LiveRun
    task: asyncio.Task[ResultSummary]


@dataclass(frozen=True, slots=True)
class _Summarizer:
    """Who is asked, and under which name its health is known."""

    model: Model
    known_as: str
    model_name: str | None = None


async def condensed(run: LiveRun, result: SubAgentResult, full: str | None) -> SubAgentResult:
    """The result as it is delivered: by a model's summary where that is wanted and works, else as it was committed.

    ``full`` is what the run said; None where the committed end is another's.
    """
    summarizer = _summarizer(run, result)
    if summarizer is not None and full is not None:
        result = await _by_model(run, result, full, summarizer)
    short = result.condensation
    if short.level > 1:
        run.backstage.emit(
            "session:sub_agent_result_condensed",
            run,
            level=short.level,
            original_tokens=short.original_tokens,
            condensed_tokens=short.condensed_tokens,
        )
    return result


def _summarizer(run: LiveRun, result: SubAgentResult) -> _Summarizer | None:
    """The host's choice, the child's own model, or its parent's; None where nobody is to be asked."""
    backstage, packet = run.backstage, run.packet
    if backstage.config.condensation_strategy == "never" or backstage.closing or not result.output.strip():
        return None
    if result.end_reason in {EndReason.KILLED, EndReason.GHOST_SWEEP} or run.out_of_budget:
        return None  # whoever stopped it wants no more spent on it
    if backstage.summarizer is not None:
        return _Summarizer(backstage.summarizer, "summarizer")
    own = backstage.runners.get(packet.runner)
    if isinstance(own, ModelRunner):
        return _Summarizer(own.model, packet.runner, packet.model)
    place = run.session.living().place
    parents = backstage.runners.get(place.runner)
    return _Summarizer(parents.model, place.runner) if isinstance(parents, ModelRunner) else None


async def _by_model(run: LiveRun, result: SubAgentResult, full: str, summarizer: _Summarizer) -> SubAgentResult:
    backstage, run_id = run.backstage, run.packet.run_id
    spent: list[Usage] = []

    async def summary() -> ResultSummary:
        return await within(backstage.clock, LONGEST_SECONDS, _summarize(run, result, full, summarizer, spent))

    task = backstage.kernel.create_task(summary())
    backstage.condensing[run_id] = Condensing(run, task)
    try:
        await asyncio.wait([task])
    finally:
        task.cancel()
        del backstage.condensing[run_id]
    shorter = result
    if task.cancelled():
        logger.info("the summary of run %s was given up", run_id)
    elif (error := task.exception()) is not None:
        logger.warning("run %s was not condensed by a model: %s: %s", run_id, type(error).__name__, error)
    else:
        shorter = _with(task.result(), run, result)
    usage = sum(spent, NO_USAGE)
    if shorter is result and not usage.total_tokens:
        return result
    run.usage = run.usage + usage
    run.charge(usage)
    shorter = shorter.model_copy(update={"usage": result.usage + usage})
    try:
        (stands,) = await backstage.store.transaction(CondenseResult(shorter))
    except StoreError as error:
        logger.warning("the summary of run %s could not be stored: %s", run_id, error)
        return result
    return shorter if stands else result


async def _summarize(
    run: LiveRun, result: SubAgentResult, full: str, summarizer: _Summarizer, spent: list[Usage]
) -> ResultSummary:
    """Ask, and once more where the answer cannot be read; raises where that does not help."""
    backstage = run.backstage
    tokens = result.condensation.original_tokens
    text = full if tokens <= MOST_READ_TOKENS else shortened(full, MOST_READ_TOKENS, backstage.estimator, tokens=tokens)
    turns = summary_request(run.packet.task, text)
    deadline = backstage.clock.monotonic() + LONGEST_SECONDS
    for attempt in range(_ANSWERS):
        answer = await _ask(run, summarizer, turns, deadline, spent)
        try:
            summary = parse_summary(answer)
        except ValueError as error:
            if attempt == _ANSWERS - 1:
                raise
            turns += retry_request(truncate(answer, _LONGEST_QUOTED), str(error))
        else:
            break
    # Of all of it, not of what the model was shown; a thread's work where it is long.
    named = await backstage.kernel.pool.run(partial(paths_in, full))
    touched = [file.path for file in reversed(result.recent_files[-MOST_PATHS:])]
    return summary.with_paths(touched, named)


async def _ask(run: LiveRun, summarizer: _Summarizer, turns: list[Turn], deadline: float, spent: list[Usage]) -> str:
    backstage = run.backstage
    request = ModelRequest(tuple(turns), model=summarizer.model_name)
    said: list[str] = []
    size = 0
    async for event in retrying(
        lambda: summarizer.model.complete(request),
        clock=backstage.clock,
        deadline=deadline,
        on_attempt=lambda error: backstage.attempted(summarizer.known_as, run.packet.session_key, error),
    ):
        if isinstance(event, UsageReport):
            spent.append(event.usage)
        elif isinstance(event, TextDelta):
            said.append(event.text)
            size += len(event.text)
            if size > LONGEST_ANSWER:
                raise ValueError(f"the summary is longer than {LONGEST_ANSWER} characters")
    return "".join(said)


def _with(summary: ResultSummary, run: LiveRun, result: SubAgentResult) -> SubAgentResult:
    """The result in the summary's words, within the limit."""
    most, estimator = run.backstage.config.max_result_tokens, run.backstage.estimator
    summary = summary.within(lambda text: fits(text, most, estimator))
    output = summary.render()
    if not fits(output, most, estimator):
        output = shortened(output, most, estimator, tokens=estimator(output))
    condensation = Condensation(2, result.condensation.original_tokens, estimator(output))
    return result.model_copy(update={"output": output, "summary": summary, "condensation": condensation})
