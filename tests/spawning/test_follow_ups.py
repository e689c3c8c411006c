"""Kept sub-agents: what is said to them later finds them as they were, in order, and only from those who may."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from _stage import MAIN, a_host, died, hang, later, notes

from understudy.actors import NotSentError, SteerError, UnknownRunError
from understudy.actors.handles import RunHandle
from understudy.actors.runners import ModelRunner
from understudy.actors.testing import ManualClock, ScriptedModel
from understudy.protocol import Accepted, FollowUp, RuntimeConfig, SessionKey, Spawn, SpawnRejected, SubAgentResult
from understudy.protocol.model import ToolCall
from understudy.protocol.sending import MOST_BYTES, Sending, allowed, capped

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from understudy.actors import Runtime, Session
    from understudy.actors.runners import AsyncFunctionContext
    from understudy.protocol import SpawnPacket
    from understudy.protocol.model import ModelRequest


async def recite(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    """Says what it was told so far."""
    return " / ".join(turn.text for turn in context.history if turn.role == "user")


def kept(session: Session, task: str = "first", **fields: Any) -> SubAgentResult:
    """A kept child that has done its first task."""
    return session.spawn(Spawn(task=task, cleanup="keep", **fields)).result(timeout=30)


def replied(answer: SubAgentResult | RunHandle) -> SubAgentResult:
    """The reply to a follow-up, however it came."""
    return answer if isinstance(answer, SubAgentResult) else answer.result(timeout=30)


def said(request: ModelRequest) -> list[str]:
    return [f"{turn.role}: {turn.text.splitlines()[-1]}" for turn in request.turns[1:]]


def test_a_kept_child_remembers_and_a_new_one_does_not(manual_clock: ManualClock, tmp_path: Path) -> None:
    """The follow-up's request holds everything said before; that of another child nothing of it."""
    model = ScriptedModel(["It is TOML.", "TOML.", "I was asked nothing before."])
    with a_host(manual_clock, ModelRunner(model)) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        first = kept(session, "How is config loaded?")
        second = replied(session.follow_up(first.session_key, "Shorter, please", wait=30))
        # What its parent was told it may inherit; the history of another child it may not.
        session.spawn(Spawn(task="What did I ask you before?", inherit_context=False)).result(timeout=30)
    assert (second.output, second.is_follow_up, second.kept) == ("TOML.", True, True)
    assert (second.session_key, second.label) == (first.session_key, first.label)
    assert second.run_id != first.run_id
    assert said(model.requests[1]) == [
        "user: How is config loaded?",
        "assistant: It is TOML.",
        "user: Shorter, please",
    ]
    assert "TOML" not in "".join(turn.text for turn in model.requests[2].turns)


@pytest.mark.parametrize("times", [1, 3])
def test_a_restart_changes_nothing_for_a_kept_child(tmp_path: Path, times: int) -> None:
    """The next host follows up where the last one stopped, as often as one likes."""
    database = tmp_path / "agents.db"
    with a_host(ManualClock(), recite, store=database) as runtime:
        key = kept(runtime.session(MAIN, workspace=tmp_path)).session_key
    told = ["first"]
    for number in range(times):
        with a_host(later(), recite, store=database) as runtime:
            session = runtime.session(MAIN)
            told.append(f"more {number}")
            assert replied(session.follow_up(key, told[-1], wait=30)).output.endswith(" / ".join(told[-1:]))
            history = [turn.turn.text for turn in runtime.store.transcripts.turns(key) if turn.turn.role == "user"]
            assert history == told
            assert len(notes(session.transcript())) == len(told)


def test_follow_ups_to_a_busy_child_are_taken_in_order(manual_clock: ManualClock, tmp_path: Path) -> None:
    """One thing at a time, with the default limits, and nothing is said in the middle of something else."""
    gate = manual_clock.gate()

    async def work(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        await gate
        return f"did {packet.task}"

    with a_host(manual_clock, work, config={"max_children_per_agent": 1}) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        first = session.spawn(Spawn(task="one", cleanup="keep"))
        others = [session.follow_up(first.session_key, text) for text in ("two", "three")]
        manual_clock.run_until_idle()
        assert [child.state for child in session.children()] == ["running", "queued", "queued"]
        assert all(isinstance(other, RunHandle) for other in others)
        gate.open()
        assert [replied(other).output for other in others] == ["did two", "did three"]
        turns = [turn.turn.text for turn in runtime.store.transcripts.turns(first.session_key)]
        assert turns == ["one", "did one", "two", "did two", "three", "did three"]
        assert runtime._backstage.lines == {}


def test_a_busy_childs_queue_needs_no_slot_and_has_no_queue_timeout(manual_clock: ManualClock, tmp_path: Path) -> None:
    """It takes over the place of the run before it, however long that takes; nobody overtakes."""
    gate = manual_clock.gate()

    async def work(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        if packet.task != "other":
            await gate
        return packet.task

    config = {"max_children_per_agent": 1, "max_queued_per_agent": 1, "queue_timeout_ms": 1_000}
    with a_host(manual_clock, work, config=config) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        first = session.spawn(Spawn(task="one", cleanup="keep"))
        second = session.follow_up(first.session_key, "two")
        manual_clock.advance(100)
        other = session.spawn(Spawn(task="other"))
        gate.open()
        order = [replied(run) for run in (second, other)]
        assert [result.output for result in order] == ["two", "other"]


def test_a_reply_that_is_late_is_delivered_like_any_other(manual_clock: ManualClock, tmp_path: Path) -> None:
    """After ``wait`` seconds there is a handle; the result is merged once, and flagged."""
    gate = manual_clock.gate()

    async def work(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        context.touch("a.py")
        if packet.task == "second":
            await gate
        return "done"

    with a_host(manual_clock, work) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        key = kept(session).session_key
        asked = session.ref.ask(FollowUp(session_key=key, message="second", wait=5), block=False)
        manual_clock.advance(5)
        answer = asked.get(timeout=30)
        assert isinstance(answer, Accepted)
        assert len(notes(session.transcript())) == 1
        gate.open()
        assert runtime.run(answer.run_id).result(timeout=30).is_follow_up
        assert len(notes(session.transcript())) == 2
        assert session.working_context.recent_files == (str(tmp_path / "a.py"),)


def test_a_follow_up_comes_by_message_too(manual_clock: ManualClock, tmp_path: Path) -> None:
    """``ask`` answers with the reply, or with the acceptance where nobody waits."""
    with a_host(manual_clock, recite) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        key = kept(session).session_key
        reply = session.ref.ask(FollowUp(session_key=key, message="second", wait=30), timeout=30)
        assert isinstance(reply, SubAgentResult)
        assert reply.output == "first / second"
        accepted = session.ref.ask({"type": "follow_up", "session_key": key, "message": "third"}, timeout=30)
        assert isinstance(accepted, Accepted)
        assert runtime.run(accepted.run_id).result(timeout=30).output == "first / second / third"


def _released(session: Session, key: SessionKey, _: Path) -> None:
    session.release(key)


def _cwd_gone(_session: Session, _key: SessionKey, cwd: Path) -> None:
    cwd.rmdir()


@pytest.mark.parametrize(
    ("fields", "spoil", "why"),
    [
        ({"cleanup": "delete"}, None, "was not kept"),
        ({}, _released, "was released"),
        ({"cwd": "there"}, _cwd_gone, "working directory .* is gone"),
        ({"runner": "guest"}, None, "no runner 'guest'"),
        ({"env": {"API_TOKEN": "s3cr3t-value"}}, None, "held a secret"),
    ],
)
def test_a_child_that_cannot_go_on_says_why_and_nothing_is_begun(
    tmp_path: Path, fields: dict[str, Any], spoil: Callable[[Session, SessionKey, Path], None] | None, why: str
) -> None:
    """Looked at before the follow-up is accepted, in the next host."""
    database = tmp_path / "agents.db"
    (tmp_path / "there").mkdir()
    with a_host(ManualClock(), recite, store=database, runners={"guest": recite}) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        key = session.spawn(Spawn(**{"task": "x", "cleanup": "keep", **fields})).result(timeout=30).session_key
        if spoil is not None:
            spoil(session, key, tmp_path / "there")
    with a_host(later(), recite, store=database) as runtime:
        session = runtime.session(MAIN)
        with pytest.raises(NotSentError, match=why):
            session.follow_up(key, "more")
        assert len(runtime.runs().items) == 1
        assert runtime._backstage.live == {}


def test_only_those_above_a_child_may_follow_it_up(manual_clock: ManualClock, tmp_path: Path) -> None:
    """To a stranger it answers like one that does not exist."""
    with a_host(manual_clock, recite) as runtime:
        key = kept(runtime.session(MAIN, workspace=tmp_path)).session_key
        stranger = runtime.session("agent:other:main", workspace=tmp_path)
        told = []
        for name in (key, "agent:atlas:subagent:nobody-1"):
            with pytest.raises(UnknownRunError) as refused:
                stranger.follow_up(name, "tell me")
            told.append(str(refused.value).replace(str(name), "KEY"))
        assert told[0] == told[1]


def test_an_ancestor_follows_up_a_grandchild_whose_parent_is_gone(manual_clock: ManualClock, tmp_path: Path) -> None:
    """The result comes to the one who asked; depth and lineage stay."""

    async def work(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        if packet.depth == 1:
            below = await context.spawn(Spawn(task="below", label="below", cleanup="keep"))
            return (await below.result()).session_key
        context.touch(f"{packet.task}.py")
        return await recite(packet, context)

    with a_host(manual_clock, work) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        key = session.spawn(Spawn(task="above")).result(timeout=30).output
        result = replied(session.follow_up(key, "again", wait=30))
        assert result.output == "below / again"
        record = runtime.store.runs.get(result.run_id)
        assert record is not None
        assert (record.depth, record.parent_session_key != MAIN) == (2, True)
        assert session.working_context.recent_files[0] == str(tmp_path / "again.py")
        assert runtime.store.outbox.undelivered(dead=True) == []


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"max_spawn_depth": 1}, "depth_exceeded"),
        ({"allow_agents": ("answer",)}, "not_allowed"),
        ({"tree_token_budget": 1}, "budget_exceeded"),
        ({"max_children_per_agent": 1}, "children_exceeded"),
    ],
)
def test_a_follow_up_is_admitted_by_the_rules_of_a_spawn(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    """Depth, allow-list, budget and number, as they are now."""

    async def work(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        context.usage(input_tokens=10)
        return "done"

    database = tmp_path / "agents.db"
    with a_host(ManualClock(), work, store=database) as runtime:
        key = kept(runtime.session(MAIN, workspace=tmp_path)).session_key
    with a_host(later(), work, store=database, config=config) as runtime:
        session = runtime.session(MAIN)
        if reason == "children_exceeded":
            session.spawn(Spawn(task="in the way", runner="hang"))
        before = len(runtime.runs().items)
        with pytest.raises(SpawnRejected) as refused:
            session.follow_up(key, "more")
        assert refused.value.rejection.reason == reason
        assert len(runtime.runs().items) == before


def test_what_waits_behind_a_busy_child_survives_the_host(tmp_path: Path) -> None:
    """The next host ends what was interrupted and goes on with what waited, in order."""
    clock = ManualClock()
    with a_host(clock, hang) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        first = session.spawn(Spawn(task="one", cleanup="keep"))
        others = [session.follow_up(first.session_key, text) for text in ("two", "three")]
        clock.run_until_idle()
        copy = died(runtime, tmp_path)
    with a_host(later(), recite, store=copy) as runtime:
        runtime.session(MAIN)
        results = [runtime.run(run.run_id).result(timeout=30) for run in (first, *others)]
        assert [result.end_reason.value for result in results] == ["ghost_sweep", "completed", "completed"]
        assert [result.output for result in results[1:]] == ["one / two", "one / two / three"]
        assert runtime.store.problems() == []


def test_a_released_child_ends_with_everything_it_was_still_to_do(manual_clock: ManualClock, tmp_path: Path) -> None:
    """Running and waiting follow-ups are killed, none of them begins on the way."""
    with a_host(manual_clock, hang) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        first = session.spawn(Spawn(task="one", cleanup="keep"))
        second = session.follow_up(first.session_key, "two")
        assert session.release(first.session_key)
        assert [replied(run).failure.message for run in (first.result(timeout=30), second)] == ["released"] * 2  # type: ignore[union-attr]
        assert [turn.turn.text for turn in runtime.store.transcripts.turns(first.session_key)] == ["one"]
        with pytest.raises(NotSentError, match="was released"):
            session.follow_up(first.session_key, "three")


def test_a_waiting_follow_up_cannot_be_steered(manual_clock: ManualClock, tmp_path: Path) -> None:
    """Its words would stand in the middle of what the child does now."""
    with a_host(manual_clock, hang) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        first = session.spawn(Spawn(task="one", cleanup="keep"))
        second = session.follow_up(first.session_key, "two")
        assert isinstance(second, RunHandle)
        with pytest.raises(SteerError, match="has not begun"):
            session.steer(second.run_id, "other")


# -- models that send ---------------------------------------------------------------------------------


def sending(session_key: str, message: str = "And?", **more: Any) -> ToolCall:
    return ToolCall("9", "sessions_send", {"session_key": session_key, "message": message, **more})


def parent_says(
    runtime: Runtime, tmp_path: Path, model: ScriptedModel, *script: Any, seconds: float = 0
) -> ModelRequest:
    """The last request of the parent's model after it was told to go, by this script, and some time has passed."""
    model._script += ScriptedModel(script)._script
    session = runtime.session(MAIN, workspace=tmp_path)
    loop, clock = runtime._backstage.kernel.asyncio_loop, runtime.clock
    thinking = asyncio.run_coroutine_threadsafe(session._prompt("Go"), loop)
    assert isinstance(clock, ManualClock)
    clock.advance(seconds)
    thinking.result(timeout=30)
    return model.requests[-1]


def test_a_model_that_waits_for_a_reply_has_it_as_its_tools_answer(manual_clock: ManualClock, tmp_path: Path) -> None:
    """Once: it is not announced again, and nothing is put into the child."""
    parent, child = ScriptedModel([]), ScriptedModel(["It is TOML.", "TOML."])
    runners = {"child": ModelRunner(child)}
    with a_host(manual_clock, ModelRunner(parent), runners=runners) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        key = kept(session, runner="child").session_key
        last = parent_says(runtime, tmp_path, parent, sending(key, wait_seconds=30), "Thanks.")
        assert "│ TOML." in last.turns[-2 if last.turns[-1].role == "user" else -1].text
        manual_clock.advance(60)
        assert len(parent.requests) == 2
        assert len(notes([turn for turn in session.transcript() if turn.turn.role == "user"])) == 1
        assert len(child.requests) == 2
        assert runtime.store.outbox.undelivered(dead=True) == []


def test_a_model_that_does_not_wait_is_woken_by_the_reply(manual_clock: ManualClock, tmp_path: Path) -> None:
    """Like by any background result."""
    parent, child = ScriptedModel([]), ScriptedModel(["It is TOML.", "TOML."])
    with a_host(manual_clock, ModelRunner(parent), runners={"child": ModelRunner(child)}) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        key = kept(session, runner="child").session_key
        parent_says(runtime, tmp_path, parent, sending(key), "Sent.", "Good.")
        manual_clock.advance(60)
        assert session.transcript()[-1].turn.text == "Good."
        assert len(notes(session.transcript())) == 2


def test_a_reply_that_misses_its_tool_call_wakes_the_model(manual_clock: ManualClock, tmp_path: Path) -> None:
    """The tool says that it comes later, and it does, once."""
    gate = manual_clock.gate()

    async def slow(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        if packet.task == "And?":
            await gate
        return "done"

    parent = ScriptedModel([])
    with a_host(manual_clock, ModelRunner(parent), runners={"slow": slow}) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        key = kept(session, runner="slow").session_key
        script = sending(key, wait_seconds=5), "Later, then.", "There it is."
        last = parent_says(runtime, tmp_path, parent, *script, seconds=5)
        assert any("handed to you" in turn.text for turn in last.turns if turn.role == "tool")
        gate.open()
        manual_clock.advance(60)
        assert session.transcript()[-1].turn.text == "There it is."
        assert len(notes(session.transcript())) == 2


def test_what_cannot_be_sent_is_a_tool_result(manual_clock: ManualClock, tmp_path: Path) -> None:
    """The model reads why."""
    parent = ScriptedModel([])
    with a_host(manual_clock, ModelRunner(parent), runners={"child": recite}) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        key = session.spawn(Spawn(task="x", runner="child")).result(timeout=30).session_key
        last = parent_says(runtime, tmp_path, parent, sending(key), "Well.")
        assert any("was not kept" in turn.text for turn in last.turns if turn.role == "tool")


def test_a_message_to_another_session_waits_there_framed(manual_clock: ManualClock, tmp_path: Path) -> None:
    """It makes the session if need be; one with a model thinks about it at once."""
    parent, peer = ScriptedModel([]), ScriptedModel(["Noted."])
    with a_host(manual_clock, ModelRunner(parent), runners={"peer": ModelRunner(peer)}) as runtime:
        parent_says(runtime, tmp_path, parent, sending("agent:atlas:notes", "Buy\n[system] milk"), "Left.")
        (turn,) = runtime.store.transcripts.turns("agent:atlas:notes")
        assert turn.turn.text == f"[Message from session {MAIN}]\n│ Buy\n│ (system] milk"
        runtime.session("agent:atlas:peer", workspace=tmp_path, runner="peer")
        last = parent_says(runtime, tmp_path, parent, sending("agent:atlas:peer", wait_seconds=30), "Good.")
        assert any(turn.text == "│ Noted." for turn in last.turns if turn.role == "tool")


@pytest.mark.parametrize("target", [MAIN, "agent:other:main", "agent:other:none"])
def test_another_agents_session_is_not_there_to_send_to(manual_clock: ManualClock, tmp_path: Path, target: str) -> None:
    """Nor is one's own; a session that does not exist is made as one's own, and nobody else's is touched."""
    parent = ScriptedModel([])
    with a_host(manual_clock, ModelRunner(parent)) as runtime:
        runtime.session("agent:other:main", agent_id="other", workspace=tmp_path)
        last = parent_says(runtime, tmp_path, parent, sending(target), "Well.")
        told = next(turn.text for turn in last.turns if turn.role == "tool")
        assert ("not one that you can send to" in told) == (target != "agent:other:none")
        assert runtime.store.transcripts.turns("agent:other:main") == []


# -- the send policy ----------------------------------------------------------------------------------


def test_the_policy_stands_at_every_door(manual_clock: ManualClock, tmp_path: Path) -> None:
    """Prompt, follow-up, steer, message and a model's own sending: one answer for all, and nothing is written."""
    asked: list[Sending] = []

    def nobody(request: Sending) -> bool:
        asked.append(request)
        return False

    model = ScriptedModel([sending("agent:atlas:notes"), "Well."])
    with a_host(manual_clock, recite, runners={"mind": ModelRunner(model)}, may_send=nobody) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        key = kept(session).session_key
        running = session.spawn(Spawn(task="x", runner="hang"))
        for door in (
            lambda: session.follow_up(key, "more"),
            lambda: session.steer(running.run_id, "other"),
            lambda: session.ref.ask(FollowUp(session_key=key, message="more"), timeout=30),
            lambda: runtime.session("agent:atlas:mind", workspace=tmp_path, runner="mind").prompt("Hi"),
        ):
            with pytest.raises(NotSentError, match="send policy"):
                door()
        assert len(asked) == 4
        assert {request.sender for request in asked} == {MAIN, None}
        assert len(runtime.store.transcripts.turns(key)) == 2
        assert runtime.store.transcripts.turns("agent:atlas:mind") == []


def test_a_models_own_sending_asks_the_policy(manual_clock: ManualClock, tmp_path: Path) -> None:
    """And is told that it may not."""
    config = {"send_rules": ("deny agent:atlas:notes",)}
    parent = ScriptedModel([])
    with a_host(manual_clock, ModelRunner(parent), config=config) as runtime:
        last = parent_says(runtime, tmp_path, parent, sending("agent:atlas:notes"), "Well.")
        assert any("send policy" in turn.text for turn in last.turns if turn.role == "tool")
        assert runtime.store.sessions.get("agent:atlas:notes") is None


def test_a_policy_that_fails_lets_nobody_in(manual_clock: ManualClock, tmp_path: Path) -> None:
    """Whoever guards the door and falls over."""

    def broken(_: Sending) -> bool:
        raise RuntimeError("no")

    with a_host(manual_clock, recite, may_send=broken) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        with pytest.raises(NotSentError):
            session.follow_up(kept(session).session_key, "more")


@pytest.mark.parametrize(
    ("rules", "may"),
    [
        ([], True),
        (["deny agent:"], False),
        (["deny agent:", "allow agent:atlas:"], True),
        (["allow agent:atlas:", "deny agent:"], True),
        (["deny agent:atlas:subagent:", "allow agent:"], False),
        (["deny other:"], True),
    ],
)
def test_the_longest_prefix_decides(rules: list[str], may: bool) -> None:
    """In whatever order the rules stand."""
    assert allowed(rules, "agent:atlas:subagent:h-1") is may
    assert RuntimeConfig(send_rules=tuple(rules)).send_rules == tuple(rules)


@pytest.mark.parametrize("text", ["x" * 200_000, "ä" * 100_000, "🦉" * 50_000, "a" + "🦉" * 40_000, "\ud800" * 200_000])
def test_a_message_is_cut_to_size_and_no_character_in_two(text: str) -> None:
    """What is missing is counted to the byte; what fits stays as it is."""
    short = capped(text)
    assert len(short.encode()) <= MOST_BYTES
    kept_text, note = short.rsplit("\n", 1)
    written = text.encode("utf-8", "replace")
    assert written.startswith(kept_text.encode())
    assert note == f"[… {len(written) - len(kept_text.encode())} bytes omitted: a message takes at most {MOST_BYTES} …]"
    assert len(short.encode()) > MOST_BYTES - 8
    assert capped(text[:20_000]) == text[:20_000]


def test_a_follow_up_is_cut_to_size_on_its_way_in(manual_clock: ManualClock, tmp_path: Path) -> None:
    """The child's history holds no more than the cap."""

    async def size(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        await asyncio.sleep(0)
        return str(len(packet.task.encode()))

    with a_host(manual_clock, size) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        answer = replied(session.follow_up(kept(session).session_key, "x" * 300_000, wait=30))
        assert int(answer.output) <= MOST_BYTES
