"""A host that dies in the middle of the work, and the next one that takes it up: nothing is lost, nothing done twice.

`python crash_and_resume.py` starts itself once more as the first host, and lets that one kill itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.actors import Runtime
from understudy.protocol import Spawn
from understudy.protocol.model import Turn
from understudy.protocol.runner import Final, Said

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from understudy.actors.runners import RunContext
    from understudy.protocol import SpawnPacket
    from understudy.protocol.runner import RunnerEvent

CHAPTERS = ("loader", "client", "server")


class Report:
    """A runner that can be resumed: it looks at its own history to see how far an earlier host came."""

    def __init__(self, *, dies_at: str | None = None) -> None:
        self._dies_at = dies_at

    async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        """A chapter is a turn, and a turn is stored."""
        written = [turn.text for turn in context.history if turn.role == "assistant"]
        for chapter in CHAPTERS[len(written) :]:
            if chapter == self._dies_at:
                await context.flush()  # what was said so far is on the disk; the rest dies with us
                os.kill(os.getpid(), signal.SIGKILL)
            print(f"  writing on the {chapter}", flush=True)
            yield Said(Turn("assistant", f"On the {chapter}."))
        yield Final(f"{packet.label}: {len(CHAPTERS)} chapters")


def main(database: Path) -> None:
    """Both hosts, one after the other."""
    print("the first host:", flush=True)
    died = subprocess.run([sys.executable, __file__, str(database)], check=False).returncode  # noqa: S603 - this file
    print("it was killed" if died == -signal.SIGKILL else f"it ended with {died}")
    print("the second host:")
    with Runtime(database, runners={"default": Report()}) as runtime:
        (run,) = runtime.runs().items
        result = runtime.run(run.run_id).result(timeout=60)
        print(f"{result.end_reason} as generation {result.generation}: {result.output}")
        print(len(runtime.session("agent:atlas:main").transcript()), "result in the parent's history")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with Runtime(sys.argv[1], runners={"default": Report(dies_at="server")}) as first:
            spawn = Spawn(task="Write it up", label="report", restart="resume")
            first.session("agent:atlas:main").spawn(spawn).result()
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder, "agents.db"))
