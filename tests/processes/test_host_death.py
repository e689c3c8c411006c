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
import os, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from understudy.actors import ProcessRunner, Runtime
from understudy.protocol import Spawn

with Runtime(":memory:", runners={"default": ProcessRunner("_workers:holder")}) as runtime:
    runtime.session("agent:atlas:main", workspace=".").spawn(Spawn(task="hold"))
    while not Path("pids").exists():
        time.sleep(0.01)
    fork = os.fork() if sys.argv[2] == "forked" else -1
    if fork:
        print(fork, flush=True)
    time.sleep(600)
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
