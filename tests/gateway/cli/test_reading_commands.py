"""Everything can be looked at while a host is at work: by people in columns, by programs in JSON."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
from _program import PROGRAM, run_of, understudy
from _scene import a_host_at_work, elsewhere  # noqa: F401 - fixtures
from _stage import MAIN

from understudy.persistence.operations import AppendTurns, DeadLetter, OpenSession
from understudy.protocol import SessionKey, Spawn
from understudy.protocol.model import ToolCall, Turn

if TYPE_CHECKING:
    from pathlib import Path

    from understudy.actors import Runtime


def test_the_version_is_the_packages() -> None:
    """Asked without any command."""
    assert understudy("--version").out == f"understudy {version('understudy')}\n"


def test_runs_lists_the_newest_first(host: Runtime) -> None:
    """A line a run, every value whole; and the same as JSON, which pages on."""
    told = understudy("runs")
    head, *lines = told.out.splitlines()
    assert head.split() == ["RUN", "LABEL", "STATE", "ACCEPTED", "TOOK", "COST"]
    assert [line.split()[1] for line in lines] == ["waiter", "[red]boss[/red]", "[red]boss[/red]", "reader"]
    assert [line.split()[2] for line in lines] == ["running", "completed", "completed", "completed"]

    page = understudy("runs", "--json", "--limit", "3").document
    rest = understudy("runs", "--json", "--cursor", page["cursor"]).document
    assert [run["run_id"] for run in page["items"] + rest["items"]] == [run.run_id for run in host.runs().items]
    assert rest["cursor"] is None


def test_runs_can_be_picked(host: Runtime) -> None:
    """By status, runner and session."""
    assert [run["label"] for run in understudy("runs", "--json", "--status", "running").document["items"]] == ["waiter"]
    assert [run["label"] for run in understudy("runs", "--json", "--runner", "worker").document["items"]] == ["reader"]
    boss = host.store.runs.get(run_of(host, "[red]boss[/red]"))
    assert boss is not None
    (below,) = understudy("runs", "--json", "--session", boss.session_key).document["items"]
    assert below["parent_run_id"] == boss.run_id
    assert understudy("runs", "--runner", "nobody").out == "no runs\n"


def test_show_tells_everything_about_a_run(host: Runtime, tmp_path: Path) -> None:
    """Timeline, transcript, files, cost, result; shortened for people unless they want it all."""
    run_id = run_of(host, "reader")
    told = understudy("show", run_id)
    assert told.exit_code == 0
    for part in ("accepted", "started by runner worker", "ended as completed", "merged into its parent"):
        assert part in told.out
    assert f"read      {tmp_path.resolve() / 'notes.txt'}" in told.out
    assert "1,200 tokens in" in told.out
    assert "$0.0123" in told.out
    assert "characters more: --full" in told.out
    assert "characters more" not in understudy("show", run_id, "--full").out

    document = understudy("show", run_id, "--json").document
    assert [entry["what"] for entry in document["timeline"]][:2] == ["accepted", "started by runner worker"]
    assert document["files"] == [{"path": str(tmp_path.resolve() / "notes.txt"), "provenance": "read"}]
    assert [turn["role"] for turn in document["transcript"]] == ["user", "assistant"]
    assert document["output"].endswith("word ")
    assert document["usage"] == {"input_tokens": 1_200, "output_tokens": 34, "cost_usd": 0.0123}


def test_show_sums_up_what_is_below_a_run(host: Runtime) -> None:
    """The boss itself used nothing."""
    document = understudy("show", run_of(host, "[red]boss[/red]"), "--json").document
    assert document["usage"]["cost_usd"] == 0.0
    assert document["usage_with_descendants"]["cost_usd"] == 0.0123


def test_show_of_a_run_that_still_works(host: Runtime) -> None:
    """It has no result yet."""
    document = understudy("show", run_of(host, "waiter"), "--json").document
    assert (document["status"], document["output"], document["files"]) == ("running", None, [])


def test_show_has_tool_calls_in_the_transcript(host: Runtime) -> None:
    """With their arguments."""
    record = host.store.runs.get(run_of(host, "waiter"))
    assert record is not None
    call = ToolCall("c", "grep", {"pattern": "\x1b[2J"})
    turns = (Turn("assistant", "", (call,)),)
    host.store.transaction(AppendTurns(record.session_key, 1, turns, run_id=record.run_id)).result(timeout=10)
    assert '→ grep {"pattern": "\\u001b[2J"}' in understudy("show", record.run_id).out


def test_tree_shows_who_is_below_whom_with_files(host: Runtime, tmp_path: Path) -> None:
    """Runs, runs of runs, and sessions of other harnesses that only named their parent."""
    store = host.store
    theirs = SessionKey("claude-code:abc")
    store.transaction(OpenSession(theirs, at=1, parent_session_key=SessionKey(MAIN), harness="claude-code")).result(
        timeout=10
    )
    lines = understudy("tree", MAIN).out.splitlines()
    file = tmp_path.resolve() / "notes.txt"
    assert lines[0] == MAIN
    assert lines[1] == f"  {file}"
    depth = {line.split()[0]: len(line) - len(line.lstrip()) for line in lines if "completed" in line}
    assert depth == {"reader": 2, "[red]boss[/red]": 4}
    assert lines[-1] == "  claude-code:abc  claude-code"

    document = understudy("tree", MAIN, "--json").document
    assert [run["label"] for run in document["runs"]] == ["reader", "[red]boss[/red]", "waiter"]
    assert [run["label"] for run in document["runs"][1]["runs"]] == ["[red]boss[/red]"]
    assert document["runs"][0]["files"] == [{"path": str(file), "provenance": "read"}]
    assert [session["session_key"] for session in document["sessions"]] == [theirs]


def test_tree_without_a_session_lists_them(host: Runtime) -> None:
    """Those at the top."""
    assert understudy("tree").out.splitlines()[1].split()[0] == MAIN
    assert [session["session_key"] for session in understudy("tree", "--json").document["items"]] == [MAIN]


def test_a_kept_child_stands_in_the_tree_with_each_of_its_runs(host: Runtime) -> None:
    """And what is below it once."""
    session = host.session(MAIN)
    kept = session.spawn(Spawn(task="stay", label="kept", runner="delegate", cleanup="keep")).result(timeout=60)
    session.follow_up(kept.session_key, "again", wait=60)
    document = understudy("tree", MAIN, "--json").document
    runs = [run for run in document["runs"] if run["label"] == "kept"]
    assert [(run["is_follow_up"], len(run["runs"])) for run in runs] == [(False, 0), (True, 2)]


def test_search_finds_what_was_said_a_moment_ago(host: Runtime) -> None:
    """In a session that still runs; as the agent that is named, and no other."""
    turns = (Turn("user", "where is the flux capacitor?"),)
    host.store.transaction(AppendTurns(SessionKey(MAIN), 1, turns)).result(timeout=10)
    assert "where is the flux capacitor?" in understudy("search", "flux").out
    (hit,) = understudy("search", "flux", "--json", "--session", MAIN).document["items"]
    assert (hit["session_key"], hit["role"]) == (MAIN, "user")
    assert (
        understudy("search", "flux", "--agent", "other", "--shared").out == "nothing found that agent 'other' may see\n"
    )


def test_dead_letters_are_listed(host: Runtime) -> None:
    """With their reasons."""
    assert understudy("dead-letters").out == "no dead letters\n"
    host.store.transaction(DeadLetter(1, "nobody\nlistens", "a message")).result(timeout=10)
    assert understudy("dead-letters").out.splitlines()[1].endswith("nobody listens")
    (letter,) = understudy("dead-letters", "--json").document["items"]
    assert (letter["reason"], letter["payload"]) == ("nobody\nlistens", "a message")


def test_nothing_an_agent_says_steers_the_terminal(host: Runtime) -> None:
    """Escapes, bells and direction overrides are shown as what they are; markup is text."""
    run_id = run_of(host, "reader")
    for arguments in (
        ("show", run_id),
        ("show", run_id, "--full"),
        ("show", run_id, "--json"),
        ("search", "loader"),
        ("search", "loader", "--json"),
        ("tree", MAIN),
        ("runs",),
    ):
        told = understudy(*arguments)
        assert told.exit_code == 0
        assert not {"\x1b", "\x07", "\u202e"} & set(told.out), arguments
    assert r"\x1b[31mred\x1b[0m [bold]not bold[/bold]\x07 \u202e" in understudy("show", run_id).out


def test_config_show_tells_where_a_value_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, the environment over it, or the default; the command line's own variable is no setting."""
    (tmp_path / "agents.toml").write_text("max_spawn_depth = 2\nmax_steps = 7\n")
    monkeypatch.setenv("UNDERSTUDY_MAX_STEPS", "9")
    monkeypatch.setenv("UNDERSTUDY_DB", "elsewhere.db")
    document = understudy("config", "show", "--config", "agents.toml", "--json").document
    assert document["max_spawn_depth"] == {"value": 2, "from": "agents.toml"}
    assert document["max_steps"] == {"value": 9, "from": "environment"}
    assert document["tail_chars"] == {"value": 3000, "from": "default"}
    assert understudy("config", "show").out.splitlines()[3].split() == ["max_queued_per_agent", "0", "default"]
    assert understudy("config", "check", "agents.toml").out == "agents.toml is in order\n"
    assert understudy("config", "check", "agents.toml", "--json").document == {"ok": True, "file": "agents.toml"}


def test_doctor_finds_everything_well(host: Runtime, tmp_path: Path) -> None:
    """Python, SQLite, extras, the database, and that a host works on it."""
    told = understudy("doctor", "--json")
    findings = {finding["what"]: finding for finding in told.document["findings"]}
    assert told.exit_code == 0
    assert told.document["ok"] is True
    assert findings["full-text search"]["verdict"] == "ok"
    assert findings["extra cli"]["verdict"] == "ok"
    # The five agent CLIs, each with where it is, or how to get it.
    clis = [finding for what, finding in findings.items() if what.startswith("cli ")]
    assert len(clis) == 5
    assert all(cli["verdict"] == "ok" or "npm install -g" in cli["detail"] for cli in clis)
    assert findings["database"]["detail"] == f"{tmp_path / 'agents.db'} is whole"
    assert findings["host"]["detail"].endswith("works on it")
    assert findings["server"]["verdict"] == "note"
    assert understudy("doctor").exit_code == 0


def test_doctor_where_there_is_nothing_yet() -> None:
    """That is no fault: there may never have been a run."""
    told = understudy("doctor", "--json")
    assert (told.exit_code, told.document["ok"]) == (0, True)


def test_the_database_may_be_named_by_a_variable(
    host: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From anywhere."""
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    monkeypatch.setenv("UNDERSTUDY_DB", str(tmp_path / "agents.db"))
    assert len(understudy("runs", "--json").document["items"]) == 4
    assert len(understudy("runs", "--json", "--db", tmp_path / "agents.db").document["items"]) == 4


@pytest.mark.slow
def test_another_process_reads_while_this_one_holds_the_runtime(host: Runtime, tmp_path: Path) -> None:
    """In a pipe, without colour, also where the locale has no letters but ASCII. Slow: it starts a Python."""
    host.store.transaction(AppendTurns(SessionKey(MAIN), 1, (Turn("user", "grüße aus dem flux"),))).result(timeout=10)
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "FORCE_COLOR": "1"}
    ran = subprocess.run(
        [*PROGRAM, "search", "flux"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "gr\\xfc\\xdfe aus dem flux" in ran.stdout
    assert "\x1b" not in ran.stdout


@pytest.mark.slow
def test_a_reader_who_has_read_enough_is_no_failure(host: Runtime, tmp_path: Path) -> None:
    """``understudy runs | head -1`` ends quietly. Slow: it starts a Python."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        ran = subprocess.run(
            [*PROGRAM, "runs"], cwd=tmp_path, stdout=closed, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ran.returncode, ran.stderr) == (0, "")
