"""The examples run as they stand, and say what they are there to say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SDKS = {"langgraph_graph", "openai_agents_agent", "pydantic_ai_agent"}  # ./scripts/examples runs these

SAYS = {
    "supervised_actors": """
        asked the well-behaved one: done: read three files
        the crashing one left: failed (ValueError('the worker broke'))
        the exiting one left: failed (SystemExit(1))
        an hour passes on the manual clock
        the hanging one left: failed (TimeoutError('not done within 3600 seconds'))
        the well-behaved one left: stopped
        """,
    "parent_model": """
        parent: Ticket 7 is about loader.py: it reads the config with tomllib, which raises on a missing file.
        its sub-agent: loader.py reads it with tomllib.
        files the parent now knows: ['loader.py']
        """,
    "crash_and_resume": """
        the first host:
        writing on the loader
        writing on the client
        it was killed
        the second host:
        writing on the server
        completed as generation 2: report: 3 chapters
        1 result in the parent's history
        """,
    "watch_over_http": """
        spawned
        started
        progress looking into 'the loader'
        completed
        lifecycle_ended
        delivered
        """,
}


def run(example: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """An example in a Python of its own, where a warning is an error."""
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{example}.py"), *arguments],
        capture_output=True, text=True, timeout=60, check=False, env=os.environ | variables,
    )  # fmt: skip


def lines(text: str) -> list[str]:
    """What it says, without the indentation."""
    return [line.strip() for line in text.strip().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("example", SAYS)
def test_an_example_says_what_it_is_there_to_say(example: str) -> None:
    """Slow: a Python of its own for each, and of the one that dies two."""
    told = run(example)
    assert told.returncode == 0, told.stderr
    assert lines(told.stdout) == lines(SAYS[example]), told.stderr


def a_cli(folder: Path) -> dict[str, str]:
    """Variables under which there is one agent CLI: a program that plays what a real Codex has said."""
    (stream,) = (ROOT / "tests" / "data" / "cli-streams").glob("codex-*_1_tool.jsonl")
    program = folder / "codex"
    program.write_text(
        f"#!/bin/sh\n[ $1 = --version ] && echo codex-cli 1.0 && exit\ncat > /dev/null\ncat '{stream}'\n"
    )
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.defpath}"}


@pytest.mark.slow
def test_the_example_with_an_agent_cli_runs_one_that_is_there(tmp_path: Path) -> None:
    """Slow: a process of its own, and a CLI below it."""
    listed = run("agent_cli", **a_cli(tmp_path))
    assert [line.split()[:2] for line in listed.stdout.splitlines() if "npm" not in line] == [["codex", "codex-cli"]]
    told = run("agent_cli", "codex", "look around", **a_cli(tmp_path))
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("completed after "), told.stdout


@pytest.mark.slow
def test_the_example_with_an_agent_cli_says_how_to_get_one_that_is_not(tmp_path: Path) -> None:
    """Slow: a process of its own."""
    told = run("agent_cli", "claude", "look around", **a_cli(tmp_path))
    assert told.returncode == 1
    assert "npm install -g @anthropic-ai/claude-code" in told.stderr


def test_every_example_is_run_somewhere() -> None:
    """A new one belongs above, or into scripts/examples.py."""
    assert {file.stem for file in EXAMPLES.glob("*.py")} == {*SAYS, *SDKS, "agent_cli"}
    runner = (ROOT / "scripts" / "examples.py").read_text()
    assert [name for name in SDKS if name not in runner] == []
