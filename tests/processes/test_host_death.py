"""kill -9 of the host: the wardens end what it had started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from _proc import children, see_gone

HERE = Path(__file__).parent
HOST = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from understudy.actors import ProcessRunner, Runtime
from understudy.protocol import Spawn

with Runtime(":memory:", runners={"default": ProcessRunner("_workers:holder")}) as runtime:
    with runtime.events(names=["session:sub_agent_progress"]) as told:
        runtime.session("agent:atlas:main", workspace=".").spawn(Spawn(task="hold"))
        next(iter(told))  # it has written down who is there
    fork = os.fork() if sys.argv[2] == "forked" else -1
    if fork:
        print(fork, flush=True)
    signal.pause()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["alone", "forked"])
def test_nobody_outlives_a_host_that_was_killed(how: str, tmp_path: Path) -> None:
    """Not a tool in its own session that ignores TERM; nor where a fork of the host holds every line of it open."""
    with subprocess.Popen(
        [sys.executable, "-c", HOST, str(HERE), how], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as host:
        assert host.stdout is not None
        fork = int(host.stdout.readline())
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        wardens = children(host.pid) - {fork}
        host.kill()
        try:
            assert len(pids) == 3
            assert len(wardens) == 1
            see_gone([*pids, *wardens])
        finally:
            if fork > 0:
                os.kill(fork, signal.SIGKILL)
