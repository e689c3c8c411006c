"""A CLI as a sub-agent: what it is given, what becomes of what it says, and that nothing of it lives on."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from _stage import MAIN, a_host, died, later

from understudy.actors import CliRunner
from understudy.actors.runners.cli import PROFILES, CliProfile, FieldPaths, PlainText
from understudy.actors.runners.resumption import find_resumable
from understudy.actors.testing import ManualClock
from understudy.protocol import EndReason, RunId, Spawn, SpawnRejected, Usage
from understudy.protocol.runner import Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from understudy.actors import Runtime, Session
    from understudy.actors.runners import RunContext
    from understudy.protocol import SubAgentResult
    from understudy.protocol.runner import RunnerEvent

    from .conftest import StandIn

DAYS = {"max_run_timeout_ms": 86_400_000}
SESSION_ID = "e9bf568a-a30c-4f81-9446-2be5e69deb52"


@contextlib.contextmanager
def hosted(
    project: Path, runner: CliRunner, clock: ManualClock, store: Path = Path(":memory:"), **config: Any
) -> Iterator[tuple[Runtime, Session]]:
    """A runtime with that runner, and a session in the project."""
    with a_host(clock, runner, store=store, config=config) as runtime:
        yield runtime, runtime.session(MAIN, workspace=str(project))


def ran(project: Path, runner: CliRunner, spawn: Spawn | None = None) -> SubAgentResult:
    """One run's result."""
    with hosted(project, runner, ManualClock()) as (_, session):
        return session.spawn(spawn or Spawn(task="look around")).result()


@pytest.mark.parametrize("cli", PROFILES)
def test_a_cli_does_the_work_of_a_sub_agent(
    cli: str, project: Path, stand_in: Callable[[str], StandIn], manual_clock: ManualClock
) -> None:
    """Its answer is the result, its turns the transcript, its files the parent's; its conversation can be found."""
    program = stand_in(cli)
    program.plays(f"{cli}-*_1_tool")
    with hosted(project, CliRunner(cli), manual_clock) as (runtime, session):
        handle = session.spawn(Spawn(task="look around"))
        result = handle.result()
        assert result.end_reason is EndReason.COMPLETED
        assert result.output.startswith("MOCK-OK rounds=1 users=1")
        turns = runtime.store.transcripts.turns(result.session_key)
        assert [stored.turn.role for stored in turns] == ["user", "assistant", "tool", "assistant"]
        if cli != "codex":
            assert session.working_context.recent_files == (str(project / "hello.txt"),)
        record = runtime.store.runs.get(handle.run_id)
        assert record is not None
        found = find_resumable(runtime.store, record.packet)
        assert found is not None
        assert (found.run_id, found.cwd, found.spent) == (handle.run_id, str(project), result.usage)
    assert sorted(path.name for path in project.iterdir()) == ["hello.txt"]


def test_the_task_comes_by_standard_input_and_the_rules_beside_it(
    project: Path, stand_in: Callable[[str], StandIn]
) -> None:
    """No list of processes shows the task; claude takes the rules apart, codex before its task."""
    task = '--help me\nwith "quotes" $(and) `worse`'
    claude, codex = stand_in("claude"), stand_in("codex")
    claude.plays("claude-*_1_tool")
    codex.plays("codex-*_1_tool")
    spawn = Spawn(task=task, objective="Ship it", model="opus")
    ran(project, CliRunner("claude", arguments=("--allowedTools", "Read"), system="Speak plainly."), spawn)
    ran(project, CliRunner("codex"), spawn)
    assert claude.stdin == f"## Task\n{task}\n\n## Objective\nShip it"
    assert claude.argv[-4:] == ["--model", "opus", "--allowedTools", "Read"]
    rules = claude.argv[claude.argv.index("--append-system-prompt") + 1]
    assert rules.startswith("Speak plainly.\n\nYou are a sub-agent")
    assert codex.stdin.startswith("You are a sub-agent")
    assert codex.stdin.endswith(claude.stdin)
    assert not any(task in argument for argument in (*claude.argv, *codex.argv))


def test_an_argument_that_looks_like_an_option_is_none(project: Path, stand_in: Callable[[str], StandIn]) -> None:
    """For a CLI that takes its prompt no other way; one that is too long for that fails with the reason."""
    program = stand_in("mine")
    program.does("echo fine")
    profile = CliProfile(
        name="mine", command="mine", fresh=("{system}", "{prompt}"), prompt="argv", stream=PlainText, install="…"
    )
    result = ran(project, CliRunner(profile), Spawn(task="{session} -x"))
    assert result.output == "fine"
    assert program.argv[1] == "## Task\n{session} -x"
    assert profile.arguments(prompt="-rf", system="", session=None, model=None)[1] == "\n-rf"
    long = ran(project, CliRunner(profile), Spawn(task="x" * 200_000))
    assert long.failure is not None
    assert long.failure.kind == "context_full"


def test_it_gets_next_to_nothing_of_the_hosts_environment(
    project: Path, stand_in: Callable[[str], StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key goes to it only when the host names it; cwd and PWD are the run's."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-canary")
    monkeypatch.setenv("HOST_SECRET", "canary-of-the-host")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", "/somewhere")
    program = stand_in("claude")
    program.plays("claude-*_1_tool")
    result = ran(project, CliRunner("claude"), Spawn(task="look", env={"GIVEN": "by the spawn"}))
    assert program.env["UNDERSTUDY_SESSION"] == result.session_key
    assert "canary" not in "\n".join([*program.env.values(), *program.argv, program.stdin])
    assert program.env["GIVEN"] == "by the spawn"
    assert program.env["CLAUDE_CONFIG_DIR"] == "/somewhere"
    assert program.env["HOME"] == os.environ["HOME"]
    assert program.env["PWD"] == program.cwd == str(project)
    ran(project, CliRunner("claude", pass_env=("ANTHROPIC_API_KEY",)))
    assert program.env["ANTHROPIC_API_KEY"] == "sk-ant-canary"
    assert "HOST_SECRET" not in program.env


def test_a_secret_of_the_host_is_in_no_trace_of_a_cli(
    tmp_path: Path,
    project: Path,
    stand_in: Callable[[str], StandIn],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that prints all it was given, and fails: not in result, store, files or log, nor a key it was handed."""
    monkeypatch.setenv("HOST_SECRET", "canary-of-the-host")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "handed-over-canary")
    caplog.set_level(logging.DEBUG)
    (tmp_path / "host").mkdir()
    stand_in("claude").does("env >&2; exit 1")
    runner = CliRunner("claude", pass_env=("ANTHROPIC_API_KEY",))
    with hosted(project, runner, ManualClock(), tmp_path / "host" / "agents.db") as (runtime, session):
        told = session.spawn(Spawn(task="look")).result()
        runtime.dead_letters()
    written = [file.read_bytes() for file in (tmp_path / "host").rglob("*") if file.is_file()]
    assert written
    assert told.failure is not None
    assert "PATH=" in told.failure.message
    assert "canary" not in repr(told) + caplog.text
    assert not any(b"canary" in content for content in written)


@pytest.mark.parametrize("cli", PROFILES)
def test_an_api_error_is_a_failure_with_its_reason(cli: str, project: Path, stand_in: Callable[[str], StandIn]) -> None:
    """Never "completed", whatever the CLI calls it."""
    stand_in(cli).plays(f"{cli}-*_4_api_error", then="exit 1")
    result = ran(project, CliRunner(cli))
    assert result.end_reason is EndReason.FAILED
    assert result.failure is not None
    assert result.failure.kind == "provider"
    assert "mock scripted failure" in result.failure.message


def test_an_exit_code_is_a_failure_with_the_last_words_but_no_secret(
    project: Path, stand_in: Callable[[str], StandIn]
) -> None:
    """What it wrote to stderr is the reason; what it was given in confidence is not in it."""
    stand_in("claude").does('echo "bad key $MY_TOKEN, go away" >&2; exit 3')
    result = ran(project, CliRunner("claude"), Spawn(task="x", env={"MY_TOKEN": "tulip-garden-9"}))
    assert result.failure is not None
    assert result.failure.kind == "runner_crash"
    assert result.failure.message.startswith("claude ended with exit code 3: bad key")
    assert "tulip-garden-9" not in result.failure.message


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ('{"type":"result","subtype":"success","is_error":false,"result":""}', "empty_output"),
        ('{"type":"assistant","message":{"id":"1","content":[{"type":"text","text":"half"}]}}', "invalid_output"),
        ("", "invalid_output"),
    ],
)
def test_no_answer_is_a_failure(lines: str, kind: str, project: Path, stand_in: Callable[[str], StandIn]) -> None:
    """An orderly exit is not enough: an empty answer, or none, is a failed run."""
    stand_in("claude").does(f"echo '{lines}'")
    result = ran(project, CliRunner("claude"))
    assert result.failure is not None
    assert result.failure.kind == kind


def test_a_stream_that_nobody_understands_says_so(project: Path, stand_in: Callable[[str], StandIn]) -> None:
    """A version to come may print something else altogether: the failure counts what meant nothing."""
    stand_in("claude").does('echo Welcome; echo \'{"kind": "result"}\'')
    result = ran(project, CliRunner("claude"))
    assert result.failure is not None
    assert result.failure.message == "claude ended before its answer was complete; 2 of its lines were not understood"


def test_a_cli_that_is_not_installed_is_refused_with_the_way_to_get_it(
    project: Path, stand_in: Callable[[str], StandIn], manual_clock: ManualClock
) -> None:
    """At admission, so that nothing is left behind; once it is there it is found."""
    program = stand_in("gemini")
    runner = CliRunner("gemini")
    with hosted(project, runner, manual_clock) as (runtime, session):
        with pytest.raises(SpawnRejected) as refused:
            session.spawn(Spawn(task="look"))
        assert refused.value.rejection.reason == "not_allowed"
        assert "npm install -g @google/gemini-cli@latest" in refused.value.rejection.message
        assert runtime.store.runs.find().items == ()
        program.plays("gemini-*_1_tool")
        runner._program._believed_until = 0.0  # ten seconds later
        assert session.spawn(Spawn(task="look")).result().end_reason is EndReason.COMPLETED


# -- silence and size ---------------------------------------------------------------------------------------------


def signal_at(path: Path) -> Path:
    """A pipe with a name, whose reader waits until somebody has written to it."""
    os.mkfifo(path)
    return path


def killed(runtime: Runtime, session: Session, run_id: str, clock: ManualClock) -> object:
    """Kill a run; the number of survivors, from the proof of its processes' death."""
    with runtime.events(names=["session:sub_agent_process_ended"]) as ended:
        session.kill(run_id)
        clock.advance(5)  # the grace
        return next(iter(ended)).data["survivors"]


def lives(pid: str) -> bool:
    """Whether there is such a process; one that is dead and not yet buried does not live."""
    try:
        stat = Path(f"/proc/{pid.strip()}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


@pytest.mark.parametrize(
    ("said", "end"),
    [
        ('{"type":"system","subtype":"init","session_id":"s"}', "idle"),
        ('{"type":"system","subtype":"api_retry"}', "idle"),
        (
            '{"type":"assistant","message":{"id":"1","content":[{"type":"tool_use","id":"t","name":"Bash","input":{}}]}}',
            None,
        ),
    ],
    ids=["after its first word", "keepalives are no words", "while a tool runs it may be silent"],
)
def test_a_silent_cli_is_stopped(
    said: str, end: str | None, project: Path, stand_in: Callable[[str], StandIn], manual_clock: ManualClock
) -> None:
    """After five minutes without an event, on the runtime's clock."""
    ready = signal_at(project.parent / "ready")
    stand_in("claude").does(f"echo '{said}'; echo > {ready}; exec sleep 600")
    with hosted(project, CliRunner("claude"), manual_clock) as (runtime, session):
        handle = session.spawn(Spawn(task="look", timeout_ms=500_000))
        ready.read_text()
        manual_clock.advance(299)
        assert handle.status == "running"
        manual_clock.advance(2)
        if end is None:
            assert handle.status == "running"
            killed(runtime, session, handle.run_id, manual_clock)
        else:
            result = handle.result()
            assert result.failure is not None
            assert (result.failure.kind, result.failure.retryable) == (end, True)
            assert "claude was stopped: it said nothing for 300 s" in result.failure.message


def test_a_cli_that_falls_silent_has_said_what_it_said(
    project: Path, stand_in: Callable[[str], StandIn], manual_clock: ManualClock
) -> None:
    """Its last words are the partial result, once."""
    ready = signal_at(project.parent / "ready")
    line = '{"type":"assistant","message":{"id":"1","content":[{"type":"text","text":"half of it"}]}}'
    stand_in("claude").does(f"echo '{line}'; echo > {ready}; exec sleep 600")
    with hosted(project, CliRunner("claude"), manual_clock) as (runtime, session):
        handle = session.spawn(Spawn(task="look"))
        ready.read_text()
        manual_clock.advance(301)
        result = handle.result()
        assert (result.status, result.output) == ("partial", "half of it")
        said = [stored.turn.text for stored in runtime.store.transcripts.turns(result.session_key)]
        assert said.count("half of it") == 1


def test_a_cli_that_stays_after_its_answer_has_still_answered(
    project: Path, stand_in: Callable[[str], StandIn], manual_clock: ManualClock
) -> None:
    """It is let go ten seconds later, and good work is not reported as anything else."""
    ready = signal_at(project.parent / "ready")
    stand_in("claude").plays("claude-*_1_tool", then=f"echo > {ready}; exec sleep 600")
    with hosted(project, CliRunner("claude"), manual_clock) as (_, session):
        handle = session.spawn(Spawn(task="look"))
        ready.read_text()
        manual_clock.advance(11)
        assert handle.result().end_reason is EndReason.COMPLETED


def test_long_lines_are_left_out_and_too_much_output_ends_the_run(
    project: Path, stand_in: Callable[[str], StandIn]
) -> None:
    """A line is bounded, and so is all of it."""
    profile = CliProfile(
        name="mine", command="mine", fresh=(), stream=FieldPaths(text="t").stream(), max_line_bytes=1_000
    )
    stand_in("mine").does("""printf '{"t": "%02000d"}\\n{"t": "fine"}\\n' 1""")
    assert ran(project, CliRunner(profile)).output == "fine"
    little = CliProfile(
        name="mine", command="mine", fresh=(), stream=FieldPaths(delta="t").stream(), max_output_bytes=10_000
    )
    stand_in_2 = project.parent / "bin" / "mine"
    stand_in_2.write_text("""#!/bin/sh\nwhile :; do echo '{"t": "again and again"}'; done\n""")
    result = ran(project, CliRunner(little))
    assert result.failure is not None
    assert "printed more than 10000 bytes" in result.failure.message


@pytest.mark.slow
def test_a_killed_run_leaves_no_process(
    project: Path, stand_in: Callable[[str], StandIn], manual_clock: ManualClock
) -> None:
    """Also not a tool in a session of its own that ignores being asked: real processes take real time to die."""
    leader, tool = project.parent / "leader", signal_at(project.parent / "tool")
    stand_in("claude").does(
        f"echo $$ > {leader}\n"
        f"setsid sh -c 'trap \"\" TERM; echo $$ > {tool}; while :; do sleep 0.1; done' &\n"
        "exec sleep 600"
    )
    with hosted(project, CliRunner("claude"), manual_clock) as (runtime, session):
        handle = session.spawn(Spawn(task="look"))
        pids = tool.read_text(), leader.read_text()
        assert killed(runtime, session, handle.run_id, manual_clock) == 0
        assert handle.result().end_reason is EndReason.KILLED
        assert not any(map(lives, pids))


# -- resuming -----------------------------------------------------------------------------------------------------


def test_a_run_that_lost_its_host_goes_on_in_its_own_conversation(
    tmp_path: Path, project: Path, stand_in: Callable[[str], StandIn]
) -> None:
    """The next host resumes it by the id that the first had heard, and says that it was interrupted."""
    program, ready, clock = stand_in("claude"), signal_at(tmp_path / "ready"), ManualClock()
    program.plays(
        "claude-*_2_resume",
        first=f"""case "$*" in *--resume*) ;; *)
            echo '{{"type":"system","subtype":"init","session_id":"{SESSION_ID}"}}'
            echo > {ready}; exec sleep 600 ;; esac""",
    )
    with hosted(project, CliRunner("claude"), clock, tmp_path / "agents.db", **DAYS) as (runtime, session):
        handle = session.spawn(Spawn(task="look", restart="resume", timeout_ms=86_400_000))
        ready.read_text()
        clock.run_until_idle()  # it has read what was written before
        copy = died(runtime, tmp_path)
    with a_host(later(), CliRunner("claude"), store=copy, config=DAYS) as second:
        second.session(MAIN, workspace=str(project))
        result = second.run(handle.run_id).result()
    assert result.output == "MOCK-OK rounds=0 users=2 results=[]", result
    assert program.argv[-2:] == ["--resume", SESSION_ID]
    assert program.stdin.startswith("You were interrupted.")


class Kept:
    """A kept child of claude whose first run is over, in a runtime that is open."""

    def __init__(self, runtime: Runtime, session: Session, program: StandIn) -> None:
        self._runtime = runtime
        self.program = program
        handle = session.spawn(Spawn(task="look", cleanup="keep"))
        handle.result()
        record = runtime.store.runs.get(handle.run_id)
        assert record is not None
        self.packet = record.packet.model_copy(update={"run_id": RunId("next"), "task": "-- shorter, please"})
        found = find_resumable(runtime.store, self.packet)
        assert found is not None
        self.found = found

    def followed(self, **changed: str) -> Final:
        """The last word of another run of the same child."""
        packet = self.packet.model_copy(update=changed)
        resumable = find_resumable(self._runtime.store, packet)
        context = SimpleNamespace(resumable=resumable, backstage=self._runtime._backstage, proved=lambda _proof: None)

        async def events() -> list[RunnerEvent]:
            return [event async for event in CliRunner("claude").run(packet, cast("RunContext", context))]

        told = self._runtime._kernel.run_from_thread(events())
        (final,) = [event for event in told if isinstance(event, Final)]
        assert told[-1] is final
        return final


@pytest.fixture
def kept(project: Path, stand_in: Callable[[str], StandIn], manual_clock: ManualClock) -> Iterator[Kept]:
    """A child that can be followed up."""
    program = stand_in("claude")
    program.plays("claude-*_1_tool")
    with hosted(project, CliRunner("claude"), manual_clock) as (runtime, session):
        kept = Kept(runtime, session, program)
        program.plays("claude-*_2_resume")
        yield kept


def test_a_follow_up_says_only_what_is_new_in_the_same_conversation(kept: Kept) -> None:
    """By the id, with the message as it is, and without the brief that was given before."""
    final = kept.followed()
    assert final.failure is None
    assert final.output == "MOCK-OK rounds=0 users=2 results=[]"
    assert kept.program.argv[-2:] == ["--resume", SESSION_ID]
    assert kept.program.stdin == "-- shorter, please"
    assert kept.found.spent == Usage(input_tokens=42666, output_tokens=40, cost_usd=0.128598)


def test_a_conversation_is_not_looked_for_in_another_folder(project: Path, kept: Kept) -> None:
    """Nor in one that is gone: nothing is started, and the reason says what to do."""
    final = kept.followed(cwd=str(project.parent))
    assert final.failure is not None
    assert f"was held in {project}" in final.failure.message
    final = kept.followed(cwd=str(project / "gone"))
    assert final.failure is not None
    assert "is not there any more" in final.failure.message


def test_a_cli_that_forgot_the_conversation_fails_with_that_reason(kept: Kept) -> None:
    """In the words claude has for it."""
    kept.program.plays("claude-*_5_unknown_id", then="exit 1")
    final = kept.followed()
    assert final.failure is not None
    assert final.failure.message == f"claude does not know its conversation {SESSION_ID} any more: spawn a new child"


def test_a_new_child_knows_nothing_of_another_childs_conversation(
    project: Path, stand_in: Callable[[str], StandIn], manual_clock: ManualClock
) -> None:
    """Each begins its own."""
    program = stand_in("claude")
    program.plays("claude-*_1_tool")
    with hosted(project, CliRunner("claude"), manual_clock) as (_runtime, session):
        for _ in range(2):
            session.spawn(Spawn(task="look", cleanup="keep")).result()
            assert "--resume" not in program.argv
