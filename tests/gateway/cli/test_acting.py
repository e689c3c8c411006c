"""What only a running host can do is done through its server: a real one, in a process of its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from _program import PROGRAM, understudy
from _scene import elsewhere  # noqa: F401 - fixtures
from _stage import MAIN

from understudy.actors import FunctionRunner, Runtime
from understudy.gateway.cli.client import Server, the_server
from understudy.gateway.http import create_token
from understudy.persistence import Store
from understudy.persistence.operations import DeadLetter
from understudy.protocol import Spawn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow  # a host in a process of its own takes a second to start and to stop

RUNNERS = """
import asyncio
from understudy.actors import FunctionRunner

async def answer(packet, context):
    return f"done: {packet.task}"

async def hang(packet, context):
    await asyncio.Event().wait()

def everybody():
    return {"default": FunctionRunner(answer), "hang": FunctionRunner(hang)}
"""


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Path]:
    """``understudy serve`` on a database of its own; it ends in good order when it is told to."""
    command = [*PROGRAM, "serve", "--port", "0", *options]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert re.match(r"serving at http://127\.0\.0\.1:\d+ \(pid \d+\); the token is in \S+; Ctrl-C ends it", first)
        try:
            yield folder / "agents.db"
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    assert not (folder / "agents.db.server").exists()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A database that is served, with a dead letter in it."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "staff.py").write_text(RUNNERS)
    (folder / "agents.toml").write_text("max_children_per_agent = 50\n")
    with Store.open(folder / "agents.db", wall_ms=lambda: 1) as store:
        store.transaction(DeadLetter(1, "nobody listened", "a message")).result(timeout=10)
    with serving(folder, "--app", "staff:everybody", "--config", "agents.toml") as database:
        yield database


@pytest.fixture
def server(served: Path) -> Server:
    """Whoever serves it."""
    return the_server(served)


def spawned(server: Server, **spawn: Any) -> str:
    """A run that was accepted."""
    answer = server.tell(f"/api/sessions/{MAIN}/spawn?create=true", spawn)
    assert answer.ok, answer
    return str(answer.document["run_id"])


def test_kill(served: Path, server: Server) -> None:
    """With its reason; a second time there is nothing left to kill."""
    run_id = spawned(server, task="wait", label="waiter", runner="hang")
    told = understudy("kill", run_id, "--reason", "enough", "--db", served)
    assert (told.exit_code, told.out) == (0, f"killed 1: {run_id}\n")
    assert "killed, enough" in understudy("show", run_id, "--db", served).out
    again = understudy("kill", run_id, "--db", served)
    assert (again.exit_code, again.out) == (1, "")
    assert "nothing was killed" in again.err
    other = spawned(server, task="wait", label="waiter", runner="hang")
    assert understudy("kill", other, "--db", served, "--json").document == {"killed": [other], "already_ended": []}


def test_follow_up(served: Path, server: Server) -> None:
    """With the reply, if one waits for it; else with the run to look at."""
    run_id = spawned(server, task="first", label="kept", cleanup="keep")
    understudy("tail", "--run", run_id, "--db", served)  # until it is delivered
    told = understudy("follow-up", run_id, "second", "--wait", "30", "--db", served)
    assert (told.exit_code, told.out) == (0, "done: second\n")
    told = understudy("follow-up", run_id, "third", "--db", served)
    assert told.exit_code == 0
    later = re.match(r"accepted as run (\S+):", told.out)
    assert later is not None
    document = understudy("follow-up", run_id, "fourth", "--wait", "30", "--json", "--db", served).document
    assert document["result"]["output"] == "done: fourth"
    assert understudy("show", later[1], "--json", "--db", served).document["output"] == "done: third"


def test_what_the_server_refuses_is_one_sentence(served: Path, server: Server) -> None:
    """In its own words, with what to do."""
    gone = spawned(server, task="once", label="not-kept")
    understudy("tail", "--run", gone, "--db", served)
    for arguments in (("kill", "r-404"), ("follow-up", "r-404", "more"), ("follow-up", gone, "more"), ("replay", "99")):
        told = understudy(*arguments, "--db", served)
        assert (told.exit_code, told.out) == (1, ""), arguments
        assert re.fullmatch(r"understudy: the server at \S+ refused: .+\n", told.err), told.err


def test_replay_and_sweep(served: Path) -> None:
    """Of this dead letter only a description is kept; there are no ghosts."""
    (letter,) = understudy("dead-letters", "--json", "--db", served).document["items"]
    told = understudy("replay", str(letter["id"]), "--db", served)
    assert told.exit_code == 1
    assert "only a description is kept: send it again yourself" in told.err
    assert understudy("sweep", "--db", served).out == "swept: 0 ghosts found\n"
    assert understudy("sweep", "--json", "--db", served).document == {"found": 0}


def test_tail_hears_the_server(served: Path, server: Server) -> None:
    """Live, as JSON lines in a pipe."""
    following = [*PROGRAM, "tail", "--json", "--db", str(served)]
    with subprocess.Popen(following, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        try:
            assert tail.stdout is not None
            assert tail.stderr is not None
            assert tail.stderr.readline() == f"following {server.url}; Ctrl-C ends it\n"
            run_id = spawned(server, task="say it", label="heard")
            names = []
            while "session:sub_agent_delivered" not in names:
                event = json.loads(tail.stdout.readline())
                if event["run_id"] == run_id:
                    names.append(event["name"])
            tail.send_signal(signal.SIGINT)
            assert tail.wait(timeout=30) == 130
            assert tail.stderr.read() == ""
        finally:
            tail.kill()
    assert names[0] == "session:sub_agent_spawned"
    assert "session:sub_agent_completed" in names  # which no database records


def test_tail_goes_on_with_the_database_when_the_server_stops(tmp_path: Path) -> None:
    """And says so; what a later host does is heard as before."""
    with serving(tmp_path) as database:
        following = [*PROGRAM, "tail", "--interval", "0.05", "--db", str(database)]
        tail = subprocess.Popen(following, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert tail.stderr is not None
        assert "following http://" in tail.stderr.readline()
    try:
        assert tail.stderr.readline() == "the server has stopped\n"
        assert tail.stderr.readline() == f"following {database}; Ctrl-C ends it\n"
        with Runtime(database, runners={"default": FunctionRunner(lambda packet, context: "done")}) as runtime:
            run_id = runtime.session(MAIN).spawn(Spawn(task="go on", label="later")).run_id
            assert tail.stdout is not None
            assert tail.stdout.readline().endswith(f"{run_id} later  spawned: runner default\n")
    finally:
        tail.kill()
        tail.communicate()


def test_a_token_for_one_agent_cannot_sweep(served: Path, server: Server, tmp_path: Path) -> None:
    """Ghosts are everybody's."""
    (tmp_path / "token").write_text(create_token(served, agent_id="atlas"))
    bound = replace(server, token_file=tmp_path / "token")
    assert bound.ask("/api/health").status == 200
    assert bound.tell("/api/sweep", {}).status == 404


def test_reads_work_beside_the_server(served: Path, server: Server) -> None:
    """And doctor finds it well; a second server is refused."""
    run_id = spawned(server, task="look", label="looked-at")
    understudy("tail", "--run", run_id, "--db", served)
    assert run_id in understudy("runs", "--db", served).out
    told = understudy("doctor", "--json", "--db", served)
    assert (told.exit_code, told.document["findings"][-1]["verdict"]) == (0, "ok")
    told = understudy("serve", "--db", served, "--port", "0")
    assert told.exit_code == 1
    assert "is served already, at" in told.err


def test_a_token_that_is_not_taken_is_a_sentence(served: Path, server: Server, tmp_path: Path) -> None:
    """Not a status code."""
    (tmp_path / "token").write_text("ustd_wrong\n")
    state = json.loads(served.with_name("agents.db.server").read_text())
    (tmp_path / "agents.db.server").write_text(json.dumps({**state, "token_file": str(tmp_path / "token")}))
    told = understudy("sweep")
    assert told.exit_code == 1
    assert f"the server at {server.url} refused: it does not take the token in" in told.err
