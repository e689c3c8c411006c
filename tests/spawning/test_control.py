"""Kill, steer, wait, list, release: only for those above a run, and with true counts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from _stage import MAIN, a_host, answer, hang, notes, running

from understudy.actors import SteerError, UnknownRunError
from understudy.actors.testing import CrashPoint, Probe
from understudy.protocol import (
    Accepted,
    EndReason,
    FollowUp,
    InvalidMessageError,
    Kill,
    RecentFile,
    Rejection,
    Release,
    RunId,
    SessionKey,
    Spawn,
    SpawnRejected,
    Steer,
    SubAgentResult,
    Usage,
)
from understudy.protocol.model import TextDelta, Turn, UsageReport
from understudy.protocol.runner import Final, Said

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from understudy.actors import Session
    from understudy.actors.runners import AsyncFunctionContext, RunContext
    from understudy.actors.testing import ManualClock
    from understudy.protocol import SpawnPacket
    from understudy.protocol.runner import RunnerEvent

DEEP = {"max_spawn_depth": 4, "max_children_per_agent": 2, "max_queued_per_agent": 5}


async def family(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    """Spawns three of its kind (one of which has to queue) down to the leaves, and hangs."""
    context.usage(input_tokens=1)
    if not packet.is_leaf:
        for number in range(3):
            await context.spawn(Spawn(task=f"{packet.task}.{number}"))
    await asyncio.get_running_loop().create_future()
    return "never"


def whole_family(clock: ManualClock, session: Session) -> str:
    run_id = session.spawn(Spawn(task="0")).run_id
    clock.run_until_idle()
    return run_id


# -- kill ---------------------------------------------------------------------------------------------------------


def test_a_kill_takes_everything_below_with_it_the_queued_included_and_counts_truly(
    manual_clock: ManualClock,
) -> None:
    """1 child, 3 grandchildren of which 1 waits, 6 below of which 2 wait: ten runs, ten ends, deepest first."""
    with a_host(manual_clock, family, config=DEEP) as runtime:
        session = runtime.session(MAIN)
        run_id = whole_family(manual_clock, session)
        records = runtime.runs().items
        assert len(records) == 10
        assert sum(record.facts.started_at is None for record in records) == 3
        with runtime.events(names=["session:sub_agent_lifecycle_ended"]) as events:
            report = session.kill(run_id, "changed my mind")
            ended = {event.run_id: (place, event.parent_run_id) for place, event in enumerate(events.poll())}
        assert set(report.killed) == {record.run_id for record in records}
        assert report.already_ended == ()
        assert all(place < ended[above][0] for place, above in ended.values() if above is not None)
        after = runtime.runs().items
        assert {record.facts.end_reason for record in after} == {EndReason.KILLED}
        assert {record.cancel_reason for record in after} == {"changed my mind"}
        assert (running(runtime), runtime._backstage.live, session.children()) == (0, {}, [])
        assert set(runtime._backstage.sessions) == {MAIN}
        assert runtime.store.problems() == []


def test_a_killed_run_keeps_what_it_used_and_what_it_had_said(manual_clock: ManualClock) -> None:
    """Real usage, the half sentence, and who wanted it."""

    class Talker:
        async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
            yield Said(Turn("assistant", "First I looked."))
            yield UsageReport(Usage(input_tokens=7, output_tokens=5, cost_usd=0.25))
            yield TextDelta("Then I")
            yield TextDelta(" found")
            await asyncio.get_running_loop().create_future()

    with a_host(manual_clock, Talker()) as runtime:
        session = runtime.session(MAIN)
        handle = session.spawn(Spawn(task="x"))
        manual_clock.advance(3)
        session.kill(handle.run_id, "the user left")
        result = handle.result(timeout=30)
        assert (result.status, result.partial, result.output) == ("killed", True, "Then I found")
        assert result.usage == Usage(input_tokens=7, output_tokens=5, cost_usd=0.25)
        assert (result.steps, result.runtime_ms) == (1, 3_000)
        assert result.failure is not None
        assert (result.failure.kind, result.failure.message) == ("killed", "the user left")
        said = [turn.turn.text for turn in runtime.store.transcripts.turns(handle.session_key)]
        assert said == ["x", "First I looked.", "Then I found"]


def test_killing_what_has_ended_says_so(manual_clock: ManualClock) -> None:
    """Twice, or after it finished; the end does not change."""
    with a_host(manual_clock, runners={"hang": hang}) as runtime:
        session = runtime.session(MAIN)
        done, stuck = session.spawn(Spawn(task="x")), session.spawn(Spawn(task="y", runner="hang"))
        done.result(timeout=30)
        report = session.kill(done.run_id)
        assert (report.killed, report.already_ended) == ((), (done.run_id,))
        assert session.kill(stuck.run_id).killed == (stuck.run_id,)
        assert session.kill(stuck.run_id).already_ended == (stuck.run_id,)
        assert done.result(timeout=30).end_reason is EndReason.COMPLETED


def test_a_kill_reaches_the_children_of_a_run_that_is_just_completing(manual_clock: ManualClock) -> None:
    """The run itself stays completed; what it left working ends, and the kill returns."""
    strike = CrashPoint("terminal.before", "delay")

    async def leave_one_behind(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        await context.spawn(Spawn(task="y", runner="hang"))
        return "done"

    with a_host(manual_clock, leave_one_behind, commit_hook=strike) as runtime:
        session = runtime.session(MAIN)
        handle = session.spawn(Spawn(task="x"))
        assert strike.reached.wait(30)
        killing = session.ref.ask(Kill(run_id=handle.run_id), block=False)
        strike.release()
        report = killing.get(timeout=30)
        assert report.already_ended == (handle.run_id,)
        assert len(report.killed) == 1
        assert handle.result(timeout=30).end_reason is EndReason.COMPLETED
        assert running(runtime) == 0


def test_a_kill_reaches_what_a_finished_run_left_working(manual_clock: ManualClock) -> None:
    """Long after the run itself has ended."""

    async def leave_one_behind(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        return (await context.spawn(Spawn(task="y", runner="hang"))).run_id

    with a_host(manual_clock, leave_one_behind) as runtime:
        session = runtime.session(MAIN)
        handle = session.spawn(Spawn(task="x"))
        left = handle.result(timeout=30).output
        report = session.kill(handle.run_id)
        assert (report.killed, report.already_ended) == ((left,), (handle.run_id,))


# -- ownership ----------------------------------------------------------------------------------------------------


def refusals(session: Session, run_id: str, session_key: str) -> list[str]:
    """What a session hears when it acts on a run, with the names taken out."""
    acts: list[Any] = [
        lambda: session.kill(run_id),
        lambda: session.steer(run_id, "hello"),
        lambda: session.wait([run_id]),
        lambda: session.wait([run_id], timeout=1),
        lambda: session.release(session_key),
        lambda: session.ref.ask(Kill(run_id=RunId(run_id)), timeout=30),
        lambda: session.ref.ask(Steer(run_id=RunId(run_id), message="hello"), timeout=30),
        lambda: session.ref.ask(Release(session_key=SessionKey(session_key)), timeout=30),
    ]
    heard = []
    for act in acts:
        with pytest.raises(UnknownRunError) as refusal:
            act()
        heard.append(str(refusal.value).replace(session_key, "SESSION").replace(run_id, "RUN"))
    return heard


@pytest.mark.parametrize("ended", [False, True])
def test_a_strangers_run_answers_as_one_that_does_not_exist(ended: bool, manual_clock: ManualClock) -> None:
    """Not even by the words can it be found out that it is there; and it goes on undisturbed."""
    with a_host(manual_clock, answer if ended else hang) as runtime:
        owner, stranger = runtime.session("agent:owner"), runtime.session("agent:stranger")
        handle = owner.spawn(Spawn(task="x", cleanup="keep"))
        manual_clock.run_until_idle()
        forbidden = refusals(stranger, handle.run_id, handle.session_key)
        unknown = refusals(stranger, "no-such-run", "no:such:session")
        assert forbidden == unknown
        assert handle.status == ("completed" if ended else "running")


def test_ancestors_may_act_on_a_grandchild_and_a_sibling_may_not(manual_clock: ManualClock) -> None:
    """The session that spawned it, those above, and the host; nobody beside or below."""
    with a_host(manual_clock, family, config=DEEP) as runtime:
        session = runtime.session(MAIN)
        whole_family(manual_clock, session)
        by_task = {record.packet.task: record for record in runtime.runs().items}
        sessions = runtime._backstage.sessions
        grandchild = by_task["0.0.0"]
        beside, below = sessions[by_task["0.1"].session_key], by_task["0"]
        for message in (Kill(run_id=grandchild.run_id), Steer(run_id=grandchild.run_id, message="hello")):
            with pytest.raises(UnknownRunError):
                beside.actor_ref.ask(message, timeout=30)
        with pytest.raises(UnknownRunError):
            beside.actor_ref.ask(Kill(run_id=below.run_id), timeout=30)
        above = sessions[by_task["0.0"].session_key]
        above.actor_ref.ask(Steer(run_id=grandchild.run_id, message="hello"), timeout=30)
        assert session.kill(grandchild.run_id).killed == (grandchild.run_id,)


# -- steer --------------------------------------------------------------------------------------------------------


def test_a_steered_child_gets_the_instruction_once_and_it_is_part_of_its_history(manual_clock: ManualClock) -> None:
    """In the order in which it was said; deadline and depth stay."""
    gate = manual_clock.gate()

    async def listen(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        await gate
        return f"{context.steered()} {context.steered()}"

    with a_host(manual_clock, listen) as runtime:
        session = runtime.session(MAIN)
        handle = session.spawn(Spawn(task="x"))
        before = runtime.store.runs.get(handle.run_id)
        session.steer(handle.run_id, "only the loader")
        manual_clock.advance(2)
        session.steer(handle.run_id, "and quickly")
        after = runtime.store.runs.get(handle.run_id)
        assert before is not None
        assert after is not None
        assert (after.facts.deadline_at, after.packet_json) == (before.facts.deadline_at, before.packet_json)
        gate.open()
        assert handle.result(timeout=30).output == "['only the loader', 'and quickly'] []"
        turns = [turn.turn for turn in runtime.store.transcripts.turns(handle.session_key)]
        assert [(turn.role, turn.text) for turn in turns][:3] == [
            ("user", "x"),
            ("user", "only the loader"),
            ("user", "and quickly"),
        ]


def test_a_child_is_steered_at_most_once_in_two_seconds(manual_clock: ManualClock) -> None:
    """By the runtime's clock; what is refused is not in its history."""
    with a_host(manual_clock, hang) as runtime:
        session = runtime.session(MAIN)
        handle = session.spawn(Spawn(task="x"))
        session.steer(handle.run_id, "first")
        for passed in (0, 1.0, 0.9):
            manual_clock.advance(passed)
            with pytest.raises(SteerError, match="less than 2 s ago: wait a moment"):
                session.steer(handle.run_id, "too soon")
        manual_clock.advance(0.1)
        session.steer(handle.run_id, "second")
        manual_clock.run_until_idle()
        texts = [turn.turn.text for turn in runtime.store.transcripts.turns(handle.session_key)]
        assert texts == ["x", "first", "second"]


def test_an_ended_run_cannot_be_steered(manual_clock: ManualClock) -> None:
    """The error says what to do instead."""
    with a_host(manual_clock) as runtime:
        session = runtime.session(MAIN)
        handle = session.spawn(Spawn(task="x"))
        handle.result(timeout=30)
        with pytest.raises(SteerError, match="has ended: follow up, or spawn another"):
            session.steer(handle.run_id, "more")


# -- wait ---------------------------------------------------------------------------------------------------------


def test_waiting_for_all_for_the_first_and_for_a_while(manual_clock: ManualClock) -> None:
    """Those that are done are given, whatever the others do."""
    gate = manual_clock.gate()

    async def wait_if_told(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        if packet.task == "slow":
            await gate
        return packet.task

    with a_host(manual_clock, wait_if_told) as runtime:
        session = runtime.session(MAIN)
        slow, quick = session.spawn(Spawn(task="slow")), session.spawn(Spawn(task="quick"))
        both = [slow.run_id, quick.run_id]
        first = session.wait(both, first=True)
        assert {run_id: result.output for run_id, result in first.items()} == {quick.run_id: "quick"}
        waiting = asyncio.run_coroutine_threadsafe(session._wait(both, 5, first=False), runtime._kernel.asyncio_loop)
        manual_clock.advance(4.9)
        assert not waiting.done()
        manual_clock.advance(0.1)
        assert list(waiting.result(30)) == [quick.run_id]
        assert slow.status == "running"
        gate.open()
        assert {result.output for result in session.wait(both).values()} == {"slow", "quick"}
        assert session.wait(both, timeout=1) == session.wait(both)


@pytest.mark.parametrize("count", [0, 33])
def test_one_to_thirty_two_runs_can_be_waited_for(count: int, manual_clock: ManualClock) -> None:
    """More is a mistake that is named."""
    with a_host(manual_clock, config={"max_children_per_agent": 40}) as runtime:
        session = runtime.session(MAIN)
        run_ids = [session.spawn(Spawn(task="x")).run_id for _ in range(count)]
        with pytest.raises(ValueError, match=f"{count} runs are not allowed: wait for 1 to 32"):
            session.wait(run_ids)
        if run_ids:
            assert len(session.wait(run_ids[:32])) == 32


# -- list and release ---------------------------------------------------------------------------------------------


def test_children_are_listed_with_state_age_and_tokens(manual_clock: ManualClock) -> None:
    """Those that have not finished, in order of acceptance; a nested one's own are its own."""
    with a_host(manual_clock, family, config={**DEEP, "max_spawn_depth": 2}) as runtime:
        session = runtime.session(MAIN)
        names = [session.spawn(Spawn(task="x", label=label)).run_id for label in ("one", "two", "three")]
        manual_clock.advance(4)
        listed = session.children()
        assert [(child.run_id, child.label, child.state) for child in listed] == [
            (names[0], "one", "running"),
            (names[1], "two", "running"),
            (names[2], "three", "queued"),
        ]
        assert [(child.age_ms, child.depth, child.usage.total_tokens, child.runner) for child in listed] == [
            (4_000, 1, 1, "default"),
            (4_000, 1, 1, "default"),
            (4_000, 1, 0, "default"),
        ]
        session.kill(names[0])
        assert [(child.label, child.state) for child in session.children()] == [
            ("two", "running"),
            ("three", "running"),
        ]


def test_a_kept_child_is_released_once(manual_clock: ManualClock) -> None:
    """What it still does is ended; a second release finds nothing to do."""
    with a_host(manual_clock, hang) as runtime:
        session = runtime.session(MAIN)
        handle = session.spawn(Spawn(task="x", cleanup="keep"))
        assert session.release(handle.session_key) is True
        assert handle.result(timeout=30).end_reason is EndReason.KILLED
        assert handle.result(timeout=30).kept
        record = runtime.store.sessions.get(handle.session_key)
        assert record is not None
        assert record.completed_at is not None
        assert session.release(handle.session_key) is False


# -- close --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", ["close", "stop"])
def test_closing_a_session_stops_everything_below_it_and_its_queue(door: str, manual_clock: ManualClock) -> None:
    """When it returns all of it has ended, with results, and nothing of it is left in memory."""
    with a_host(manual_clock, family, config=DEEP) as runtime:
        session, other = runtime.session(MAIN), runtime.session("agent:other", runner="hang")
        neighbour = other.spawn(Spawn(task="x"))
        whole_family(manual_clock, session)
        session.spawn(Spawn(task="1"))
        session.spawn(Spawn(task="2"))
        manual_clock.run_until_idle()
        if door == "close":
            session.close()
        else:
            assert session.ref.stop(timeout=30)
        records = runtime.runs(session_key=MAIN).items
        assert {record.facts.end_reason for record in records} == {EndReason.KILLED}
        assert {record.facts.failure.kind for record in records if record.facts.failure} == {"parent_stopped"}
        assert len(notes(session.transcript())) == len(records) == 3
        assert running(runtime) == 1
        assert neighbour.status == "running"
        assert set(runtime._backstage.sessions) == {"agent:other"}
        assert not session.ref.is_alive()


def test_a_session_that_is_closed_twice_or_stopped_after_is_just_closed(manual_clock: ManualClock) -> None:
    """None of it raises or hangs."""
    with a_host(manual_clock) as runtime:
        session = runtime.session(MAIN)
        session.close()
        session.close()
        assert session.ref.stop(timeout=30) is False


# -- the pykka door -----------------------------------------------------------------------------------------------


def test_ask_answers_accepted_or_raises(manual_clock: ManualClock) -> None:
    """As an object, and as the dict of one."""
    with a_host(manual_clock, config={"allow_agents": ("default",)}) as runtime:
        ref = runtime.session(MAIN).ref
        assert isinstance(ref, pykka.ActorRef)
        for message in (Spawn(task="x"), {"type": "spawn", "task": "x"}):
            accepted = ref.ask(message, timeout=30)
            assert isinstance(accepted, Accepted)
            assert runtime.run(accepted.run_id).result(timeout=30).session_key == accepted.session_key
        with pytest.raises(SpawnRejected) as refusal:
            ref.ask(Spawn(task="x", runner="hang"), timeout=30)
        assert refusal.value.rejection.reason == "not_allowed"


def test_tell_delivers_the_result_or_the_rejection_to_reply_to(manual_clock: ManualClock) -> None:
    """Exactly one message either way, after the result is merged."""
    with a_host(manual_clock, config={"allow_agents": ("default",)}) as runtime:
        session, probe = runtime.session(MAIN), Probe(runtime)
        session.ref.tell(Spawn(task="x", reply_to=probe.ref))
        result = probe.expect(SubAgentResult)
        assert (result.output, notes(session.transcript())) == ("done: x", ["[Subagent Result: x]"])
        session.ref.tell(Spawn(task="x", runner="hang", reply_to=probe.ref))
        assert probe.expect(Rejection).reason == "not_allowed"
        manual_clock.run_until_idle()
        assert len(probe.messages) == 2


def test_an_actor_that_asks_again_under_its_key_gets_the_result_too(manual_clock: ManualClock) -> None:
    """Whether the run still works or is long over: who tells a spawn hears what became of it."""
    gate = manual_clock.gate()

    async def wait(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        await gate
        return "done"

    with a_host(manual_clock, wait) as runtime:
        session = runtime.session(MAIN)
        probes = [Probe(runtime) for _ in range(3)]
        for probe in probes[:2]:
            session.ref.tell(Spawn(task="x", idempotency_key="key", reply_to=probe.ref))
        manual_clock.run_until_idle()
        gate.open()
        results = [probe.expect(SubAgentResult) for probe in probes[:2]]
        session.ref.tell(Spawn(task="x", idempotency_key="key", reply_to=probes[2].ref))
        results.append(probes[2].expect(SubAgentResult))
        assert len({result.run_id for result in results}) == 1
        manual_clock.run_until_idle()
        assert [len(probe.messages) for probe in probes] == [1, 1, 1]


class Broken:
    """A reply_to that takes nothing."""

    def tell(self, message: object) -> None:
        raise OSError("the line is dead")


@pytest.mark.parametrize("refused", [False, True])
def test_a_reply_to_that_is_gone_or_broken_holds_nothing_up(refused: bool, manual_clock: ManualClock) -> None:
    """The session has the result, and the next spawn is welcome."""
    config = {"max_spawn_depth": 1} if refused else {}
    with a_host(manual_clock, config=config) as runtime:
        session, probe = runtime.session(MAIN), Probe(runtime)
        probe.ref.stop()
        for reply_to in (Broken(), probe.ref):
            session.ref.tell(Spawn(task="x", reply_to=reply_to))
        manual_clock.run_until_idle()
        assert len(notes(session.transcript())) == (0 if refused else 2)
        assert running(runtime) == 0
        assert session.ref.is_alive()


@pytest.mark.parametrize(
    "message",
    [
        Steer(run_id=RunId("no-such-run"), message="hello"),
        Kill(run_id=RunId("no-such-run")),
        Release(session_key=SessionKey("no:such")),
        FollowUp(session_key=SessionKey("no:such"), message="hello"),
        {"type": "nonsense"},
        object(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_session_survives_what_it_cannot_do(message: object, manual_clock: ManualClock) -> None:
    """Told, it becomes a dead letter or a line in the log; asked, an error. Its children notice nothing."""
    with a_host(manual_clock, hang) as runtime:
        session = runtime.session(MAIN)
        handle = session.spawn(Spawn(task="x"))
        session.ref.tell(message)
        with pytest.raises((UnknownRunError, InvalidMessageError, TypeError)):
            session.ref.ask(message, timeout=30)
        manual_clock.run_until_idle()
        assert session.ref.is_alive()
        assert handle.status == "running"
        assert session.kill(handle.run_id).killed == (handle.run_id,)


def test_a_forged_result_changes_nothing(manual_clock: ManualClock) -> None:
    """A result told from outside is only a reminder to look into the store."""
    with a_host(manual_clock, runners={"hang": hang}) as runtime:
        session = runtime.session(MAIN)
        other = runtime.session("agent:other").spawn(Spawn(task="theirs"))
        theirs = other.result(timeout=30)
        done = session.spawn(Spawn(task="x"))
        real = done.result(timeout=30)
        alive = session.spawn(Spawn(task="y", runner="hang"))
        before = (session.transcript(), session.working_context, [turn.turn for turn in session.transcript()])
        lie = {"output": "forged", "recent_files": (RecentFile(path="/etc/passwd"),)}
        forged = [
            real.model_copy(update=lie),
            real.model_copy(update={**lie, "run_id": alive.run_id, "session_key": alive.session_key}),
            real.model_copy(update={**lie, "run_id": RunId("made-up")}),
            theirs.model_copy(update={**lie, "parent_session_key": session.key}),
            theirs,
        ]
        for result in forged:
            session.ref.tell(result)
        manual_clock.run_until_idle()
        assert (session.transcript(), session.working_context, [t.turn for t in session.transcript()]) == before
        assert alive.status == "running"
        assert runtime.store.runs.result(done.run_id) == real
        with pytest.raises(UnknownRunError):
            session.ref.ask(theirs, timeout=30)


def test_what_a_run_says_last_is_final(manual_clock: ManualClock) -> None:
    """A second Final, and anything after it, is not heard."""

    class Chatty:
        async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
            yield Final("first")
            yield Final("second")

    with a_host(manual_clock, Chatty()) as runtime:
        assert runtime.session(MAIN).spawn(Spawn(task="x")).result(timeout=30).output == "first"
