"""MCP servers of a model child, with real servers: they come with it, serve it, and go with it."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from _proc import see_gone

from understudy.actors import ModelRunner
from understudy.actors.mcp.connection import START_SECONDS
from understudy.actors.testing import ManualClock, ScriptedModel
from understudy.actors.tools import tool
from understudy.actors.tools.outcome import MAX_CHARACTERS
from understudy.protocol import EndReason, Spawn
from understudy.protocol.model import ToolCall

from .conftest import A_SERVER, MAIN, Project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SLOW = pytest.mark.slow  # a server made with the SDK takes a second to come up
SECRET = "open-sesame-4711"  # noqa: S105 - a canary


def call(tool: str, **arguments: str) -> ToolCall:
    return ToolCall(f"call-{tool}", f"mcp__docs__{tool}", arguments)


# -- a server that works ----------------------------------------------------------------------------------


@SLOW
def test_a_child_uses_the_servers_of_its_folder(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text is text, the rest is described and bounded, paths are receipts; only chosen variables reach the server."""
    monkeypatch.setenv("HOST_KEY", "canary-of-the-host")
    project.names(docs=project.stdio(LOGIN="${KEY}", LEVEL="${LEVEL:-debug}"))
    result = project.child(
        [
            call("echo", text="hello"),
            call("fail"),
            call("picture"),
            call("flood"),
            call("where"),
            call("look_at", path="a.py"),
            call("put", path="b.py"),
            call("echo"),
        ],
        "Done.",
        env={"KEY": SECRET},
    )
    assert (result.end_reason, result.output) == (EndReason.COMPLETED, "Done.")
    assert project.notices == ["docs has 1 more tools: too many, too large, or wrong."]
    assert project.mcp_tools() == [
        f"mcp__docs__{name}"
        for name in ["echo", "fail", "picture", "flood", "crash", "hang", "where", "look_at", "put"]
    ]
    echo, fail, picture, flood, where, look, put, wrong = project.answers()
    assert (echo, fail) == ("hello", "it went wrong")
    assert picture == "here:\n[image image/png, 3 bytes: cannot be shown here]\n[resource file:///notes.txt]\nnoted"
    assert len(flood) <= MAX_CHARACTERS
    assert (look, put) == ("look at a.py", "put b.py")
    assert wrong.startswith("docs answered with an error: ")
    folder, *variables = where.splitlines()
    assert folder == str(project.cwd)
    assert {"LEVEL=debug", "LOGIN=[hidden]", f"PWD={project.cwd}"} <= set(variables)
    assert "canary" not in where
    assert [(file.path, file.provenance) for file in result.recent_files] == [
        (str(project.cwd / "a.py"), "observed"),
        (str(project.cwd / "b.py"), "observed"),
    ]
    see_gone(project.pids())


@SLOW
@pytest.mark.parametrize("end", ["kill", "deadline", "host stops"])
def test_a_server_ends_with_its_child_in_the_middle_of_a_call(project: Project, ready: Path, end: str) -> None:
    """With everything it started."""
    project.names(docs=project.stdio(HANGS=str(ready)))
    clock = ManualClock()
    with project.runtime(call("hang"), clock=clock) as runtime:
        session = runtime.session(MAIN, workspace=project.cwd)
        handle = session.spawn(Spawn(task="Do it", timeout_ms=60_000))
        ready.read_text()
        if end == "kill":
            session.kill(handle.run_id)
        elif end == "deadline":
            clock.advance(60)
        if end != "host stops":
            reason = handle.result(timeout=60).end_reason
            assert reason == (EndReason.KILLED if end == "kill" else EndReason.WATCHDOG_TIMEOUT)
            see_gone(project.pids())
    see_gone(project.pids())


@SLOW
def test_a_server_does_not_outlive_a_host_that_was_killed(project: Project, ready: Path) -> None:
    """With SIGKILL, while the server, which ignores that its input ends, is being started."""
    script = "trap '' TERM; sleep 600 & echo $$ $! >pids; echo >ready; while :; do wait; done"
    (project.cwd / "stubborn.sh").write_text(script)
    project.names(docs={"command": "sh", "args": ["stubborn.sh"]})
    program = """
from understudy.actors import ModelRunner, Runtime
from understudy.actors.testing import ScriptedModel
from understudy.protocol import Spawn
with Runtime(runners={"default": ModelRunner(ScriptedModel([]))}) as runtime:
    runtime.session("agent:atlas:main").spawn(Spawn(task="Do it")).result(timeout=600)
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=project.cwd) as host:
        ready.read_text()
        host.kill()
    see_gone(project.pids())


@SLOW
def test_a_call_that_takes_too_long_is_stopped_and_the_server_serves_on(project: Project, ready: Path) -> None:
    """Its time is up on the runtime's clock; the next call is answered."""
    project.names(docs=project.stdio(HANGS=str(ready)))
    clock = ManualClock()
    with project.runtime(call("hang"), call("echo", text="still here"), "Done.", clock=clock) as runtime:
        handle = runtime.session(MAIN, workspace=project.cwd).spawn(Spawn(task="Do it"))
        ready.read_text()
        clock.advance(300)
        assert handle.result(timeout=60).output == "Done."
    assert project.answers() == [
        "mcp__docs__hang was stopped: it did not finish within its 300000 ms",
        "still here",
    ]


@SLOW
def test_a_server_that_dies_in_a_call_is_an_error_result_then_and_later(project: Project) -> None:
    """With its exit code and its last words; the child goes on."""
    project.names(docs=project.stdio())
    result = project.child(call("crash"), call("echo", text="anybody?"), "Done without.")
    assert result.output == "Done without."
    gone = "the MCP server docs is gone: it ended with exit code 3: out of memory; go on without it"
    assert project.answers() == [gone, gone]
    see_gone(project.pids())


# -- a server that does not work --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"command": "/no/such/server"}, "/no/such/server: No such file or directory"),
        ({"command": "a\0b"}, "ValueError: embedded null byte"),
        (
            {"command": "sh", "args": ["-c", "echo bad key: $KEY >&2; exit 2"], "env": {"KEY": SECRET}},
            "it ended with exit code 2: bad key: [hidden]",
        ),
        ({"command": "yes"}, "it writes to its stdout what is no JSON-RPC message"),
        ({"command": "true"}, "it ended with exit code 0"),
        ({"command": "sh", "args": ["-c", "exec $0", "${NOT_SET}"]}, "it needs ${NOT_SET}, which is not in the env"),
        ({"args": []}, "its entry has no command"),
        ({"command": ["sh"]}, "its entry is wrong: command: Input should be a valid string"),
        ({"type": "carrier-pigeon", "url": "x"}, "its entry is wrong: type: Input should be "),
        ({"type": "http"}, "its entry has no url"),
        ({"url": "file:///etc/passwd"}, "its url does not begin with http:// or https://"),
        ("sh", "its entry is wrong: "),
    ],
)  # fmt: skip
def test_a_server_that_does_not_come_up_is_a_line_in_the_brief(
    project: Project, entry: object, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The child works without it, is told why, and hears no secret of its entry; nor does a log."""
    project.names(docs=entry)
    with caplog.at_level(logging.DEBUG):
        assert project.child("Done without.").output == "Done without."
    assert project.mcp_tools() == []
    (notice,) = project.notices
    assert notice.startswith(f"docs is not available: {reason}")
    assert SECRET not in notice + caplog.text


def test_a_server_that_hangs_at_its_start_is_left_behind_after_a_while(project: Project, ready: Path) -> None:
    """On the runtime's clock; it is dead then, and the child goes on."""
    (project.cwd / "hang.sh").write_text("echo $$ >pids; echo >ready; exec sleep 600")
    project.names(docs={"command": "sh", "args": ["hang.sh"]})
    clock = ManualClock()
    with project.runtime("Done without.", clock=clock) as runtime:
        handle = runtime.session(MAIN, workspace=project.cwd).spawn(Spawn(task="Do it"))
        ready.read_text()
        clock.advance(START_SECONDS)
        assert handle.result(timeout=60).output == "Done without."
    assert project.notices == ["docs is not available: it did not answer within 30 s."]
    see_gone(project.pids())


@pytest.mark.parametrize("end", ["kill", "host stops"])
def test_a_child_that_ends_while_its_server_starts_leaves_nothing(project: Project, ready: Path, end: str) -> None:
    """However it ends."""
    (project.cwd / "hang.sh").write_text("sleep 600 & echo $$ $! >pids; echo >ready; wait")
    project.names(docs={"command": "sh", "args": ["hang.sh"]})
    with project.runtime("never said", clock=ManualClock()) as runtime:
        session = runtime.session(MAIN, workspace=project.cwd)
        handle = session.spawn(Spawn(task="Do it"))
        ready.read_text()
        if end == "kill":
            session.kill(handle.run_id)
            see_gone(project.pids())
    see_gone(project.pids())


def _link(file: Path) -> None:
    file.with_name("elsewhere").write_text("{}")
    file.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda file: file.write_text('{"mcpServers": {"docs": {"command": "sh"}'), "it is not JSON: "),
        (lambda file: file.write_bytes(b"\xff\xfe\xff"), "it is not JSON"),
        (lambda file: file.write_text("[" * 100_000), "it is not JSON"),
        (lambda file: file.write_text("[]"), 'it is not an object with a member "mcpServers"'),
        (lambda file: file.write_text('{"mcpServers": []}'), 'it is not an object with a member "mcpServers"'),
        (lambda file: file.write_text(" " * 300_000), "it is larger than 262144 bytes"),
        (lambda file: file.mkdir(), "it is not a regular file"),
        (os.mkfifo, "it is not a regular file"),
        (_link, "it is a symlink, which is not followed"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_one_sentence(
    project: Project, make: Callable[[Path], object], reason: str
) -> None:
    """And the child works without."""
    make(project.cwd / ".mcp.json")
    assert project.child("Done without.").output == "Done without."
    (notice,) = project.notices
    assert notice.startswith(f"{NONE}{reason}")


# -- over HTTP --------------------------------------------------------------------------------------------


class HttpServer:
    """A server in a process of its own, which can be killed and come back at the same address."""

    def __init__(self, hangs: Path) -> None:
        self.hangs = hangs
        self._port = "0"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        command = [sys.executable, A_SERVER, "http", self._port]
        environment = {**os.environ, "HANGS": str(self.hangs)}
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._port = self._process.stdout.readline().strip()
        return f"http://127.0.0.1:{self._port}/mcp"

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def http_server(ready: Path) -> Iterator[HttpServer]:
    server = HttpServer(ready)
    yield server
    server.kill()


@SLOW
def test_a_server_over_http_may_die_in_a_call_and_come_back(project: Project, http_server: HttpServer) -> None:
    """Killed with SIGKILL while it works: that call and the next are error results, until it is there again."""
    project.names(docs={"type": "http", "url": http_server.start()})

    def kill() -> None:
        http_server.hangs.read_text()
        http_server.kill()

    @tool
    def restart() -> str:
        """Start the server again."""
        http_server.start()
        return "restarted"

    killer = threading.Thread(target=kill)
    killer.start()
    script = [
        call("echo", text="hello"),
        call("hang"),
        call("echo", text="anybody?"),
        ToolCall("r", "restart"),
        call("echo", text="back again"),
        "Done.",
    ]
    result = project.child(*script, tools=[restart])
    killer.join()
    assert result.output == "Done."
    hello, cut, later, _, back = project.answers()
    assert (hello, back) == ("hello", "back again")
    assert cut.startswith("docs answered with an error: ")
    assert later.startswith("the MCP server docs is gone: ConnectError: ")


@pytest.mark.parametrize("kind", ["http", "streamable-http", "sse"])
def test_an_address_where_nobody_listens_is_a_line_in_the_brief(project: Project, kind: str) -> None:
    """Without the token of its header or of its query."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}/mcp?key={SECRET}"
    project.names(docs={"type": kind, "url": url, "headers": {"Authorization": "Bearer ${TOKEN}"}})
    assert project.child("Done.", env={"TOKEN": SECRET}).output == "Done."
    (notice,) = project.notices
    assert notice.startswith("docs is not available: ")
    assert SECRET not in project.brief


@pytest.mark.parametrize("answer", [b"HTTP/1.1 500 Broken\r\ncontent-length: 0\r\n\r\n", b"garbage\r\n\r\n", b""])
def test_an_address_with_something_else_behind_it_is_a_line_in_the_brief(project: Project, answer: bytes) -> None:
    """Whatever it answers; and what it was sent carried the header of the file."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                with client:
                    heard.append(client.recv(65_536))
                    client.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        project.names(docs={"type": "http", "url": url, "headers": {"X-Key": SECRET}})
        assert project.child("Done.").output == "Done."
        listening.shutdown(socket.SHUT_RDWR)
        serving.join()
    (notice,) = project.notices
    assert notice.startswith("docs is not available: ")
    assert SECRET.encode() in heard[0]
    assert SECRET not in project.brief


# -- who gets which ---------------------------------------------------------------------------------------

NONE = "No MCP server was started, because of .mcp.json: "
TWO = {"docs": {"command": "/no/docs"}, "web": {"command": "/no/web"}}


@pytest.mark.parametrize(
    ("groups", "allowed", "tried"),
    [
        (None, True, {"docs", "web"}),
        (["mcp"], True, {"docs", "web"}),
        (["files", "mcp:web"], True, {"web"}),
        (["files"], True, set()),
        ([], True, set()),
        (None, False, set()),
        (None, ("docs",), {"docs"}),
        (None, (), set()),
        (["mcp"], ("docs", "web", "other"), {"docs", "web"}),
    ],
)
def test_only_servers_of_the_childs_groups_that_the_host_allows_are_started(
    project: Project, groups: list[str] | None, allowed: bool | tuple[str, ...], tried: set[str]
) -> None:
    """The others are not even tried."""
    project.names(**TWO)
    assert project.child("Done.", mcp=allowed, tool_groups=groups).output == "Done."
    assert {notice.split()[0] for notice in project.notices} == tried


@pytest.mark.parametrize(
    ("allowed", "there", "notice"),
    [
        (True, True, "wbe is not available: .mcp.json does not name it, or the host does not allow it."),
        (("docs",), True, "wbe is not available: .mcp.json does not name it, or the host does not allow it."),
        (True, False, f"{NONE}there is no such file in the working directory."),
        (False, True, f"{NONE}the host has switched MCP servers off."),
    ],
)  # fmt: skip
def test_a_server_that_was_asked_for_by_name_and_is_not_there_is_a_line_in_the_brief(
    project: Project, allowed: bool | tuple[str, ...], there: bool, notice: str
) -> None:
    """Unlike a group of other tools it is known only now, so the spawn was accepted."""
    if there:
        project.names(**TWO)
    assert project.child("Done.", mcp=allowed, tool_groups=["mcp:wbe"]).output == "Done."
    assert project.notices == [notice]


def test_a_child_without_the_file_never_loads_the_sdk(tmp_path: Path) -> None:
    """It costs one look at its folder."""
    program = """
import sys
from understudy.actors import ModelRunner, Runtime
from understudy.actors.testing import ScriptedModel
from understudy.protocol import Spawn
with Runtime(runners={"default": ModelRunner(ScriptedModel(["Done."]))}) as runtime:
    assert runtime.session("agent:atlas:main").spawn(Spawn(task="Do it")).result(timeout=60).output == "Done."
print([name for name in sys.modules if name.partition(".")[0] in {"mcp", "mcp_types", "anyio", "httpx2"}])
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_one_name_is_no_list_of_names() -> None:
    """A string is a collection of letters: the mistake is told."""
    with pytest.raises(TypeError, match=r"mcp='docs' is one name: write mcp=\('docs',\)"):
        ModelRunner(ScriptedModel([]), mcp="docs")
