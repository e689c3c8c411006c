"""Claude Code, Codex, Gemini CLI, OpenCode or Copilot as a supervised sub-agent.

Without arguments it tells which of them are here; `python agent_cli.py claude "What is in here?"` gives one a task, in
the current folder.
"""

from __future__ import annotations

import sys

from understudy.actors import CliRunner, Runtime
from understudy.actors.runners.cli import inspect_clis
from understudy.protocol import Spawn, SpawnRejected

# Of the host's environment a CLI gets only what every program needs, and the keys that are named here.
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY")


def main(cli: str, task: str) -> None:
    """One run: its answer, what it touched, what it cost. Whatever it started is ended with it."""
    with Runtime(runners={cli: CliRunner(cli, pass_env=KEYS)}) as runtime:
        session = runtime.session("agent:atlas:main", workspace=".", runner=cli)
        try:
            handle = session.spawn(Spawn(task=task, cleanup="keep", timeout_ms=300_000))
        except SpawnRejected as refused:  # it is not installed: the refusal says how to get it
            sys.exit(str(refused))
        result = handle.result()
        print(f"{result.status} after {result.runtime_ms / 1000:.1f} s: {result.output or result.failure}")
        for file in result.recent_files:
            print(f"  {file.provenance} {file.path}")
        print(f"  {result.usage.total_tokens} tokens, ${result.usage.cost_usd:.4f}")


def here() -> None:
    """What is installed, and how to get the rest."""
    for found in inspect_clis():
        print(f"{found.name:<10} {found.version if found.installed else found.install}")


if __name__ == "__main__":
    if len(sys.argv) == 3:  # noqa: PLR2004 - a CLI and a task
        main(*sys.argv[1:])
    else:
        here()
