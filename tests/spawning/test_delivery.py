"""How results travel: merged once, announced together, retried, set aside, replayed, filed and told of."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
from typing import TYPE_CHECKING, Any

import pytest
from _stage import MAIN, LockAfter, a_host, delegate, died, hang, later, notes

from understudy.actors import AsyncRuntime, FunctionRunner, UnknownRunError
from understudy.actors.testing import CrashPoint, ManualClock
from understudy.protocol import EndReason, RuntimeConfig, Spawn, SpawnRejected

if TYPE_CHECKING:
    from pathlib import Path

    from understudy.actors.runners import AsyncFunctionContext
    from understudy.protocol import Event, SpawnPacket, SubAgentResult
    from understudy.protocol.commit_points import CommitPoint

# -- waking the parent --------------------------------------------------------------------------------------------

LONG = "x " * 10_000
"""Comes back so long that it is shortened: its end is committed by itself, and the merge after it."""


class Woken:
    """A host's ``on_results`` that answers by plan and remembers every call."""

    def __init__(self, *answers: bool | BaseException | None) -> None:
        self.calls: list[list[str]] = []
        self.times: list[float] = []
        self._answers = list(answers)
        self.clock: ManualClock | None = None

    def __call__(self, results: tuple[SubAgentResult, ...]) -> bool | None:
        self.calls.append(sorted(result.label for result in results))
        if self.clock is not None:
            self.times.append(self.clock.monotonic())
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, BaseException):
            raise answer
        return answer


def announced(task: str, **fields: Any) -> Spawn:
    return Spawn(task=task, announce=True, **fields)


def test_results_that_settle_together_wake_the_parent_once(manual_clock: ManualClock) -> None:
    """Two seconds after the first of them; what settles later wakes it again."""
    woken = Woken()
    with a_host(manual_clock) as runtime:
        session = runtime.session(MAIN, on_results=woken)
        for task in ("one", "two"):
            session.spawn(announced(task)).result(timeout=30)
        manual_clock.advance(1)
        session.spawn(announced("three")).result(timeout=30)
        manual_clock.advance(0.9)
        assert woken.calls == []
        manual_clock.advance(0.1)
        assert woken.calls == [["one", "three", "two"]]
        session.spawn(announced("four")).result(timeout=30)
        manual_clock.advance(60)
        assert woken.calls == [["one", "three", "two"], ["four"]]


def test_without_a_debounce_the_parent_is_woken_at_once(manual_clock: ManualClock) -> None:
    """No time passes."""
    woken = Woken()
    with a_host(manual_clock, config={"announce_debounce_ms": 0}) as runtime:
        runtime.session(MAIN, on_results=woken).spawn(announced("one")).result(timeout=30)
        manual_clock.run_until_idle()
        assert woken.calls == [["one"]]


@pytest.mark.parametrize(
    "spawn",
    [Spawn(task="x"), Spawn(task="x", announce=False), announced("x", mode="wait")],
    ids=["the host's own", "not wanted", "waited for"],
)
def test_what_is_not_to_be_announced_is_merged_in_silence(spawn: Spawn, manual_clock: ManualClock) -> None:
    """The host's own unless asked, and what somebody waits for."""
    woken = Woken()
    with a_host(manual_clock) as runtime:
        session = runtime.session(MAIN, on_results=woken)
        session.spawn(spawn).result(timeout=30)
        manual_clock.advance(60)
        assert woken.calls == []
        assert notes(session.transcript()) == ["[Subagent Result: x]"]


FAILURES: list[bool | BaseException] = [False, OSError("no line"), SystemExit(1), asyncio.CancelledError()]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_callback_that_fails_is_tried_again_and_then_given_up_without_loss(
    failure: bool | BaseException, is_async: bool, manual_clock: ManualClock
) -> None:
    """Returning False and raising are the same: backoff, a dead letter, and a replay that wakes once more."""
    woken = Woken(failure, failure, failure)
    woken.clock = manual_clock

    async def woken_later(results: tuple[SubAgentResult, ...]) -> bool | None:
        return woken(results)

    config = {"announce_debounce_ms": 0, "delivery_max_attempts": 3, "delivery_backoff_ms": 1_000}
    with a_host(manual_clock, config=config) as runtime:
        session = runtime.session(MAIN, on_results=woken_later if is_async else woken)
        with runtime.events() as events:
            run_id = session.spawn(announced("one")).run_id
            manual_clock.advance(600)
            told = [event for event in events.poll() if "dead" in event.name]
        assert woken.calls == [["one"]] * 3
        waits = [later - earlier for earlier, later in zip(woken.times, woken.times[1:], strict=False)]
        assert waits == sorted(waits)
        assert min(waits) >= 1
        assert notes(session.transcript()) == ["[Subagent Result: one]"]
        (letter,) = runtime.dead_letters()
        assert (letter.session_key, json.loads(letter.payload)) == (MAIN, [run_id])
        assert "the parent could not be woken" in letter.reason
        assert [(event.name, event.run_id) for event in told] == [("session:sub_agent_dead_lettered", run_id)]
        assert runtime.replay(letter.id) is True
        manual_clock.advance(600)
        assert woken.calls == [["one"]] * 4
        assert runtime.dead_letters() == []
        assert runtime.replay(letter.id) is False
        assert notes(session.transcript()) == ["[Subagent Result: one]"]


def test_a_callback_that_works_the_second_time_is_called_no_third_time(manual_clock: ManualClock) -> None:
    """And nothing is set aside."""
    woken = Woken(OSError("no line"))
    with a_host(manual_clock) as runtime:
        runtime.session(MAIN, on_results=woken).spawn(announced("one")).result(timeout=30)
        manual_clock.advance(600)
        assert woken.calls == [["one"]] * 2
        assert runtime.dead_letters() == []


@pytest.mark.parametrize("debounce", [0, 2_000])
def test_results_found_at_a_restart_wake_the_parent_when_its_host_opens_it(
    debounce: int, manual_clock: ManualClock, tmp_path: Path
) -> None:
    """However long the host takes to open its session: what was to be announced is announced, once."""
    config = {"announce_debounce_ms": debounce}
    with a_host(manual_clock, hang, config=config) as runtime:
        session = runtime.session(MAIN)
        for task in ("one", "two", "three"):
            session.spawn(announced(task))
        session.spawn(Spawn(task="quiet"))
        manual_clock.run_until_idle()
        crashed = died(runtime, tmp_path)
    woken, clock = Woken(), later()
    with a_host(clock, config=config, store=crashed) as runtime:
        clock.advance(100)
        session = runtime.session(MAIN, on_results=woken)
        clock.advance(100)
        assert woken.calls == [["one", "three", "two"]]
        assert len(notes(session.transcript())) == 4


# -- merging ------------------------------------------------------------------------------------------------------


class Failing:
    """A commit hook that fails the merge as often as it is told."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.seen = 0

    def __call__(self, point: CommitPoint, /) -> None:
        if point == "merge.before":
            self.seen += 1
            if self.left > 0:
                self.left -= 1
                raise OSError("the disk is on fire")


def test_a_merge_that_fails_is_tried_again(manual_clock: ManualClock) -> None:
    """The result arrives late and once; its outcome is as it was."""
    hook = Failing(2)
    with a_host(manual_clock, commit_hook=hook) as runtime:
        session = runtime.session(MAIN)
        handle = session.spawn(Spawn(task="x"))
        manual_clock.run_until_idle()
        assert notes(session.transcript()) == []
        assert handle.status == "completed"
        manual_clock.advance(60)
        assert handle.result(timeout=30).end_reason is EndReason.COMPLETED
        assert notes(session.transcript()) == ["[Subagent Result: x]"]
        assert (hook.seen, runtime.dead_letters(), runtime.store.problems()) == (3, [], [])


def test_a_merge_whose_commit_stands_is_not_done_twice(manual_clock: ManualClock) -> None:
    """What was heard of it does not matter, only what is in the store."""
    with a_host(manual_clock, commit_hook=CrashPoint("merge.after")) as runtime:
        session = runtime.session(MAIN)
        session.spawn(Spawn(task="x")).result(timeout=30)
        manual_clock.advance(60)
        assert notes(session.transcript()) == ["[Subagent Result: x]"]


def test_a_merge_that_goes_on_failing_becomes_a_dead_letter_that_can_be_replayed(
    manual_clock: ManualClock, tmp_path: Path
) -> None:
    """Whoever waits for the result gets it; the letter says why, survives a restart, and is delivered once."""
    hook, woken = Failing(1_000), Woken()
    config = {"delivery_max_attempts": 3}
    with a_host(manual_clock, config=config, commit_hook=hook, store=tmp_path / "s.db") as runtime:
        session = runtime.session(MAIN, on_results=woken)
        with runtime.events() as events:
            handles = [session.spawn(announced(task)) for task in ("one", "two")]
            manual_clock.advance(600)
            told = [event.run_id for event in events.poll() if event.name == "session:sub_agent_dead_lettered"]
        assert [handle.result(timeout=30).output for handle in handles] == ["done: one", "done: two"]
        assert told == [handle.run_id for handle in handles]
        letters = runtime.dead_letters(MAIN)
        assert {letter.run_id for letter in letters} == {handle.run_id for handle in handles}
        assert all("could not be merged" in letter.reason for letter in letters)
        assert json.loads(letters[0].payload)["output"] == "done: two"
        # Each once together with its end, and then three times by itself.
        assert (hook.seen, notes(session.transcript()), woken.calls) == (8, [], [])
        hook.left = 0
        with runtime.events() as events:
            assert runtime.replay(letters[0].id) is True
            names = [event.name for event in events.poll()]
        assert names == ["session:sub_agent_delivered", "session:sub_agent_dead_letter_delivered"]
        manual_clock.advance(60)
        assert woken.calls == [["two"]]
        assert notes(session.transcript()) == ["[Subagent Result: two]"]
    with a_host(manual_clock, store=tmp_path / "s.db") as runtime:
        session = runtime.session(MAIN)
        (letter,) = runtime.dead_letters()
        assert runtime.replay(letter.id) is True
        assert runtime.replay(letter.id) is False
        assert notes(session.transcript()) == ["[Subagent Result: two]", "[Subagent Result: one]"]
        assert runtime.store.problems() == []


def test_a_replay_that_fails_again_is_a_new_dead_letter_and_no_delivery(manual_clock: ManualClock) -> None:
    """The events do not claim what did not happen."""
    hook = Failing(1_000)
    with a_host(manual_clock, config={"delivery_max_attempts": 1}, commit_hook=hook) as runtime:
        session = runtime.session(MAIN)
        session.spawn(Spawn(task="x"))
        manual_clock.advance(60)
        (letter,) = runtime.dead_letters()
        with runtime.events() as events:
            replaying = asyncio.run_coroutine_threadsafe(runtime.put_back(letter.id), runtime._kernel.asyncio_loop)
            manual_clock.advance(60)
            replaying.result(30)
            names = [event.name for event in events.poll()]
        assert names == ["session:sub_agent_dead_lettered"]
        (another,) = runtime.dead_letters()
        assert another.id != letter.id
        hook.left = 0
        assert runtime.replay(another.id)
        assert notes(session.transcript()) == ["[Subagent Result: x]"]


def test_a_lock_that_outlasts_all_patience_loses_nothing(manual_clock: ManualClock, tmp_path: Path) -> None:
    """Neither merge nor dead letter can be written: when the lock is lifted the next sweep brings the result."""
    lock = LockAfter("terminal.after")
    lock.path = tmp_path / "s.db"
    config = {"delivery_max_attempts": 3}
    with a_host(manual_clock, config=config, commit_hook=lock, store=lock.path, busy_timeout_ms=1) as runtime:
        session = runtime.session(MAIN)
        handle = session.spawn(Spawn(task=LONG, label="x"))
        manual_clock.advance(25)
        assert notes(session.transcript()) == []
        assert handle.result(timeout=30).output.startswith("done: x")
        lock.lift()
        manual_clock.advance(60)
        assert notes(session.transcript()) == ["[Subagent Result: x]"]
        assert runtime.store.outbox.undelivered(dead=True) == []
        assert session._actor.stuck == set()
        assert runtime.store.problems() == []


def test_a_lock_that_is_lifted_in_time_costs_only_time(manual_clock: ManualClock, tmp_path: Path) -> None:
    """The attempts are counted in the outbox, for whoever looks."""
    lock = LockAfter("terminal.after")
    lock.path = tmp_path / "s.db"
    with a_host(manual_clock, commit_hook=lock, store=lock.path, busy_timeout_ms=1) as runtime:
        session = runtime.session(MAIN)
        handle = session.spawn(Spawn(task=LONG, label="x"))
        manual_clock.run_until_idle()
        lock.lift()
        manual_clock.advance(10)
        assert handle.result(timeout=30).output.startswith("done: x")
        assert notes(session.transcript()) == ["[Subagent Result: x]"]
        assert runtime.dead_letters() == []


def test_a_result_for_a_session_closed_for_good_is_a_dead_letter_until_it_is_opened_again(
    manual_clock: ManualClock, tmp_path: Path
) -> None:
    """Nobody is left above; whoever opens the session and replays gets it."""
    hook = Failing(1_000)
    with a_host(manual_clock, commit_hook=hook, store=tmp_path / "s.db") as runtime:
        session = runtime.session(MAIN)
        handle = session.spawn(Spawn(task="x"))
        manual_clock.run_until_idle()
        closing = session.ref.stop(block=False)
        manual_clock.advance(600)
        closing.get(timeout=30)
        (letter,) = runtime.dead_letters()
        assert letter.run_id == handle.run_id
        hook.left = 0
        session = runtime.session(MAIN)
        assert runtime.replay(letter.id)
        assert notes(session.transcript()) == ["[Subagent Result: x]"]


# -- back-pressure ------------------------------------------------------------------------------------------------


def test_with_fifty_results_stuck_new_spawns_are_refused_until_one_is_replayed(
    manual_clock: ManualClock, tmp_path: Path
) -> None:
    """Also after a restart: more children would only add to them."""
    hook = Failing(1_000)
    config = {"delivery_max_attempts": 1, "max_children_per_agent": 100}
    with a_host(manual_clock, config=config, commit_hook=hook, store=tmp_path / "s.db") as runtime:
        session = runtime.session(MAIN)
        for number in range(50):
            session.spawn(Spawn(task=f"{number}"))
        manual_clock.advance(60)
        with pytest.raises(SpawnRejected) as refusal:
            session.spawn(Spawn(task="one more"))
        rejection = refusal.value.rejection
        assert (rejection.reason, rejection.current, rejection.limit) == ("undelivered_backlog", 50, 50)
        assert "see its dead letters and replay them" in rejection.message
        assert len(runtime.dead_letters(limit=100)) == 50
    with a_host(manual_clock, config=config, store=tmp_path / "s.db") as runtime:
        session = runtime.session(MAIN)
        with pytest.raises(SpawnRejected):
            session.spawn(Spawn(task="one more"))
        assert runtime.session("agent:other").spawn(Spawn(task="x")).result(timeout=30).output == "done: x"
        runtime.replay(runtime.dead_letters()[0].id)
        assert session.spawn(Spawn(task="one more")).result(timeout=30).output == "done: one more"


# -- dead letters of other kinds ----------------------------------------------------------------------------------


def test_a_message_nobody_could_handle_is_listed_and_says_that_it_cannot_be_replayed(
    manual_clock: ManualClock,
) -> None:
    """Only its description is kept: to say that it was delivered would be a lie."""
    with a_host(manual_clock) as runtime:
        session = runtime.session(MAIN)
        session.ref.tell({"type": "nonsense"})
        manual_clock.run_until_idle()
        (letter,) = runtime.dead_letters()
        assert "nonsense" in letter.payload
        with pytest.raises(ValueError, match="send it again"):
            runtime.replay(letter.id)
        assert runtime.dead_letters() == [letter]


def test_an_announcement_is_not_replayed_into_a_session_that_is_not_open(manual_clock: ManualClock) -> None:
    """It stays on the list until its session can hear it."""
    woken = Woken(OSError("no line"))
    config = {"announce_debounce_ms": 0, "delivery_max_attempts": 1}
    with a_host(manual_clock, config=config) as runtime:
        session = runtime.session(MAIN, on_results=woken)
        session.spawn(announced("x")).result(timeout=30)
        manual_clock.advance(60)
        session.close()
        (letter,) = runtime.dead_letters()
        with pytest.raises(ValueError, match=f"open session {MAIN} with its on_results first"):
            runtime.replay(letter.id)
        runtime.session(MAIN, on_results=woken)
        assert runtime.replay(letter.id)
        manual_clock.advance(60)
        assert woken.calls == [["x"], ["x"]]


def test_a_dead_letter_that_does_not_exist_is_named_in_one_sentence(manual_clock: ManualClock) -> None:
    """With where to look."""
    with a_host(manual_clock) as runtime, pytest.raises(UnknownRunError, match=r"there is no dead letter 7: `runtime"):
        runtime.replay(7)


# -- files --------------------------------------------------------------------------------------------------------


def test_results_are_filed_privately_after_delivery_and_swept_when_their_time_is_over(
    manual_clock: ManualClock, tmp_path: Path
) -> None:
    """The run's end stays as it was; an event tells of each."""
    config = {"result_retention_ms": 100_000}
    with a_host(manual_clock, config=config, store=tmp_path / "s.db") as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        with runtime.events() as events:
            result = session.spawn(Spawn(task="x")).result(timeout=30)
            assert result.full_ref is not None
            path = runtime.store.results.path(result.session_key, result.run_id)
            assert (str(path), path.exists()) == (result.full_ref, False)
            manual_clock.advance(3)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert json.loads(path.read_text(encoding="utf-8"))["full_output"] == "done: x"
            manual_clock.advance(90)
            assert path.exists()
            manual_clock.advance(60)
            assert not path.exists()
            told = [(event.name, event.run_id, event.data.get("end_reason")) for event in events.poll()]
        record = runtime.store.runs.get(result.run_id)
        assert record is not None
        assert record.facts.swept_at is not None
        assert (record.facts.end_reason, record.facts.status) == (EndReason.COMPLETED, "completed")
        assert told[-3:] == [
            ("session:sub_agent_delivered", result.run_id, None),
            ("session:sub_agent_archived", result.run_id, None),
            ("session:sub_agent_lifecycle_ended", result.run_id, EndReason.SWEPT),
        ]
        assert runtime.run(result.run_id).result(timeout=30).output == "done: x"


def test_a_folder_that_cannot_be_written_disturbs_nobody_and_is_tried_again(
    manual_clock: ManualClock, tmp_path: Path
) -> None:
    """The database has it all; the file comes with the next delivery."""
    with a_host(manual_clock, store=tmp_path / "s.db") as runtime:
        (tmp_path / "results").write_text("in the way", encoding="utf-8")
        session = runtime.session(MAIN, workspace=tmp_path)
        first = session.spawn(Spawn(task="x")).result(timeout=30)
        manual_clock.advance(3)
        (tmp_path / "results").unlink()
        session.spawn(Spawn(task="y")).result(timeout=30)
        manual_clock.advance(3)
        assert runtime.store.results.path(first.session_key, first.run_id).exists()


# -- events -------------------------------------------------------------------------------------------------------

LIFE = [
    "session:sub_agent_spawn_prepared",
    "session:sub_agent_spawned",
    "session:sub_agent_started",
    "session:sub_agent_progress",
    "session:sub_agent_completed",
    "session:sub_agent_lifecycle_ended",
    "session:sub_agent_delivered",
    "session:sub_agent_archived",
]


async def work(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    context.progress("looking")
    context.usage(input_tokens=3, output_tokens=4, cost_usd=0.5)
    return "done"


def test_the_events_of_one_life_come_in_order_with_all_their_fields(manual_clock: ManualClock) -> None:
    """Each with run, session, parent, depth and time; a grandchild's too."""
    with a_host(manual_clock, delegate, runners={"grandchild": work}, prepare_spawn=lambda _: None) as runtime:
        session = runtime.session(MAIN)
        with runtime.events() as events:
            handle = session.spawn(Spawn(task="x"))
            handle.result(timeout=30)
            manual_clock.advance(5)
            seen = events.poll()
        child = [event for event in seen if event.run_id == handle.run_id]
        below = [event for event in seen if event.run_id not in {None, handle.run_id}]
        assert [event.name for event in below] == LIFE
        assert [event.name for event in child] == [name for name in LIFE if "progress" not in name]
        assert {(event.session_key, event.parent_run_id, event.depth) for event in child} == {(MAIN, None, 1)}
        assert {(event.session_key, event.parent_run_id, event.depth) for event in below} == {
            (handle.session_key, handle.run_id, 2)
        }
        assert all(event.at >= 1_767_225_600_000 for event in seen)
        data = {event.name.removeprefix("session:sub_agent_"): dict(event.data) for event in below}
        assert data["spawned"] == {"label": "x", "runner": "grandchild"}
        assert data["progress"] == {"text": "looking"}
        assert data["completed"] == {"status": "completed"}
        assert data["lifecycle_ended"].pop("result_path")
        assert data["lifecycle_ended"] == {
            "end_reason": "completed",
            "runtime_ms": 0,
            "tokens": 7,
            "cost_usd": 0.5,
            "condensation_level": 1,
        }


def test_a_queued_spawn_is_told_of_as_queued_before_it_starts(manual_clock: ManualClock) -> None:
    """Two events at two times."""
    config = {"max_children_per_agent": 1, "max_queued_per_agent": 1}
    with a_host(manual_clock, hang, config=config) as runtime:
        session = runtime.session(MAIN)
        first = session.spawn(Spawn(task="x"))
        second = session.spawn(Spawn(task="y", runner="answer"))
        with runtime.events(run_id=second.run_id) as events:
            manual_clock.advance(10)
            session.kill(first.run_id)
            second.result(timeout=30)
            manual_clock.run_until_idle()
            names = [event.name.rpartition("_")[2] for event in events.poll()]
        assert names == ["started", "completed", "ended", "delivered"]


def test_events_can_be_picked_by_name_run_and_session(manual_clock: ManualClock) -> None:
    """Nothing else arrives."""
    with a_host(manual_clock) as runtime:
        one, other = runtime.session("agent:one"), runtime.session("agent:other")
        by_name = runtime.events(names=["session:sub_agent_delivered"])
        by_session = runtime.events(session_key="agent:one")
        handles = [session.spawn(Spawn(task="x")) for session in (one, other)]
        for handle in handles:
            handle.result(timeout=30)
        manual_clock.run_until_idle()
        assert {event.name for event in by_name.poll()} == {"session:sub_agent_delivered"}
        assert {event.session_key for event in by_session.poll()} == {"agent:one"}


def test_a_slow_subscriber_loses_its_own_backlog_and_nobody_elses(manual_clock: ManualClock) -> None:
    """It is told how many, and keeps the newest."""
    with a_host(manual_clock) as runtime:
        slow, quick = runtime.events(backlog=3), runtime.events()
        session = runtime.session(MAIN)
        for _ in range(5):
            session.spawn(Spawn(task="x")).result(timeout=30)
        manual_clock.run_until_idle()
        everything = quick.poll()
        assert (quick.missed, slow.missed) == (0, len(everything) - 3)
        assert slow.poll() == everything[-3:]


def test_a_closing_runtime_ends_every_iteration(manual_clock: ManualClock) -> None:
    """Who iterates gets what is left, the end of the last run included, and then the end."""
    seen: list[Event] = []
    with a_host(manual_clock, hang) as runtime:
        events = runtime.events()
        listener = threading.Thread(target=lambda: seen.extend(events), daemon=True)
        listener.start()
        runtime.session(MAIN).spawn(Spawn(task="x"))
    listener.join(30)
    assert not listener.is_alive()
    assert "session:sub_agent_lifecycle_ended" in [event.name for event in seen]


def test_the_async_face_tells_and_delivers_alike() -> None:
    """Events by ``async for``, callbacks as coroutines, dead letters awaited."""
    woken: list[int] = []

    async def fail(results: tuple[SubAgentResult, ...]) -> bool:
        woken.append(len(results))
        return len(woken) > 1

    async def main() -> list[str]:
        clock = ManualClock()
        config = RuntimeConfig(announce_debounce_ms=0, delivery_max_attempts=1)
        async with AsyncRuntime(clock=clock, config=config, runners={"default": FunctionRunner(work)}) as runtime:
            events = runtime.events()
            session = await runtime.session(MAIN, on_results=fail)
            handle = await session.spawn(announced("x"))
            assert (await handle.result()).output == "done"
            await clock.advance_async(10)
            (letter,) = await runtime.dead_letters()
            assert await runtime.replay(letter.id) is True
            await clock.advance_async(10)
            assert await runtime.dead_letters() == []
            assert await runtime.sweep() == 0
        return [event.name.removeprefix("session:sub_agent_") async for event in events]

    names = asyncio.run(main())
    assert woken == [1, 1]
    assert names[0] == "spawned"
    assert [name for name in names if "dead" in name] == ["dead_lettered", "dead_letter_delivered"]
