"""A server as a process: it is found while it runs, stops in order, and what a killed one left is not believed."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from _served import PATIENCE, served

from understudy.actors.host import process_started
from understudy.gateway.http import NotServedError, Whereabouts, running_server
from understudy.gateway.http.whereabouts import announced
from understudy.persistence import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = """
import asyncio, sys
from understudy.actors import FunctionRunner
from understudy.gateway.http import serve

async def hang(packet, context):
    await asyncio.get_running_loop().create_future()

runners = {"default": FunctionRunner(hang)}
asyncio.run(serve(sys.argv[1], runners=runners, port=0, ready=lambda here: print(here.url, flush=True)))
print("ended", flush=True)
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(tmp_path / "agents.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow  # a Python of its own, and uvicorn looks every tenth of a second whether to stop
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_streams_runs_and_server_in_order(
    tmp_path: Path, process: subprocess.Popen[str], number: signal.Signals
) -> None:
    """Nothing hangs: the stream has an end, the run has a result, the file is gone, and the exit code is 0."""
    assert process.stdout is not None
    assert process.stderr is not None
    url = process.stdout.readline().strip()
    database = tmp_path / "agents.db"
    here = running_server(database)
    assert here is not None
    assert (here.url, here.pid) == (url, process.pid)
    token = Path(here.token_file).read_text(encoding="ascii").strip()
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE, trust_env=False) as client:
        run_id = client.post("/api/sessions/agent:a:main/spawn?create=true", json={"task": "hang"}).json()["run_id"]
        with client.stream("GET", "/api/events") as stream:
            lines = stream.iter_lines()
            assert next(lines) == ": welcome"
            process.send_signal(number)
            assert list(lines)[-1] == ""  # a proper end, not a broken connection
        assert process.stdout.read() == "ended\n"
    assert process.wait(PATIENCE) == 0, process.stderr.read()
    assert running_server(database) is None
    assert not database.with_name("agents.db.server").exists()
    with Store.open(database, wall_ms=lambda: 0) as store:
        result = store.runs.result(run_id)
        assert result is not None
        assert result.failure is not None
        assert result.failure.kind == "host_stopped"


@pytest.mark.slow  # a Python of its own
def test_what_a_killed_server_left_is_not_believed(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    """Its number may be another process's by now; the next server takes its place."""
    assert process.stdout is not None
    process.stdout.readline()
    database = tmp_path / "agents.db"
    process.kill()
    process.wait(PATIENCE)
    assert database.with_name("agents.db.server").exists()
    assert running_server(database) is None
    with served(tmp_path) as server:
        here = running_server(database)
        assert here is not None
        assert here.url == server.url


def test_a_database_has_one_server(tmp_path: Path) -> None:
    """The second is told where the first is."""
    with (
        served(tmp_path) as server,
        pytest.raises(NotServedError, match=rf"is served already, at {server.url} \(pid {os.getpid()}\)"),
        served(tmp_path),
    ):
        pass


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    """And what to do."""
    (tmp_path / "other").mkdir()
    with served(tmp_path) as server:
        port = int(server.url.rpartition(":")[2])
        words = rf"port {port} of 127.0.0.1 cannot be used .*: take another, or 0 for any"
        with pytest.raises(NotServedError, match=words), served(tmp_path / "other", port=port):
            pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": "x"}', "null"])
def test_a_file_that_says_nothing_is_no_server(tmp_path: Path, text: str) -> None:
    """Whoever wrote it."""
    (tmp_path / "agents.db.server").write_text(text)
    assert running_server(tmp_path / "agents.db") is None


def test_the_file_is_its_owners_and_goes_only_with_its_server(tmp_path: Path) -> None:
    """One that a successor has written by then stays."""
    database, file = tmp_path / "agents.db", tmp_path / "agents.db.server"
    pid = os.getpid()
    here = Whereabouts("http://127.0.0.1:1", pid, process_started(pid), "token")
    with announced(database, here):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert running_server(database) == here
        other = {"url": "http://127.0.0.1:2", "pid": pid, "process_started": process_started(pid), "token_file": "t"}
        file.write_text(json.dumps(other))
    assert file.exists()
    gone = {**other, "process_started": 1}
    file.write_text(json.dumps(gone))
    assert running_server(database) is None
