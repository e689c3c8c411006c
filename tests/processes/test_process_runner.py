"""A runner in a worker process: the same events, results and ends as in the host, and a death with proof."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import _workers
import pytest
from _proc import see_gone

from understudy.actors import FunctionRunner, ModelRunner, ProcessRunner, Runtime
from understudy.actors.testing import ScriptedModel
from understudy.actors.tools import shell_tool
from understudy.protocol import EndReason, Spawn
from understudy.protocol.model import ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from understudy.actors import RunHandle
    from understudy.actors.testing import ManualClock
    from understudy.protocol import SubAgentResult

KEY = "agent:atlas:main"
NO_CHILDREN = "a run in a worker process cannot delegate: do the work here, or run it in the host"
CANARY = "canary-5f0c2b9e7d"

pytestmark = pytest.mark.slow  # a worker is a Python that imports the library


class Stage:
    """A runtime with every worker there is."""

    def __init__(self, runtime: Runtime, workspace: Path) -> None:
        self.runtime = runtime
        self.workspace = workspace
        self.session = runtime.session(KEY, workspace=workspace)

    def spawn(self, runner: str, task: str = "work", **options: object) -> RunHandle:
        """Have a worker work."""
        return self.session.spawn(Spawn.model_validate({"task": task, "runner": runner, **options}))

    def result(self, runner: str, task: str = "work", **options: object) -> SubAgentResult:
        """And see what becomes of it."""
        return self.spawn(runner, task, **options).result(timeout=100)

    def until(self, handle: RunHandle, event: str, **data: object) -> None:
        """Return once this has happened."""
        with self.runtime.events(run_id=handle.run_id) as events:
            happened = [*self.runtime.store.runs.events(handle.run_id)]
            while not any(one.name.endswith(event) and data.items() <= one.data.items() for one in happened):
                happened.append(next(events))

    def proof(self, handle: RunHandle) -> str:
        """The recorded proof of death."""
        self.until(handle, "process_ended")
        (ended,) = [one for one in self.runtime.store.runs.events(handle.run_id) if one.name.endswith("process_ended")]
        assert ended.data["survivors"] == 0
        return str(ended.data["proof"])


RUNNERS = {
    name: ProcessRunner(f"_workers:{name}", term_grace=60)
    for name in ("where", "fail", "leave", "Talker", "Babbler", "Listener", "Delegator", "Cleaner")
} | {
    "packed": ProcessRunner(_workers.Talker("packed")),
    "model": ProcessRunner("_workers:model"),
    **{name: ProcessRunner(f"_workers:{name}", term_grace=0.1) for name in ("sleeper", "spinner", "holder")},
}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Runtime(":memory:", runners=RUNNERS) as runtime:
        yield Stage(runtime, tmp_path)


def test_a_worker_works_as_in_the_host(stage: Stage) -> None:
    """Turns, usage, files, text and history are the run's; what it prints is a note; it knows that it is a leaf."""
    with stage.runtime.events(names=["session:sub_agent_progress"]) as notes:
        handle = stage.spawn("Talker")
        result = handle.result(timeout=100)
    assert (result.end_reason, result.output) == (EndReason.COMPLETED, "done: 1 turn, leaf True")
    assert (result.usage.total_tokens, result.usage.cost_usd, result.steps) == (7, 0.5, 2)
    assert [file.path for file in result.recent_files] == [str(stage.workspace / "seen.txt")]
    turns = [stored.turn for stored in stage.runtime.store.transcripts.turns(handle.session_key)]
    assert [turn.role for turn in turns] == ["user", "assistant", "tool", "assistant"]
    assert turns[1].tool_calls[0].arguments == {"path": "a\nb"}
    assert {note.data.get("text") for note in notes.poll()} >= {"printed by the worker", "emitted"}
    assert " none" in stage.proof(handle), "it left by itself"


def test_objects_and_models_work_in_a_worker(stage: Stage) -> None:
    """An object is packed with what it holds; one with tools, as a model's runner, goes by its name."""
    assert stage.result("packed").output == "packed: 1 turn, leaf True"
    assert stage.result("model").output == "said by a model"


@pytest.mark.parametrize(
    ("runner", "task", "message"),
    [
        ("fail", "luck", "WorkerDied: ValueError: no luck"),
        ("leave", "code", "WorkerDied: the worker exited with code 3; stderr: going\n[redacted]"),
        ("leave", "signal", "WorkerDied: the worker was killed by signal 9; stderr: going\n[redacted]"),
        ("Babbler", "only", "WorkerDied: the worker exited with code 0; 5 of its lines were no events"),
        ("Delegator", "x", f"WorkerDied: RuntimeError: {NO_CHILDREN}"),
    ],
)
def test_a_worker_that_dies_is_a_failed_run_with_the_reason(stage: Stage, runner: str, task: str, message: str) -> None:
    """What was given to it by the spawn's env is not in it."""
    result = stage.result(runner, task, env={"GIVEN_TOKEN": "given-by-the-spawn"})
    assert result.end_reason is EndReason.FAILED
    assert result.failure is not None
    assert (result.failure.kind, result.failure.message) == ("runner_crash", message)


def test_noise_on_the_line_does_not_hide_the_answer(stage: Stage) -> None:
    """It is skipped."""
    assert stage.result("Babbler", "and answer").output == "heard all the same"


def test_an_instruction_reaches_a_worker(stage: Stage) -> None:
    """At its next boundary."""
    handle = stage.spawn("Listener")
    stage.session.steer(handle.run_id, "say cheese")
    assert handle.result(timeout=100).output == "say cheese"


def test_a_worker_that_is_asked_to_end_can_clean_up(stage: Stage) -> None:
    """TERM is a cancellation inside of it."""
    handle = stage.spawn("Cleaner")
    stage.until(handle, "progress", text="ready")
    stage.session.kill(handle.run_id)
    assert handle.result(timeout=100).end_reason is EndReason.KILLED
    assert " TERM" in stage.proof(handle)
    assert (stage.workspace / "tidy").read_text() == "True"


@pytest.mark.parametrize("kind", ["sleeper", "spinner", "holder"])
def test_a_hard_timeout_ends_the_whole_tree(kind: str, tmp_path: Path, manual_clock: ManualClock) -> None:
    """The result comes at once, the proof when it is true: everybody the worker started is in it."""
    with Runtime(":memory:", runners=RUNNERS, clock=manual_clock) as runtime:
        stage = Stage(runtime, tmp_path)
        handle = stage.spawn(kind, timeout_ms=1_000)
        stage.until(handle, "progress", text="ready")
        pids = (tmp_path / "pids").read_text().split()
        manual_clock.advance(1)
        assert handle.result(timeout=100).end_reason is EndReason.WATCHDOG_TIMEOUT
        manual_clock.advance(0.1)  # the grace
        proof = stage.proof(handle)
    assert all(f" {pid}@" in proof for pid in pids), proof
    see_gone(map(int, pids))


def test_closing_the_runtime_waits_for_the_death_of_its_workers(tmp_path: Path) -> None:
    """When it is closed nobody is left, and the proof is in the store."""
    with Runtime(tmp_path / "agents.db", runners=RUNNERS) as runtime:
        stage = Stage(runtime, tmp_path)
        handle = stage.spawn("holder")
        stage.until(handle, "progress", text="ready")
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    with Runtime(tmp_path / "agents.db") as runtime:
        (ended,) = [one for one in runtime.store.runs.events(handle.run_id) if one.name.endswith("process_ended")]
    assert {str(pid) for pid in pids} <= {word.partition("@")[0] for word in str(ended.data["proof"]).split()}
    see_gone(pids)


def test_a_secret_of_the_host_never_reaches_a_child_or_its_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in environment or arguments; nor in transcripts, results, errors, events, dead letters or the log."""
    monkeypatch.setenv("CANARY_API_KEY", CANARY)
    caplog.set_level(logging.DEBUG)
    look = ToolCall("1", "shell", {"command": "env; tr '\\0' '\\n' </proc/$PPID/environ; cat /proc/$PPID/cmdline"})
    shell = ModelRunner(ScriptedModel([look, "looked"]), tools=[shell_tool()])
    with Runtime(
        tmp_path / "agents.db", runners={**RUNNERS, "shell": shell}, results_dir=tmp_path / "results"
    ) as runtime:
        stage = Stage(runtime, tmp_path)
        told = [stage.result(*work) for work in (("where",), ("fail",), ("leave", "code"), ("shell",))]
        looked = [stored.turn.text for stored in runtime.store.transcripts.turns(told[-1].session_key)]
        letters = runtime.dead_letters()
    seen = (tmp_path / "seen").read_text()
    assert "_worker.py" in seen
    assert any("warden.py" in text and "PATH=" in text for text in looked), looked
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert not any(CANARY in text for text in (seen, *looked, repr(told), repr(letters), caplog.text))
    assert not any(CANARY.encode() in content for content in written)


def _closure() -> Callable[..., str]:
    return lambda _packet, _context: "never"


class Local:
    """Has no `run`."""


@pytest.mark.parametrize(
    ("runner", "message"),
    [
        ("nothing", "'nothing' names no runner: write 'module:attribute'"),
        ("nowhere:runner", "'nowhere:runner' cannot be imported: No module named 'nowhere'"),
        ("_workers:nobody", "'_workers:nobody' cannot be imported: module '_workers' has no attribute 'nobody'"),
        ("_workers:__name__", "'_workers:__name__' is no runner: it has no `run`, and is no function or class"),
        (_closure(), "_closure.<locals>.<lambda> cannot be sent to a worker process: "),
        (FunctionRunner(_closure()), "FunctionRunner cannot be sent to a worker process: "),
        (42, "42 is no runner: it has no `run`, and is no function or class"),
    ],
)
def test_what_a_worker_could_not_import_is_refused_at_once(runner: str, message: str) -> None:
    """With one sentence."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its words are compared
        ProcessRunner(runner)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_the_main_program_is_no_module() -> None:
    """A worker's main program is another one."""
    main = type("Mine", (Local,), {"__module__": "__main__", "run": None})
    with pytest.raises(ValueError, match="Mine is defined in the main program, which a worker cannot import"):
        ProcessRunner(main())
    with pytest.raises(ValueError, match="term_grace = -1 is not allowed: use 0 or more seconds"):
        ProcessRunner("_workers:where", term_grace=-1)
