"""The program as the tests call it, and what stands for an agent there."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer.main
from typer.testing import CliRunner

from understudy.gateway.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path

    from understudy.actors import Runtime
    from understudy.actors.runners import AsyncFunctionContext
    from understudy.protocol import SpawnPacket

PROGRAM = [sys.executable, "-W", "error", "-m", "understudy.gateway.cli"]
"""In a process of its own."""
STEERING = "\x1b[31mred\x1b[0m [bold]not bold[/bold]\x07 \u202e"
"""What an agent may say to whoever reads it in a terminal."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the program did."""

    exit_code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Its output, as JSON."""
        return json.loads(self.out)


def understudy(*arguments: str | Path) -> Said:
    """Call the program; anything it did not mean to raise fails the test."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Said(result.exit_code, result.stdout, result.stderr)


async def worker(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    """Reads a file, uses something, and says what could steer a terminal."""
    await context.read_file("notes.txt")
    context.usage(input_tokens=1_200, output_tokens=34, cost_usd=0.0123)
    return f"{STEERING}the loader is in config.py\nsecond line\n" + "word " * 400


def run_of(runtime: Runtime, label: str) -> str:
    """The id of the run with that label."""
    (found,) = (record.run_id for record in runtime.runs().items if record.label == label and record.depth == 1)
    return str(found)


def commands() -> dict[str, Any]:
    """Every command by its full name."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_group(app).commands.items():
        below = getattr(command, "commands", None)
        found |= {name: command} if below is None else {f"{name} {other}": below[other] for other in below}
    return found
