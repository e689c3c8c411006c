"""What the demo's sub-agents do, and the small project they do it on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from understudy.actors.runners import AsyncFunctionContext
    from understudy.protocol import SpawnPacket

PROJECT = {
    "config.toml": 'name = "atlas"\nretries = 3\ntimeout = "30s"\n',
    "loader.py": "import tomllib\n\n\ndef load(path):\n    return tomllib.loads(path.read_text())\n",
    "client.py": "from loader import load\n\nSETTINGS = load('config.toml')\n",
    "README.md": "# Atlas\n\nReads its settings from `config.toml`.\n",
}


def write_project(folder: Path) -> None:
    """The files the sub-agents work on."""
    folder.mkdir()
    for name, text in PROJECT.items():
        (folder / name).write_text(text, encoding="utf-8")


async def read_files(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    """Read the files named in the task, one after the other, and report."""
    total = 0
    names = packet.artifact_refs
    for name in names:
        await asyncio.sleep(0.3)
        text = await context.read_file(name)
        lines = len(text.splitlines())
        context.progress(f"read {name}: {lines} lines")
        context.usage(input_tokens=len(text) // 4, output_tokens=20, cost_usd=0.0002)
        total += lines
    return f"{len(names)} files, {total} lines: {', '.join(names)}"


async def delegate(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    """Hand the work on to a child of its own."""
    from understudy.protocol import Spawn  # noqa: PLC0415 - keeps this module importable without the runtime

    context.progress("handing on")
    handle = await context.spawn(
        Spawn(task="Read it for me", label="grandchild", runner="read_files", artifact_refs=packet.artifact_refs)
    )
    result = await handle.result()
    return f"my own sub-agent says: {result.output}"


async def hang(packet: SpawnPacket, context: AsyncFunctionContext) -> str:  # noqa: ARG001 - the runner's shape
    """Read one file, then wait for something that never comes."""
    await context.read_file("README.md")
    context.progress("waiting for an answer that never comes")
    await asyncio.Event().wait()
    return "unreachable"


async def write_report(packet: SpawnPacket, context: AsyncFunctionContext) -> str:  # noqa: ARG001 - the runner's shape
    """Take long enough for the host to die meanwhile; once taken up again, finish."""
    for name in PROJECT:
        await context.read_file(name)
        await asyncio.sleep(0.4)
        context.progress(f"written up {name}")
    return "the report on all four files"
