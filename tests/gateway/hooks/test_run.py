"""The command that a harness runs: what the server answers, or nothing at all, and always in time."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _claude import payloads
from _served import PATIENCE, Served, served

from understudy.actors.host import process_started
from understudy.gateway.harness import Homes, Reception
from understudy.gateway.hooks import run
from understudy.gateway.hooks.run import BUDGET_SECONDS
from understudy.gateway.http import create_token

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = pytest.mark.slow  # each hook is a Python of its own
PROGRAM = [sys.executable, "-W", "error", "-P", "-m", "understudy.gateway.cli", "hook", "run"]


def hook(payload: Mapping[str, Any] | bytes, database: Path, *more: str, event: str = "") -> Any:
    """Run it as the harness does; what it printed, which must be all that there is to see of it."""
    said = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    event = event or ("Stop" if isinstance(payload, bytes) else payload["hook_event_name"])
    command = [*PROGRAM, "claude-code", event, "--db", str(database), *more]
    ran = subprocess.run(command, input=said, capture_output=True, timeout=PATIENCE, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")
    return json.loads(ran.stdout) if ran.stdout else None


@contextmanager
def a_server(folder: Path) -> Iterator[Served]:
    """One that takes hooks in, for transcripts below ``folder``."""
    homes = Homes((folder / ".claude" / "projects",))
    with served(folder, reception=lambda runtime: Reception(runtime, homes=homes)) as server:
        yield server


def test_real_payloads_reach_the_store_and_a_sub_agent_is_told(tmp_path: Path) -> None:
    """One after the other, each by a process of its own: only the start of a sub-agent has an answer."""
    with a_server(tmp_path) as server:
        told = {p["hook_event_name"]: hook(p, server.database) for p in payloads("B_subagent", tmp_path)[:8]}
        output = told.pop("SubagentStart")["hookSpecificOutput"]
        assert output["hookEventName"] == "SubagentStart"
        assert "## Inherited from Parent Session" in output["additionalContext"]
        assert "│ user: MOCK:" in output["additionalContext"]
        assert set(told.values()) == {None}
        parent = server.runtime.store.sessions.find(limit=9).items[-1].session_key
        context = server.runtime.store.sessions.working_context(parent)
    assert context is not None
    assert context.recent_files == (str(tmp_path / "project" / "hello.txt"),)


def test_what_a_tool_said_stays_behind(tmp_path: Path) -> None:
    """Only what is wanted is sent: a request would be refused for the size of a file that was read."""
    (read,) = [p for p in payloads("B_subagent", tmp_path) if p["hook_event_name"] == "PostToolUse" and "agent_id" in p]
    with a_server(tmp_path) as server:
        hook({**read, "tool_response": {"file": "x" * 3_000_000}, "prompt": "y" * 2_000_000}, server.database)
        key = f"claude-code:{read['session_id']}:subagent:{read['agent_id']}"
        context = server.runtime.store.sessions.working_context(key)
    assert context is not None
    assert context.recent_files == (read["tool_input"]["file_path"],)


def test_a_token_for_one_agent_keeps_to_it(tmp_path: Path) -> None:
    """The same payloads with two agents' tokens: the second is told nothing, and changes nothing."""
    start, prompt, *_, sub = payloads("B_subagent", tmp_path)[:4]
    with a_server(tmp_path) as server:
        files = {}
        for agent in ("atlas", "borea"):
            files[agent] = tmp_path / agent
            files[agent].write_text(create_token(server.database, agent_id=agent))
        for payload in (start, prompt):
            assert hook(payload, server.database, "--token-file", str(files["atlas"])) is None
        before = [record.updated_at for record in server.runtime.store.sessions.find(limit=9).items]
        for payload in (prompt, sub):
            assert hook(payload, server.database, "--token-file", str(files["borea"])) is None
        found = server.runtime.store.sessions.find(limit=9).items
        assert [(record.agent_id, record.updated_at) for record in found] == [("atlas", before[0])]
        assert hook(sub, server.database, "--token-file", str(files["atlas"])) is not None


@contextmanager
def a_listener(folder: Path, *, answer: bytes = b"", hangs: bool = False) -> Iterator[Path]:
    """Something else where the server was: it answers anything with these bytes, or takes it and never does."""
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65_536)
                if hangs:
                    done.wait(PATIENCE)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield a_state(folder, f"http://127.0.0.1:{listener.getsockname()[1]}")
        done.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)


def a_state(folder: Path, url: str, **more: object) -> Path:
    """What a server says of itself; the database it would be of."""
    (folder / "token").write_text("ustd_x")
    me = os.getpid()
    said = {"url": url, "pid": me, "process_started": process_started(me), "token_file": str(folder / "token")}
    (folder / "agents.db.server").write_text(json.dumps({**said, **more}))
    return folder / "agents.db"


OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"


@pytest.mark.parametrize(
    "answer",
    [
        OK % (8, b'{"a": 1}'),
        OK % (99, b'{"a": 1}'),
        OK % (2, b"[]"),
        OK % (2, b"{}"),
        OK % (3, b"not"),
        b"HTTP/1.1 500 No\r\nContent-Length: 8\r\n\r\n" + b'{"a": 1}',
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"\x00\xff",
        b"",
    ],
)
def test_only_a_whole_answer_is_passed_on(tmp_path: Path, answer: bytes) -> None:
    """An object with something in it; whatever else is said is nobody's business."""
    with a_listener(tmp_path, answer=answer) as database:
        told = hook(b"{}", database)
    assert told == ({"a": 1} if answer == OK % (8, b'{"a": 1}') else None)


def test_a_server_that_never_answers_costs_the_budget_and_no_more(tmp_path: Path) -> None:
    """One timer is over all of it: here it is short, and what comes after it is never reached."""
    program = "import sys; from understudy.gateway.hooks.run import main; main(sys.argv[1:], budget=0.2); print('late')"
    with a_listener(tmp_path, hangs=True) as database:
        command = [sys.executable, "-c", program, "claude-code", "Stop", "--db", str(database)]
        ran = subprocess.run(command, input=b"{}", capture_output=True, timeout=PATIENCE, check=False)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")
        # Likewise where the payload never ends.
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as open_:
            assert open_.wait(PATIENCE) == 0
            assert open_.stdout is not None
            assert open_.stdout.read() == b""
    assert BUDGET_SECONDS < 2


NONE = [b"", b"{", b"[]", b"null", b"[" * 100_000, b'{"hook_event_name": "Stop"}', b"\xff\xfe", b'{"a": NaN}']


def test_a_payload_that_is_none_is_passed_over(tmp_path: Path) -> None:
    """Nothing is said, nothing is stored."""
    with a_server(tmp_path) as server:
        assert [hook(payload, server.database) for payload in NONE] == [None] * len(NONE)
        assert not server.runtime.store.sessions.find(limit=9).items


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("http://127.0.0.1:1", {}),
        ("http://127.0.0.1:1", {"pid": 1}),
        ("http://example.org:80", {}),
        ("http://127.0.0.1:99999", {}),
        ("http://user@127.0.0.1:1", {}),
        ("https://127.0.0.1:1", {}),
        ("http://127.0.0.1:1", {"token_file": "/nowhere"}),
    ],
)
def test_where_nobody_serves_it_is_silent(tmp_path: Path, url: str, more: dict[str, object]) -> None:
    """No server, one that is gone, one that cannot be, no token."""
    assert hook(b"{}", tmp_path / "none.db") is None
    assert hook(b"{}", a_state(tmp_path, url, **more)) is None


@pytest.mark.parametrize("arguments", [[], ["claude-code"], ["claude-code", "Stop"], ["a/b", "../c", "--db", "x"]])
def test_arguments_that_say_nothing_are_no_failure_either(arguments: list[str]) -> None:
    """Whoever wants to know asks for --help."""
    ran = subprocess.run([*PROGRAM, *arguments], input=b"{}", capture_output=True, timeout=PATIENCE, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


def test_it_imports_next_to_nothing(tmp_path: Path) -> None:
    """What a harness waits for at each tool call is the start of Python, and little else."""
    (tmp_path / "understudy").mkdir()
    (tmp_path / "understudy" / "gateway").symlink_to(Path(run.__file__).parents[1])  # as it is when it is installed
    program = f"import sys; before = set(sys.modules); import {run.__name__}; print(*sorted(set(sys.modules) - before))"
    ran = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    loaded = {name.partition(".")[0] for name in ran.stdout.split()}
    assert "understudy" in loaded, ran.stderr
    heavy = {"pydantic", "rich", "typer", "httpx", "http", "urllib", "asyncio", "socket", "ssl", "typing", "pathlib"}
    assert loaded & heavy == set()
