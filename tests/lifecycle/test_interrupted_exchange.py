"""A host dies, or a prompt is given up, between a model's tool calls and their results: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from _lives import Lives

from understudy.actors import AsyncRuntime
from understudy.actors.runners import ModelRunner
from understudy.actors.testing import ManualClock, ScriptedModel
from understudy.actors.tools import tool
from understudy.actors.turns.history import INTERRUPTED, closed
from understudy.protocol import Spawn
from understudy.protocol.model import ModelRequest, TextDelta, ToolCall

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from understudy.actors import Runtime
    from understudy.actors.tools import Tool
    from understudy.protocol.model import ModelEvent

KEY = "agent:atlas:main"
WAIT = 30

DELEGATE = ToolCall("d", "sessions_spawn", {"task": "Look", "label": "looker", "agent": "below", "wait": True})
STRIKE = ToolCall("s", "strike", {})


@pytest.fixture
def lives(tmp_path: Path) -> Lives:
    return Lives(tmp_path)


class Strikes:
    """A tool that counts how often it is run, and does not come back before its gate is open."""

    def __init__(self, clock: ManualClock) -> None:
        self.count = 0
        self.gate = clock.gate()

    def tool(self) -> Tool:
        @tool
        async def strike() -> str:
            """Do something that must not be done twice."""
            self.count += 1
            await self.gate
            return "struck"

        return strike


def well_formed(request: ModelRequest) -> bool:
    """Whether every tool call is answered exactly once, right after the turn that made it."""
    turns = list(request.turns)
    return closed(turns) == (turns, [])


def told_of(request: ModelRequest, words: str) -> int:
    """In how many turns the model reads this."""
    return sum(words in turn.text for turn in request.turns)


def test_a_resumed_child_gets_its_dangling_calls_closed_and_nothing_is_run_again(lives: Lives) -> None:
    """It is told that nobody knows what became of them."""
    strikes = Strikes(lives.clock)
    tools = [strikes.tool()]
    with lives.host(ModelRunner(ScriptedModel([STRIKE, "never"]), tools=tools)) as runtime:
        runtime.session(KEY, workspace=lives.folder).spawn(Spawn(task="work", label="worker", restart="resume"))
        lives.clock.run_until_idle()
        assert strikes.count == 1
        lives.crash()
        strikes.gate.open()
    after = ScriptedModel(["done"])
    with lives.host(ModelRunner(after, tools=tools)) as runtime:
        lives.clock.run_until_idle()
        (run,) = runtime.runs().items
        result = runtime.store.runs.result(run.run_id)
        assert result is not None
        assert (result.status, result.output) == ("completed", "done")
    assert strikes.count == 1
    (request,) = after.requests
    assert well_formed(request)
    assert [turn.text for turn in request.turns if turn.role == "tool"] == [INTERRUPTED]


def test_the_result_of_a_grandchild_that_was_waited_for_goes_to_the_resumed_child(lives: Lives, settled: bool) -> None:
    """Once, and to nobody else, whether it had settled before the crash or not."""
    strikes = Strikes(lives.clock)
    gate = lives.clock.gate()
    tools = [strikes.tool()]
    child = ModelRunner(ScriptedModel([[DELEGATE, STRIKE], "never"]), tools=tools)
    below = ModelRunner(ScriptedModel(["found it"] if settled else [["found ", gate]]))
    with lives.host(child, others={"below": below}) as runtime:
        runtime.session(KEY, workspace=lives.folder).spawn(Spawn(task="work", label="worker", restart="resume"))
        lives.clock.run_until_idle()
        assert strikes.count == 1
        lives.crash()
        gate.open()
        strikes.gate.open()
    after = ScriptedModel(["done"])
    with lives.host(ModelRunner(after, tools=tools), others={"below": ModelRunner(ScriptedModel([]))}) as runtime:
        lives.clock.run_until_idle()
        assert runtime.store.outbox.undelivered() == []
        assert runtime.store.problems() == []
        notes = [each.turn.text.partition("\n")[0] for each in runtime.session(KEY).transcript()]
        assert Counter(notes) == {"[Subagent Result: worker]": 1}
    (request,) = after.requests
    assert well_formed(request)
    assert told_of(request, "[Subagent Result: looker]") == 1
    assert told_of(request, "found it") == settled
    assert told_of(request, INTERRUPTED) == 2
    assert strikes.count == 1


def prompting(runtime: Runtime, lives: Lives) -> threading.Thread:
    session = runtime.session(KEY, workspace=lives.folder)
    thread = threading.Thread(target=lambda: session.prompt("Look"))
    thread.start()
    return thread


def test_a_prompt_after_a_crash_in_the_middle_of_one_sees_a_whole_history(lives: Lives, settled: bool) -> None:
    """Every call answered, the waited child's result there once; and it stays so in every life after."""
    strikes = Strikes(lives.clock)
    gate = lives.clock.gate()
    tools = [strikes.tool()]
    parent = ScriptedModel([[DELEGATE, STRIKE], "never"])
    below = ModelRunner(ScriptedModel(["found it"] if settled else [["found ", gate]]))
    with lives.host(ModelRunner(parent, tools=tools), others={"below": below}) as runtime:
        thread = prompting(runtime, lives)
        while strikes.count == 0 or not runtime.runs().items:
            lives.clock.run_until_idle()
        lives.clock.run_until_idle()
        lives.crash()
        gate.open()
        strikes.gate.open()
        thread.join(WAIT)
    lengths = []
    for life in range(3):
        after = ScriptedModel([f"answer {life}"])
        runner = ModelRunner(after, tools=tools)
        with lives.host(runner, others={"below": ModelRunner(ScriptedModel([]))}) as runtime:
            lives.clock.run_until_idle()
            session = runtime.session(KEY)
            assert session.prompt("And?").output == f"answer {life}"
            lengths.append(len(session.transcript()))
            assert runtime.store.outbox.undelivered() == []
        lives.crash()
        (request,) = after.requests
        assert well_formed(request)
        assert told_of(request, "[Subagent Result: looker]") == 1
        assert told_of(request, "found it") == settled
        assert told_of(request, INTERRUPTED) == 2
    assert strikes.count == 1
    assert lengths == [lengths[0], lengths[0] + 2, lengths[0] + 4], "answers are made up once"


@pytest.fixture(params=[True, False], ids=["settled", "at work"])
def settled(request: pytest.FixtureRequest) -> bool:
    """Whether the child that is waited for has finished when the host dies."""
    return bool(request.param)


def test_a_prompt_that_was_given_up_leaves_a_whole_history_and_its_childs_result_arrives(tmp_path: Path) -> None:
    """The host cancels a prompt while its tools run: the next one goes on from there."""

    async def main() -> None:
        clock = ManualClock()
        gate = clock.gate()
        parent = ScriptedModel([DELEGATE, "never mind", ToolCall("n", "list", {"path": "."}), "and now"])
        below = ScriptedModel([[gate, "found it"]])
        runners = {"default": ModelRunner(parent), "below": ModelRunner(below)}
        async with AsyncRuntime(clock=clock, runners=runners) as runtime:
            session = await runtime.session(KEY, workspace=tmp_path)
            asking = asyncio.ensure_future(session.prompt("Look"))
            await clock.run_until_idle_async()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await session.prompt("Forget it")
            assert well_formed(parent.requests[1])
            assert told_of(parent.requests[1], INTERRUPTED) == 1
            gate.open()
            await clock.run_until_idle_async()
            await session.prompt("And?")
            assert told_of(parent.requests[-1], "found it") == 1
            assert well_formed(parent.requests[-1])
            assert runtime.store.outbox.undelivered() == []

    asyncio.run(main())


class Delegating:
    """Starts a run in the background, and then waits for it by its name."""

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests.append(request)
        if len(self.requests) == 1:
            yield ToolCall("d", "sessions_spawn", {**DELEGATE.arguments, "wait": False})
        elif len(self.requests) == 2:
            run_id = request.turns[-1].text.split()[3].rstrip(".")
            yield ToolCall("w", "subagents", {"action": "wait", "run_ids": [run_id]})
        else:
            yield TextDelta("thanks")


def test_a_model_may_wait_for_what_it_started_in_the_background(tmp_path: Path) -> None:
    """The result is the answer of the tool that waits: it comes, it comes once, and wakes nobody."""

    async def main() -> None:
        clock = ManualClock()
        gate = clock.gate()
        parent, below = Delegating(), ScriptedModel([[gate, "found it"]])
        runners = {"default": ModelRunner(parent), "below": ModelRunner(below)}
        async with AsyncRuntime(clock=clock, runners=runners) as runtime:
            session = await runtime.session(KEY, workspace=tmp_path)
            asking = asyncio.ensure_future(session.prompt("Look"))
            await clock.run_until_idle_async()
            assert len(parent.requests) == 2
            gate.open()
            assert (await asking).output == "thanks"
            await clock.advance_async(10)
            assert len(parent.requests) == 3
            assert well_formed(parent.requests[2])
            assert told_of(parent.requests[2], "found it") == 1
            assert runtime.store.outbox.undelivered() == []

    asyncio.run(main())


def test_a_host_stops_although_a_resumable_childs_tools_are_at_work(lives: Lives) -> None:
    """A result that waits for the end of the exchange holds up nobody, and is there when the child resumes."""
    strikes = Strikes(lives.clock)
    tools = [strikes.tool()]
    background = ToolCall("d", "sessions_spawn", {**DELEGATE.arguments, "wait": False})
    child = ModelRunner(ScriptedModel([[background, STRIKE], "never"]), tools=tools)
    below = ModelRunner(ScriptedModel([["found ", lives.clock.gate()]]))
    with lives.host(child, others={"below": below}) as runtime:
        runtime.session(KEY, workspace=lives.folder).spawn(Spawn(task="work", restart="resume"))
        lives.clock.run_until_idle()
        assert strikes.count == 1
    after = ScriptedModel(["done"])
    with lives.host(ModelRunner(after, tools=tools), others={"below": below}) as runtime:
        lives.clock.run_until_idle()
        assert runtime.store.outbox.undelivered() == []
    (request,) = after.requests
    assert well_formed(request)
    assert told_of(request, "[Subagent Result: looker]") == 1
    assert strikes.count == 1
