"""Tools that wait for sub-agents: they always come back, and what they answer is not said a second time."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

from understudy.actors import AsyncRuntime, Runtime
from understudy.actors.runners import ModelRunner
from understudy.actors.testing import ManualClock, ScriptedModel
from understudy.actors.tools import tool
from understudy.protocol import Spawn
from understudy.protocol.model import TextDelta, ToolCall, UsageReport
from understudy.protocol.usage import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from understudy.actors import AsyncSession
    from understudy.protocol.model import ModelEvent, ModelRequest

MAIN = "agent:atlas:main"


class Delegating:
    """Spawns one child in the background, then does with its run id what the test says, then answers."""

    def __init__(self, then: Callable[[str], ToolCall]) -> None:
        self.then = then
        self.requests: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests.append(request)
        yield UsageReport(Usage(input_tokens=1))
        if len(self.requests) == 1:
            yield ToolCall("1", "sessions_spawn", {"task": "x", "agent": "child", "label": "look"})
        elif len(self.requests) == 2:
            answer = next(turn.text for turn in reversed(request.turns) if turn.role == "tool")
            started = re.search(r"run (\S+)\.", answer)
            assert started is not None
            yield self.then(started[1])
        else:
            yield TextDelta("done")


def waiting(run_id: str) -> ToolCall:
    return ToolCall("2", "subagents", {"action": "wait", "run_ids": [run_id]})


def killing(run_id: str) -> ToolCall:
    return ToolCall("2", "sessions_kill", {"run_id": run_id})


def told(texts: list[str]) -> int:
    return sum(text.count("[Subagent Result: look]") for text in texts)


@pytest.mark.parametrize("ended_first", [False, True])
@pytest.mark.parametrize("then", [waiting, killing])
def test_a_tool_that_waits_for_a_child_of_its_own_exchange_comes_back(
    then: Callable[[str], ToolCall], ended_first: bool
) -> None:
    """Also when the child ended while the model was speaking: its result is the tool's answer, and only that."""
    clock = ManualClock()
    gate = clock.gate()
    child = ScriptedModel([[gate, "found it"]])
    parent = Delegating(then)
    if ended_first:
        gate.open()
    with Runtime(clock=clock, runners={"default": ModelRunner(parent), "child": ModelRunner(child)}) as runtime:
        session = runtime.session(MAIN)
        loop = runtime._backstage.kernel.asyncio_loop
        thinking = asyncio.run_coroutine_threadsafe(session._prompt("Go"), loop)
        clock.run_until_idle()
        gate.open()
        clock.advance(60)
        assert thinking.result(timeout=30).output == "done"
        assert told([stored.turn.text for stored in session.transcript()]) == 1
        assert len(parent.requests) == 3
        (run,) = runtime.runs().items
        assert run.facts.delivered_at is not None
        assert runtime.store.problems() == []


def test_a_wait_that_names_a_stranger_takes_no_result_away() -> None:
    """The call fails as a whole, and the known child's result comes as a note."""

    def both(run_id: str) -> ToolCall:
        return ToolCall("2", "subagents", {"action": "wait", "run_ids": [run_id, "nobody-1"]})

    clock = ManualClock()
    gate = clock.gate()
    parent, child = Delegating(both), ScriptedModel([[gate, "found it"]])
    with Runtime(clock=clock, runners={"default": ModelRunner(parent), "child": ModelRunner(child)}) as runtime:
        session = runtime.session(MAIN)
        assert session.prompt("Go").output == "done"
        gate.open()
        clock.advance(60)
        assert told([stored.turn.text for stored in session.transcript() if stored.turn.role == "user"]) == 1


def test_a_tool_of_the_hosts_may_delegate_and_wait() -> None:
    """The result is there before it is merged: the merge waits for the very tool that waits for the result."""

    async def main() -> tuple[str, list[str], tuple[str, ...]]:
        sessions: list[AsyncSession] = []

        @tool(paths=())
        async def research(question: str) -> str:
            """Find something out."""
            handle = await sessions[0].spawn(Spawn(task=question, label="look", runner="child"))
            return (await handle.result()).output

        parent = ScriptedModel([ToolCall("1", "research", {"question": "Why?"}), "Because."])
        child = ScriptedModel([ToolCall("1", "file_read", {"path": "pyproject.toml"}), "It is so."])
        runners: dict[str, Any] = {"default": ModelRunner(parent, tools=[research]), "child": ModelRunner(child)}
        async with AsyncRuntime(clock=ManualClock(), runners=runners) as runtime:
            sessions.append(await runtime.session(MAIN))
            reply = await sessions[0].prompt("Go")
            answers = [turn.text for turn in parent.requests[1].turns if turn.role == "tool"]
            return reply.output, answers, sessions[0].working_context.recent_files

    output, answers, files = asyncio.run(main())
    assert (output, answers) == ("Because.", ["It is so."])
    assert [path.rsplit("/", 1)[1] for path in files] == ["pyproject.toml"]
