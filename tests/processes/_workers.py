"""Runners that worker processes import; each does one thing that a child may do to its host."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.actors import ModelRunner
from understudy.actors.testing import ScriptedModel
from understudy.protocol import Usage
from understudy.protocol.model import TextDelta, ToolCall, Turn, UsageReport
from understudy.protocol.runner import Final, Noted, Said, Touched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from understudy.actors.runners import FunctionContext, RunContext
    from understudy.protocol import SpawnPacket
    from understudy.protocol.runner import RunnerEvent


model = ModelRunner(ScriptedModel(["said by a model"]))


def where(packet: SpawnPacket, context: FunctionContext) -> str:
    """Tell what this process sees: folder, variables, arguments."""
    Path("seen").write_text(repr(dict(os.environ)) + repr(sys.orig_argv), encoding="utf-8")
    context.touch("seen", "write")
    return f"{packet.task} in {Path.cwd()} with PWD={os.environ['PWD']}"


def fail(packet: SpawnPacket, _context: FunctionContext) -> str:
    """Raise."""
    raise ValueError(f"no {packet.task}")


def leave(packet: SpawnPacket, _context: FunctionContext) -> str:
    """End the process without a word, as the task says."""
    print("going", file=sys.stderr, flush=True)
    print(os.environ.get("GIVEN_TOKEN", ""), file=sys.stderr, flush=True)
    if packet.task == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3)


class Talker:
    """Everything a runner can say, with prints and noise in between."""

    def __init__(self, words: str = "done") -> None:
        self._words = words

    async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        """Talk."""
        print("printed by the worker")
        context.emit(Noted("emitted"))
        yield Said(Turn("assistant", "thinking", (ToolCall("1", "read", {"path": "a\nb"}),)))
        yield Said(Turn("tool", "read", tool_call_id="1"))
        await context.flush()
        yield UsageReport(Usage(input_tokens=3, output_tokens=4, cost_usd=0.5))
        yield Touched("seen.txt")
        yield TextDelta("almost")
        yield Final(f"{self._words}: {len(context.history)} turn, leaf {packet.is_leaf}")


class Babbler:
    """Writes on the host's line what is no event."""

    async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        """Babble."""
        for noise in (b"{\n", b"[]\n", b'{"event":"Said","data":{"turn":7}}\n', b"\xff\xfe\n", b'{"event":"Boom"}\n'):
            context._line.sendall(noise)  # type: ignore[attr-defined]
        if packet.task == "and answer":
            yield Final("heard all the same")


class Listener:
    """Waits for an instruction, and answers with it."""

    async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        """Listen."""
        yield Noted("listening")
        told: list[Turn] = []
        while not told:
            told = await context.boundary()
        yield Final(told[0].text)


class Delegator:
    """Tries to spawn."""

    async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        """Delegate."""
        context.own_session()
        yield Final("delegated")


class Cleaner:
    """Cleans up when it is asked to end."""

    async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        """Wait, and tidy."""
        yield Noted("ready")
        try:
            await asyncio.Event().wait()
        finally:
            Path("tidy").write_text(str(context.cancelled), encoding="utf-8")


def sleeper(_packet: SpawnPacket, context: FunctionContext) -> str:
    """A tool that takes ten minutes."""
    with subprocess.Popen(["sleep", "600"]) as tool:
        _tell_pids(context, tool.pid)
    return "slept"


async def spinner(_packet: SpawnPacket, context: FunctionContext) -> str:
    """A loop that holds the processor and hears no signal."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _tell_pids(context)
    while True:
        pass


def holder(_packet: SpawnPacket, context: FunctionContext) -> str:
    """A tool in a session of its own that holds stdout, and the grandchild it left to itself."""
    program = (
        "import os, signal, subprocess\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "below = subprocess.Popen(['setsid', 'sleep', '600'])\n"
        "print(below.pid, flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program], stdout=subprocess.PIPE, stderr=sys.stdout, start_new_session=True
    ) as tool:
        assert tool.stdout is not None
        _tell_pids(context, tool.pid, int(tool.stdout.readline()))
        signal.pause()
    return "held"


def _tell_pids(context: FunctionContext, *others: int) -> None:
    written = Path("pids.part")
    written.write_text(" ".join(map(str, (os.getpid(), *others))), encoding="utf-8")
    written.rename("pids")  # whole, for whoever looks for it
    context.progress("ready")
