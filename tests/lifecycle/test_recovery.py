"""A host dies at the worst moment: the next one finds every run, and each still has exactly one end."""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from _lives import Lives

from understudy.actors import FunctionRunner, Runtime, SessionBusy
from understudy.actors.testing import CrashPoint, ManualClock, ScriptedRunner
from understudy.persistence.operations import HostStopped, RequestCancel
from understudy.protocol import Budget, Spawn
from understudy.protocol.model import Turn, UsageReport
from understudy.protocol.runner import Final, Said, Touched
from understudy.protocol.usage import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from understudy.actors.runners import AsyncFunctionContext, RunContext, Runner
    from understudy.actors.testing import Gate
    from understudy.actors.testing.scripted_runner import RunnerStep
    from understudy.protocol import SpawnPacket
    from understudy.protocol.runner import RunnerEvent

KEY = "agent:atlas:main"
WAIT = 30


@pytest.fixture
def lives(tmp_path: Path) -> Lives:
    return Lives(tmp_path)


def said(text: str) -> Said:
    return Said(Turn("assistant", text))


def tokens(count: int) -> UsageReport:
    return UsageReport(Usage(input_tokens=count))


def notes(runtime: Runtime, key: str = KEY) -> Counter[str]:
    """How often each label's result was narrated in a session."""
    texts = [stored.turn.text for stored in runtime.store.transcripts.turns(key)]
    return Counter(text.partition("]")[0].rpartition(": ")[2] for text in texts if text.startswith("[Subagent"))


def ends(runtime: Runtime) -> dict[str, tuple[str, str | None]]:
    """How every run ended, by label; all must have, and the file must be whole."""
    assert runtime.store.problems() == []
    assert runtime.store.runs.unfinished() == []
    assert runtime.store.outbox.undelivered() == []
    found: dict[str, tuple[str, str | None]] = {}
    for run in runtime.runs().items:
        result = runtime.store.runs.result(run.run_id)
        assert result is not None
        found[run.label] = (result.end_reason.value, None if result.failure is None else result.failure.kind)
    return found


LOST = ("ghost_sweep", "host_lost")
DONE = ("completed", None)


def test_a_result_that_was_stored_and_not_delivered_is_delivered_at_the_next_start(lives: Lives) -> None:
    """Nobody has to ask for the session: it is opened by the start itself."""
    hook = CrashPoint("merge.before", "delay")
    # So long that the end is committed before it is shortened, and merged after that.
    runner = ScriptedRunner([Touched("a.py"), Final("done " * 10_000)])
    with lives.host(runner, hook=hook) as runtime:
        handle = runtime.session(KEY, workspace=lives.folder).spawn(Spawn(task="work", label="a"))
        assert hook.reached.wait(WAIT)
        lives.crash()
        hook.release()
    with lives.host(runner) as runtime:
        lives.clock.run_until_idle()
        assert (ends(runtime), notes(runtime)) == ({"a": DONE}, {"a": 1})
        assert runtime.session(KEY).working_context.recent_files == (str(lives.folder / "a.py"),)
        assert runtime.run(handle.run_id).result(timeout=WAIT).output.startswith("done")
    lives.crash()
    with lives.host(runner) as runtime:
        assert notes(runtime) == {"a": 1}, "and never again"


@pytest.mark.parametrize("function", [False, True])
def test_an_interrupted_run_hands_over_what_it_had(lives: Lives, function: bool) -> None:
    """What it said, what it touched in touch order, what it used: as far as its host lived to store it."""
    gate = lives.clock.gate()

    async def work(_packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        for path in ("a.py", "b.py", "a.py"):
            context.touch(path)
        context.usage(input_tokens=7)
        await gate
        return "never"

    script: list[RunnerStep] = [Touched("a.py"), Touched("b.py"), said("half"), Touched("a.py"), tokens(7), gate]
    runner: Runner = FunctionRunner(work) if function else ScriptedRunner(script)
    with lives.host(runner) as runtime:
        handle = runtime.session(KEY, workspace=lives.folder).spawn(
            Spawn(task="work", label="a", expected_outputs=("x",))
        )
        lives.clock.advance(5)
        lives.crash()
    with lives.host(runner) as runtime:
        lives.clock.run_until_idle()
        assert (ends(runtime), notes(runtime)) == ({"a": LOST}, {"a": 1})
        result = runtime.run(handle.run_id).result(timeout=WAIT)
        assert [file.path.rpartition("/")[2] for file in result.recent_files] == ["b.py", "a.py"]
        assert runtime.session(KEY).working_context.recent_files == (
            str(lives.folder / "a.py"),
            str(lives.folder / "b.py"),
        )
        assert (result.usage.total_tokens, result.output, result.partial) == (
            7,
            "" if function else "half",
            not function,
        )
        assert (result.missing_outputs, result.failure and result.failure.retryable) == (("x",), True)
        assert (result.full_ref or "").endswith(f"{handle.run_id}.json")
        assert runtime._backstage.running == 0


class Resuming:
    """Says one more word in each life, and finishes in the last."""

    def __init__(self, gate: Gate, *, lives: int) -> None:
        self.gate = gate
        self.lives = lives
        self.histories: list[list[str]] = []
        self.packets: list[SpawnPacket] = []

    async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        self.packets.append(packet)
        self.histories.append([turn.text for turn in context.history])
        yield tokens(40)
        yield said(f"word {len(self.histories)}")
        if len(self.histories) < self.lives:
            await self.gate
        yield Final("done")


def test_a_run_that_may_resume_goes_on_from_its_last_turn(lives: Lives) -> None:
    """Its history is there; its deadline, lineage, steps and usage go on, and the generation is the next one."""
    runner = Resuming(lives.clock.gate(), lives=2)
    with lives.host(runner) as runtime:
        handle = runtime.session(KEY).spawn(Spawn(task="work", label="a", restart="resume"))
        lives.clock.advance(100)
        lives.crash()
    lives.clock.advance(50)
    with lives.host(runner) as runtime:
        result = runtime.run(handle.run_id).result(timeout=WAIT)
        assert runner.histories == [["work"], ["work", "word 1"]]
        assert runner.packets[0] == runner.packets[1], "the deadline too"
        assert (result.output, result.generation, result.steps, result.usage.total_tokens) == ("done", 2, 3, 80)
        assert result.runtime_ms == 150_000
        assert (ends(runtime), notes(runtime)) == ({"a": DONE}, {"a": 1})
        said_by_it = [stored.turn.text for stored in runtime.store.transcripts.turns(handle.session_key)]
        assert said_by_it == ["work", "word 1", "word 2", "done"]


@pytest.mark.parametrize(
    ("spawn", "config", "away", "end"),
    [
        ({"budget": Budget(tokens=70)}, {}, 1, ("killed", "budget")),
        ({"timeout_ms": 200_000}, {}, 1, ("watchdog_timeout", "deadline")),
        ({"timeout_ms": 20_000}, {}, 30, LOST),
        ({"env": {"API_TOKEN": "sk-ant-REDACTED"}}, {}, 1, LOST),
        ({"env": {"COLOUR": "blue"}}, {}, 1, ("watchdog_timeout", "deadline")),
        ({}, {"max_restarts": 0}, 1, LOST),
        ({"restart": "fail"}, {}, 1, LOST),
        ({"restart": None}, {"restart_policy": "fail"}, 1, LOST),
        ({"restart": None}, {"restart_policy": "resume"}, 1, ("watchdog_timeout", "deadline")),
    ],
)
def test_resuming_keeps_every_limit(
    spawn: dict[str, Any], config: dict[str, Any], away: int, end: tuple[str, str], lives: Lives
) -> None:
    """Budget and deadline go on; without time, secrets or permission it does not resume at all."""
    runner = Resuming(lives.clock.gate(), lives=9)
    with lives.host(runner, config=config) as runtime:
        runtime.session(KEY).spawn(Spawn(**{"task": "work", "label": "a", "restart": "resume", **spawn}))
        lives.clock.advance(10)
        lives.crash()
    lives.clock.advance(away)
    with lives.host(runner, config=config) as runtime:
        lives.clock.run_until_idle()
        assert len(runner.histories) == (1 if end == LOST else 2)
        lives.clock.advance(600)
        assert (ends(runtime), notes(runtime)) == ({"a": end}, {"a": 1})


@pytest.mark.parametrize(("away", "resumed"), [(1, 2), (120, 4)])
def test_too_many_restarts_within_the_window_are_the_end(away: int, resumed: int, lives: Lives) -> None:
    """Two in two minutes by default: a run that takes its host down with it does not do so for ever."""
    runner = Resuming(lives.clock.gate(), lives=9)
    for life in range(5):
        with lives.host(runner, config={"max_run_timeout_ms": 3_000_000, "max_steps": 9_999}) as runtime:
            if life == 0:
                runtime.session(KEY).spawn(Spawn(task="work", label="a", restart="resume"))
            lives.clock.run_until_idle()
            lives.crash()
        lives.clock.advance(away)
    assert len(runner.histories) == 1 + resumed


def test_a_run_that_was_being_killed_does_not_resume(lives: Lives) -> None:
    """Somebody wanted its end, and its host died before that was stored."""
    runner = Resuming(lives.clock.gate(), lives=9)
    with lives.host(runner) as runtime:
        handle = runtime.session(KEY).spawn(Spawn(task="work", label="a", restart="resume"))
        lives.clock.run_until_idle()
        runtime.store.transaction(RequestCancel(handle.run_id, lives.clock.wall_ms(), "not wanted")).result(WAIT)
        lives.crash()
    with lives.host(runner) as runtime:
        lives.clock.run_until_idle()
        assert (ends(runtime), len(runner.histories)) == ({"a": LOST}, 1)


class Gated:
    """Each run waits at the gate of its task, one for all lives."""

    def __init__(self) -> None:
        self.gates: dict[str, Gate] = {}
        self.began: list[str] = []

    async def run(self, packet: SpawnPacket, _context: RunContext) -> AsyncIterator[RunnerEvent]:
        self.began.append(packet.task)
        gate = self.gates[packet.task] = ManualClock().gate()
        await gate
        yield Final(f"done with {packet.env}")


QUEUE = {"max_children_per_agent": 1, "max_queued_per_agent": 5}


def test_queued_spawns_are_still_queued_and_start_in_order(lives: Lives) -> None:
    """The one that ran is lost with its host; the next in the queue gets its slot at once."""
    runner = Gated()
    with lives.host(runner, config=QUEUE) as runtime:
        session = runtime.session(KEY)
        for task in "abc":
            session.spawn(Spawn(task=task, label=task))
        lives.clock.advance(10)
        lives.crash()
    lives.clock.advance(10)
    with lives.host(runner, config=QUEUE) as runtime:
        lives.clock.run_until_idle()
        assert runner.began == ["a", "b"]
        assert [child.state for child in runtime.session(KEY).children()] == ["running", "queued"]
        runner.gates["b"].open()
        lives.clock.run_until_idle()
        runner.gates["c"].open()
        lives.clock.run_until_idle()
        assert (ends(runtime), runner.began) == ({"a": LOST, "b": DONE, "c": DONE}, ["a", "b", "c"])


def test_the_time_in_the_queue_goes_on(lives: Lives) -> None:
    """A restart does not buy a second wait."""
    runner = Gated()
    config = {**QUEUE, "restart_policy": "resume"}
    with lives.host(runner, config=config) as runtime:
        session = runtime.session(KEY)
        for task in "ab":
            session.spawn(Spawn(task=task, label=task))
        lives.clock.advance(100)
        lives.crash()
    with lives.host(runner, config=config) as runtime:
        lives.clock.advance(19)
        assert [child.state for child in runtime.session(KEY).children()] == ["running", "queued"]
        lives.clock.advance(1)
        assert [child.label for child in runtime.session(KEY).children()] == ["a"]
        assert runner.began == ["a", "a"]
        lives.clock.advance(500)
        assert ends(runtime) == {"a": ("watchdog_timeout", "deadline"), "b": ("failed", "queue_timeout")}


def test_a_queued_spawn_whose_secrets_are_gone_does_not_start_without_them(lives: Lives) -> None:
    """They were never written; a child with a mask for a key could only do harm."""
    runner = Gated()
    with lives.host(runner, config=QUEUE) as runtime:
        session = runtime.session(KEY)
        session.spawn(Spawn(task="a", label="a"))
        session.spawn(Spawn(task="b", label="b", env={"API_TOKEN": "sk-ant-REDACTED"}))
        lives.clock.run_until_idle()
        lives.crash()
    with lives.host(runner, config=QUEUE) as runtime:
        lives.clock.run_until_idle()
        assert (ends(runtime), runner.began) == ({"a": LOST, "b": LOST}, ["a"])


class Family:
    """A child that spawns a grandchild; either may finish, each touches a file of its own."""

    def __init__(self, *, child_finishes: bool = False, **spawn: Any) -> None:
        self.child_finishes = child_finishes
        self.spawn = spawn
        self.began: list[str] = []

    async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        self.began.append(packet.label)
        yield Touched(f"{packet.label}.py")
        yield said(f"{packet.label} began")
        if packet.label == "child" and len(context.history) == 1:
            await context.spawn(Spawn(task="below", label="grandchild", **self.spawn))
        if packet.label == "child" and self.child_finishes:
            yield Final("delegated")
        await ManualClock().gate()


def files(runtime: Runtime) -> set[str]:
    return {path.rpartition("/")[2] for path in runtime.session(KEY).working_context.recent_files}


def test_a_whole_tree_is_brought_to_its_ends(lives: Lives) -> None:
    """Deepest first, each once, and everything they touched is the session's."""
    runner = Family()
    with lives.host(runner) as runtime:
        runtime.session(KEY, workspace=lives.folder).spawn(Spawn(task="above", label="child"))
        lives.clock.run_until_idle()
        lives.crash()
    with lives.host(runner) as runtime:
        lives.clock.run_until_idle()
        assert ends(runtime) == {"child": LOST, "grandchild": LOST}
        assert notes(runtime) == {"child": 1, "grandchild": 1}
        assert files(runtime) == {"child.py", "grandchild.py"}
        assert (runtime._backstage.live, runtime._backstage.running) == ({}, 0)


def test_a_grandchild_whose_parent_had_finished_is_not_forgotten(lives: Lives) -> None:
    """Its parent's end is stored: it is found all the same, and its result goes to the session above."""
    runner = Family(child_finishes=True)
    with lives.host(runner) as runtime:
        runtime.session(KEY, workspace=lives.folder).spawn(Spawn(task="above", label="child"))
        lives.clock.run_until_idle()
        lives.crash()
    with lives.host(runner) as runtime:
        lives.clock.run_until_idle()
        assert ends(runtime) == {"child": DONE, "grandchild": LOST}
        assert notes(runtime) == {"child": 1, "grandchild": 1}
        assert files(runtime) == {"child.py", "grandchild.py"}


def test_a_grandchild_whose_parent_had_finished_resumes(lives: Lives) -> None:
    """Where its policy says so; its result goes to the session above."""
    runner = Family(child_finishes=True, restart="resume")
    with lives.host(runner) as runtime:
        runtime.session(KEY, workspace=lives.folder).spawn(Spawn(task="above", label="child"))
        lives.clock.run_until_idle()
        lives.crash()
    with lives.host(runner) as runtime:
        lives.clock.run_until_idle()
        assert runner.began == ["child", "grandchild", "grandchild"]
        lives.clock.advance(600)
        assert ends(runtime) == {"child": DONE, "grandchild": ("watchdog_timeout", "deadline")}
        assert notes(runtime) == {"child": 1, "grandchild": 1}
        assert files(runtime) == {"child.py", "grandchild.py"}


@pytest.mark.parametrize("grandchild", ["fail", "resume"])
@pytest.mark.parametrize("stop", ["crash", "orderly"])
def test_a_tree_that_may_resume_resumes(grandchild: str, stop: str, lives: Lives) -> None:
    """After a crash and after an orderly stop: whoever may resume does, below one that may, too."""
    runner = Family(restart=grandchild)
    with lives.host(runner) as runtime:
        runtime.session(KEY, workspace=lives.folder).spawn(Spawn(task="above", label="child", restart="resume"))
        lives.clock.run_until_idle()
        if stop == "crash":
            lives.crash()
    with lives.host(runner) as runtime:
        lives.clock.run_until_idle()
        again = ["child"] if grandchild == "fail" else ["child", "grandchild"]
        assert sorted(runner.began[2:]) == again
        lives.clock.advance(700)
        found = ends(runtime)
        assert found["child"] == ("watchdog_timeout", "deadline")
        if grandchild == "fail":
            assert found["grandchild"] == (LOST if stop == "crash" else ("killed", "host_stopped"))
        assert files(runtime) == {"child.py", "grandchild.py"}
        assert notes(runtime)["child"] == 1


def test_an_orderly_stop_leaves_what_may_resume_and_ends_the_rest(lives: Lives) -> None:
    """What may resume has no end, says so to whoever waits, and is running again after the next start."""
    runner = Gated()
    with lives.host(runner) as runtime:
        session = runtime.session(KEY)
        handles = [
            session.spawn(Spawn(task=task, label=task, restart=policy))
            for task, policy in (("a", "resume"), ("b", "fail"))
        ]
        lives.clock.run_until_idle()
    with pytest.raises(Exception, match="was interrupted and resumes at the next start"):
        handles[0].result(timeout=WAIT)
    assert handles[1].result(timeout=WAIT).end_reason == "killed"
    with lives.host(runner) as runtime:
        lives.clock.run_until_idle()
        assert runner.began == ["a", "b", "a"]
        runner.gates["a"].open()
        lives.clock.run_until_idle()
        assert ends(runtime) == {"a": DONE, "b": ("killed", "host_stopped")}
        assert notes(runtime) == {"a": 1, "b": 1}


def test_a_result_for_a_session_that_was_closed_for_good_is_a_dead_letter(lives: Lives) -> None:
    """Nobody is left to take it in; it is kept, once, and can be looked at."""
    hook = CrashPoint("merge.before", "delay")
    runner = ScriptedRunner([Final("done " * 10_000)])  # merged by itself, as above
    with lives.host(runner, hook=hook) as runtime:
        handle = runtime.session(KEY).spawn(Spawn(task="work", label="a"))
        assert hook.reached.wait(WAIT)
        lives.crash()
        hook.release()
    with sqlite3.connect(lives.database) as left:
        left.execute("UPDATE sessions SET completed_at = updated_at WHERE session_key = ?", (KEY,))
    left.close()
    for _ in range(2):
        with lives.host(runner) as runtime:
            lives.clock.run_until_idle()
            (letter,) = runtime.dead_letters()
            assert (letter.run_id, "closed for good" in letter.reason) == (handle.run_id, True)
            assert (runtime.store.problems(), notes(runtime)) == ([], {})


def test_a_session_is_open_in_one_runtime_at_a_time(lives: Lives) -> None:
    """The second is told who holds it, touches nothing of it, and gets it when the first has closed."""
    runner = Gated()
    with lives.host(runner) as other:
        with lives.host(runner) as first:
            first.session(KEY).spawn(Spawn(task="a", label="a"))
            lives.clock.run_until_idle()
            with pytest.raises(SessionBusy) as busy:
                other.session(KEY)
            assert busy.value.holder == first._backstage.host
            lives.clock.advance(100)
            assert runner.began == ["a"]
            assert [run.facts.status for run in other.runs().items] == ["running"]
        assert other.session(KEY).children() == []
        assert ends(other) == {"a": ("killed", "host_stopped")}


def test_a_living_host_takes_over_from_one_that_died(lives: Lives) -> None:
    """Not only at a start: the sweep of any host on the same file finds what a dead one left."""
    runner = ScriptedRunner([said("half"), lives.clock.gate()])
    with lives.host(runner) as runtime:
        runtime.session(KEY).spawn(Spawn(task="a", label="a"))
        lives.clock.run_until_idle()
        lives.crash()
    with sqlite3.connect(lives.database) as left:
        left.execute("UPDATE hosts SET process_started = process_started - 1")
    left.close()
    with lives.host(runner) as runtime:
        lives.clock.run_until_idle()
        assert len(runtime.store.runs.unfinished()) == 1, "its process is there, and it was heard of just now"
        with sqlite3.connect(lives.database) as left:
            left.execute(
                "UPDATE hosts SET process_started = process_started + 1 WHERE incarnation <> ?",
                (runtime._backstage.host,),
            )
        left.close()
        lives.clock.advance(30)
        assert (ends(runtime), notes(runtime)) == ({"a": LOST}, {"a": 1})


def test_a_host_of_elsewhere_is_dead_after_a_long_silence(lives: Lives) -> None:
    """Its process cannot be looked up: only that it says nothing any more tells."""
    runner = ScriptedRunner([lives.clock.gate()])
    with lives.host(runner) as runtime:
        runtime.session(KEY).spawn(Spawn(task="a", label="a"))
        lives.clock.run_until_idle()
        lives.crash()
    with sqlite3.connect(lives.database) as left:
        left.execute("UPDATE hosts SET incarnation = 'elsewhere-1'")
        left.execute("UPDATE runs SET host = 'elsewhere-1'")
        left.execute("UPDATE sessions SET holder = 'elsewhere-1' WHERE holder IS NOT NULL")
    left.close()
    with lives.host(runner) as runtime:
        lives.clock.advance(119)
        assert len(runtime.store.runs.unfinished()) == 1
        with pytest.raises(SessionBusy, match="elsewhere-1"):
            runtime.session(KEY)
        lives.clock.advance(32)
        assert (ends(runtime), notes(runtime)) == ({"a": LOST}, {"a": 1})


def test_a_host_that_was_taken_for_dead_and_is_not_comes_too_late(lives: Lives) -> None:
    """It was only asleep: its end belongs to an older generation, is recorded as late, and changes nothing."""
    old, new = Gated(), Gated()
    with lives.host(old) as asleep:
        handle = asleep.session(KEY).spawn(Spawn(task="a", label="a", restart="resume"))
        lives.clock.run_until_idle()
        asleep.store.transaction(HostStopped(asleep._backstage.host, lives.clock.wall_ms())).result(WAIT)
        with lives.host(new) as runtime:
            lives.clock.run_until_idle()
            assert (old.began, new.began) == (["a"], ["a"])
            old.gates["a"].open()
            lives.clock.run_until_idle()
            assert runtime.run(handle.run_id).status == "running"
            (late,) = runtime.store.runs.late_endings(handle.run_id)
            assert (late.generation, late.end_reason) == (1, "completed")
            new.gates["a"].open()
            assert runtime.run(handle.run_id).result(timeout=WAIT).generation == 2
            assert (ends(runtime), notes(runtime)) == ({"a": DONE}, {"a": 1})
