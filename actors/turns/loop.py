"""Model call, tools in parallel, results, and again; until there is an answer, or a reason that there is none."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from understudy.actors.models._room import Room
from understudy.actors.models.errors import ProviderError
from understudy.actors.models.retry import retrying
from understudy.actors.tools.outcome import ToolOutcome
from understudy.actors.turns.compaction import Compactor
from understudy.actors.turns.cycles import CycleDetector
from understudy.actors.turns.markup import printed_tool_call
from understudy.protocol import Failure
from understudy.protocol.model import ModelRequest, TextDelta, ToolCall, Truncated, Turn
from understudy.protocol.runner import Asking, Final, Said, ToolEnded, ToolStarted, Touched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from understudy.actors.clock import Clock
    from understudy.actors.tools.context import ToolContext
    from understudy.actors.tools.toolbox import Toolbox
    from understudy.actors.turns.compaction import Window
    from understudy.protocol.ending import ErrorKind
    from understudy.protocol.model import Model
    from understudy.protocol.runner import RunnerEvent

logger = logging.getLogger("understudy")

MOST_REASKS = 2
"""So often a model that said nothing is asked again."""

EMPTY = "Your last answer was empty. Write your final answer now, or call a tool."
PRINTED = "You printed a tool call as text. Call the tool properly, or write your final answer without such markup."
CIRCLE = (
    "You have made the same tool calls with the same results several times. Do something else, or write your final "
    "answer with what you have."
)
WRAP_UP = (
    "You have used all your steps. Write your final answer now, with what you have: what is done, what is not, and "
    "what the next agent should do."
)

# What a call's failure is to whoever asked for the work; everything else is the provider's.
_FAILURES: Mapping[str, ErrorKind] = {"context_full": "context_full", "runaway": "invalid_output"}

Approve: TypeAlias = Callable[[ToolCall], Awaitable[bool] | bool]
"""Asked before a tool that needs approval runs; the answer is for this one call."""


class Voice(Protocol):
    """For whom the loop speaks: a child's run, or a session of the host's."""

    def emit(self, event: RunnerEvent) -> None:
        """Something happened."""

    def answer(self, turns: Sequence[Turn]) -> None:
        """The tools' results, all of one exchange: stored together."""

    async def flush(self) -> None:
        """Return when everything said so far is durable."""

    async def boundary(self) -> list[Turn]:
        """Between two model calls: what has come in meanwhile and belongs into the history, stored already."""

    def aside(self) -> str:
        """What the next model call gets besides the history; empty when there is nothing."""

    def objective(self) -> str | None:
        """What all of it is for: said again after a compaction."""

    def files(self) -> Sequence[str]:
        """Files that were used, most recent first."""

    async def compacted(self, summary: str, kept: int) -> None:
        """``summary`` stands for all turns but the newest ``kept``: queue that before the first await."""


@dataclass(frozen=True, slots=True)
class Means:
    """What a loop works with."""

    model: Model
    toolbox: Toolbox
    tools: ToolContext
    clock: Clock
    max_steps: int
    window: Window
    system: str | None = None
    model_name: str | None = None
    deadline: float | None = None
    """In the clock's monotonic seconds: no retry begins after it."""
    approve: Approve | None = None
    on_attempt: Callable[[ProviderError | None], None] = lambda _error: None


@dataclass(slots=True)
class _Answer:
    """One answer of the model."""

    text: str
    calls: tuple[ToolCall, ...]
    truncated: bool


class TurnLoop:
    """One conversation, from where it stands to its next answer."""

    __slots__ = ("_compactor", "_cycles", "_draft", "_means", "_reasks", "_repaired", "_voice", "_warned")

    def __init__(self, means: Means, voice: Voice) -> None:
        self._means = means
        self._voice = voice
        self._draft = ""
        """What there was of an answer that broke off."""
        self._cycles: CycleDetector | None = None  # made with the first tool call: many a child makes none
        self._compactor = Compactor(means, voice)
        self._warned = False
        self._reasks = 0
        self._repaired = False

    async def run(self, history: list[Turn]) -> Final:
        """Go on from ``history``, which grows; gives the answer, which is for the caller to store."""
        steps = 0
        self._means.window.asked = history[-1] if history and history[-1].role == "user" else None
        while True:
            history += await self._voice.boundary()
            await self._compactor.if_due(history)
            last = steps >= self._means.max_steps
            if last:
                self._say(history, Turn("user", WRAP_UP))
            try:
                answer = await self._heard(history, with_tools=not last)
            except ProviderError as error:
                return self._failed(error, history)
            steps += 1
            if last:
                return Final(answer.text, _failure("step_limit", f"max_steps={self._means.max_steps} was reached"))
            if answer.calls:
                problem = await self._use_tools(history, answer)
                if problem is not None:
                    return Final(answer.text, problem)
                continue
            final = self._judge(history, answer)
            if final is not None:
                return final

    # -- the model ------------------------------------------------------------------------------------

    async def _heard(self, history: list[Turn], *, with_tools: bool) -> _Answer:
        """Ask; a provider that finds the history too long is asked once more, with a shorter one."""
        try:
            return await self._ask(history, with_tools=with_tools)
        except ProviderError as error:
            if error.kind != "context_full" or not await self._compactor.rescue(history):
                raise
        return await self._ask(history, with_tools=with_tools)

    async def _ask(self, history: list[Turn], *, with_tools: bool) -> _Answer:
        means = self._means
        system = () if means.system is None else (Turn("system", means.system),)
        aside = self._voice.aside()
        shown = self._compactor.shown(history)
        turns = (*system, *shown, Turn("user", aside)) if aside else (*system, *shown)
        request = ModelRequest(turns, means.toolbox.specs() if with_tools else (), means.model_name)
        # Not a list: a million small pieces would take many times what they say.
        text = io.StringIO()
        room = Room("model")  # a model of the host's own may know no limit
        calls: list[ToolCall] = []
        truncated = False
        answer = retrying(
            partial(means.model.complete, request),
            clock=means.clock,
            deadline=means.deadline,
            on_attempt=means.on_attempt,
        )
        try:
            # Closed here and now, whatever happens: nobody pays for words that nobody reads.
            async with contextlib.aclosing(answer):
                async for event in answer:
                    if isinstance(event, ToolCall):
                        room.take_call(event.id, event.name)
                        calls.append(event)
                    elif isinstance(event, Truncated):
                        truncated = True
                    else:
                        if isinstance(event, TextDelta):
                            room.take(event.text)
                            text.write(event.text)
                        self._voice.emit(event)
        except ProviderError:
            self._draft = text.getvalue()
            raise
        return _Answer(text.getvalue(), tuple(calls), truncated)

    def _failed(self, error: ProviderError, history: list[Turn]) -> Final:
        """What there is of the answer that broke off, else the last one that was whole."""
        said = self._draft
        if not said.strip():
            said = next((turn.text for turn in reversed(history) if turn.role == "assistant" and turn.text), "")
        kind = _FAILURES.get(error.kind, "provider")
        return Final(said, Failure(kind=kind, message=str(error), retryable=error.retryable))

    def _judge(self, history: list[Turn], answer: _Answer) -> Final | None:
        """An answer without tool calls: is it the final one? None when the model was asked again."""
        if not answer.text.strip():
            if self._reasks >= MOST_REASKS:
                return Final("", _failure("empty_output", f"the model said nothing, {MOST_REASKS + 1} times"))
            self._reasks += 1
            self._say(history, Turn("user", EMPTY))
            return None
        if printed_tool_call(answer.text, (spec.name for spec in self._means.toolbox.specs())):
            if self._repaired:
                return Final(answer.text, _failure("invalid_output", "the model prints tool calls as text"))
            self._repaired = True
            self._say(history, Turn("assistant", answer.text))
            self._say(history, Turn("user", PRINTED))
            return None
        if answer.truncated:
            return Final(answer.text, _failure("invalid_output", "the answer was cut off by the model's token limit"))
        return Final(answer.text)

    # -- tools ----------------------------------------------------------------------------------------

    async def _use_tools(self, history: list[Turn], answer: _Answer) -> Failure | None:
        """Run what was asked for, all at once; a failure means that the model goes in circles."""
        self._say(history, Turn("assistant", answer.text, answer.calls))
        # Durable before anything is delegated: a child can inherit the very turn that made it.
        await self._voice.flush()
        outcomes = await asyncio.gather(*(self._call(call) for call in answer.calls))
        # In the order of the calls, not in that of their ends: the same run touches in the same order every time.
        for outcome in outcomes:
            for receipt in outcome.receipts:
                self._voice.emit(Touched(receipt.path, receipt.mode, receipt.ok, receipt.observed))
        answers = [
            Turn("tool", outcome.text, tool_call_id=call.id)
            for call, outcome in zip(answer.calls, outcomes, strict=True)
        ]
        history += answers
        self._voice.answer(answers)
        if self._cycles is None:
            self._cycles = CycleDetector()
        if not self._cycles.add(answer.calls, [outcome.text for outcome in outcomes]):
            return None
        if self._warned:
            return _failure("invalid_output", "the model repeats the same tool calls with the same results")
        self._warned = True
        self._cycles.forget()
        self._say(history, Turn("user", CIRCLE))
        return None

    async def _call(self, call: ToolCall) -> ToolOutcome:
        means, voice = self._means, self._voice
        tool = means.toolbox.get(call.name)
        if tool is not None and tool.approval and not await self._approved(call):
            return ToolOutcome(f"{call.name} was not run: a person did not approve this call", is_error=True)
        voice.emit(ToolStarted(call.id, call.name, None if tool is None else tool.timeout_ms))
        try:
            outcome = await means.toolbox.call(call.name, call.arguments, means.tools)
        finally:
            voice.emit(ToolEnded(call.id))
        return outcome

    async def _approved(self, call: ToolCall) -> bool:
        """Ask a person about this very call; nobody to ask means no. The idle clock stands still meanwhile."""
        approve = self._means.approve
        if approve is None:
            return False
        self._voice.emit(Asking("asked"))
        try:
            answer = approve(call)
            return await answer if isinstance(answer, Awaitable) else answer
        except Exception:
            logger.exception("the approval of %s could not be asked for", call.name)
            return False
        finally:
            self._voice.emit(Asking("answered"))

    def _say(self, history: list[Turn], turn: Turn) -> None:
        history.append(turn)
        self._voice.emit(Said(turn))


def _failure(kind: ErrorKind, message: str) -> Failure:
    return Failure(kind=kind, message=message)
