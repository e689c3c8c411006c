"""Describing a CLI: what a profile may say, and the one sentence that a bad one gets."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from understudy.actors import CliRunner, load_config
from understudy.actors.runners.cli import PROFILES, CliProfile, PlainText, inspect_clis, load_profiles
from understudy.actors.runners.cli.claude import ClaudeStream
from understudy.protocol import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import StandIn

ROOT = Path(__file__).parents[2]
MINE = """
max_spawn_depth = 2

[cli.mine]
command = "my-agent"
fresh = ["run", "--json"]
resume = ["run", "--json", "--session", "{session}"]
install = "pip install my-agent"
quiet_seconds = 60
stream = {session = "id", text = "message.text", done = "end"}

[cli.wrapped]
command = "claude-in-a-box"
fresh = ["-p"]
stream = "claude"
"""


def test_profiles_stand_in_the_configurations_own_file(tmp_path: Path) -> None:
    """As tables; the runtime's own settings beside them are read as ever."""
    file = tmp_path / "agents.toml"
    file.write_text(MINE)
    profiles = load_profiles(file)
    assert list(profiles) == ["mine", "wrapped"]
    mine = profiles["mine"]
    assert (mine.name, mine.command, mine.prompt, mine.quiet_seconds) == ("mine", "my-agent", "stdin", 60)
    assert mine.quiet_resumed_seconds == PROFILES["claude"].quiet_resumed_seconds
    stream = mine.stream()
    stream.read(b'{"id": "s1", "message": {"text": "hello"}, "end": 1}')
    assert (stream.answer, stream.complete) == ("hello", True)
    assert isinstance(profiles["wrapped"].stream(), ClaudeStream)
    assert load_config(file, environ={}).max_spawn_depth == 2


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("comand = 'x'", "unknown key 'comand' (did you mean 'command'?)"),
        ("fresh = ['x']", "command is missing"),
        ("command = ' '", "CLI profile 'mine': command is empty: name the program"),
        ("prompt = 'pipe'", "prompt is not allowed: input should be 'stdin' or 'argv'"),
        ("prompt = 'argv'", "CLI profile 'mine': fresh never says {prompt}, but prompt = 'argv'"),
        ("fresh = ['{prompt}']", "CLI profile 'mine': fresh says {prompt}, but prompt = 'stdin'"),
        (
            "fresh = ['{sesion}']",
            "CLI profile 'mine': fresh has an unknown placeholder {sesion} (did you mean 'session'?)",
        ),
        (
            "resume = ['--continue']",
            "CLI profile 'mine': resume never says {session}: it could not tell one conversation from another",
        ),
        ("quiet_seconds = 0", "quiet_seconds is not allowed: input should be greater than 0"),
        ("stream = {txt = 'a'}", "stream has an unknown field 'txt' (did you mean 'text'?)"),
    ],
)
def test_a_bad_profile_is_one_sentence_that_names_its_place(wrong: str, sentence: str, tmp_path: Path) -> None:
    """File, table, key, and what would be right."""
    good = {"command": "'x'", "fresh": "['x']", "stream": "'text'"}
    key, _, value = wrong.partition(" = ")
    if wrong == "fresh = ['x']":
        del good["command"]
    file = tmp_path / "agents.toml"
    file.write_text("[cli.mine]\n" + "\n".join(f"{k} = {v}" for k, v in (good | {key: value}).items()))
    with pytest.raises(ConfigError) as error:
        load_profiles(file)
    assert str(error.value) == f"{file}: cli.mine: {sentence}"


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    """`cli` holds tables and nothing else."""
    file = tmp_path / "agents.toml"
    file.write_text("cli = 'claude'")
    with pytest.raises(ConfigError, match=r"cli is not a table of tables: write \[cli.NAME\] above each profile"):
        load_profiles(file)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    """At once, not at the first spawn."""
    with pytest.raises(ConfigError, match=r"no CLI is known as 'claud' \(did you mean 'claude'\?\): use one of"):
        CliRunner("claud")


@pytest.mark.parametrize("limit", ["grace_seconds", "quiet_seconds", "max_line_bytes", "max_output_bytes"])
def test_a_limit_of_a_profile_is_above_zero(limit: str) -> None:
    """In code as in a file."""
    options: dict[str, Any] = {limit: 0}
    with pytest.raises(ConfigError, match=f"{limit} = 0 is not allowed: use a number above 0"):
        CliProfile(name="mine", command="mine", fresh=(), stream=PlainText, **options)


def test_what_stands_in_for_a_placeholder_is_not_looked_through_again() -> None:
    """A task may speak of placeholders."""
    profile = CliProfile(name="m", command="m", fresh=("{system}|{prompt}",), prompt="argv", stream=PlainText)
    assert profile.arguments(prompt="say {system}", system="{prompt}", session=None, model=None) == [
        "{prompt}|say {system}"
    ]


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_every_known_cli_takes_any_prompt_resumes_and_can_be_had(profile: CliProfile) -> None:
    """By standard input, by its session, from npm at its latest."""
    assert profile.prompt == "stdin"
    assert "S-1" in "".join(profile.arguments(prompt="p", system="s", session="S-1", model=None))
    assert profile.install.endswith("@latest")


def test_the_doctor_tells_what_is_there_and_how_to_get_the_rest(
    stand_in: Callable[[str], StandIn], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where each is and which; one that does not start is not there; keys by name, never by value."""
    stand_in("claude").does("echo '2.1.327 (Claude Code)'")
    stand_in("codex").does("exit 1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-canary")
    reports = {report.name: report for report in inspect_clis()}
    claude, codex, gemini = reports["claude"], reports["codex"], reports["gemini"]
    assert (claude.version, claude.path) == ("2.1.327 (Claude Code)", str(tmp_path / "bin" / "claude"))
    assert claude.credentials == ("ANTHROPIC_API_KEY",)
    assert not codex.installed
    assert codex.path is not None
    assert (gemini.path, gemini.install) == (None, "npm install -g @google/gemini-cli@latest")
    assert "canary" not in repr(reports)


@pytest.mark.parametrize(("there", "reason"), [([], "npm is not installed"), (["npm"], "unshare is not installed")])
def test_the_script_for_the_real_ones_skips_with_a_reason(there: list[str], reason: str, tmp_path: Path) -> None:
    """Where npm or the namespace is missing it says so, and nothing has failed."""
    for name in there:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    script = [("/bin/bash"), str(ROOT / "scripts" / "test-real-clis")]
    run = subprocess.run(script, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"skipped: {reason}")
