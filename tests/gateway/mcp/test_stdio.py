"""``understudy mcp`` as Claude Code starts it: a process that knows the database's file and its environment."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from _served import MAIN, Served, served
from _spoken import COMMAND, Spoken, over_stdio

from understudy.actors.processes import child_environment
from understudy.gateway.harness import Continuity, claude_code
from understudy.persistence import Store
from understudy.persistence import operations as op
from understudy.protocol import RuntimeConfig, SessionKey
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow  # a Python of its own takes a second or two to start with the SDK

HARNESS_ID = "0f9c1c51-4be0-4d0f-9c7b-5f1f6a0d2f11"
IN_CLAUDE = {"CLAUDE_CODE_SESSION_ID": HARNESS_ID}
HARNESS_KEY = f"claude-code:{HARNESS_ID}"
SECRET = "sk-ant-api03-" + "a1B2c3D4" * 6


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A host in this process, with a session of its own and its server."""
    with served(tmp_path_factory.mktemp("mcp")) as server:
        server.session(MAIN)
        yield server


@pytest.fixture(scope="module")
def claude(server: Served) -> Iterator[Spoken]:
    """A client that Claude Code has started in one of its sessions."""
    with over_stdio(server.database, env=IN_CLAUDE) as spoken:
        yield spoken


def say(server: Served, text: str, key: str = MAIN) -> None:
    """Something is said, and committed."""

    async def commit() -> None:
        await server.runtime.store.transaction(op.AppendTurns(SessionKey(key), 1_000, (Turn("user", text),)))

    server.do(commit())


def hooked(server: Served, event: str, **payload: Any) -> None:
    """What a hook of Claude Code tells the host."""
    continuity = Continuity(server.runtime.store, wall_ms=lambda: 1_000, config=RuntimeConfig())
    sighting = claude_code.read(
        {"hook_event_name": event, "session_id": HARNESS_ID, "cwd": str(server.database.parent), **payload}
    )
    assert sighting is not None
    continuity.observe(sighting)


def test_five_tools_are_offered(claude: Spoken) -> None:
    """Those that read say so."""
    offered = {tool.name: tool.annotations and tool.annotations.read_only_hint for tool in claude.tools()}
    assert offered == {
        "session_search": True,
        "session_transcript": True,
        "sessions_spawn": False,
        "sessions_send": False,
        "subagents": False,
    }


def test_what_was_said_a_moment_ago_is_found(server: Served, claude: Spoken) -> None:
    """In a session that still runs, while another process holds the database: each time what is committed now."""
    for word in ("heliotrope", "periwinkle"):
        assert claude.said("session_search", query=word) == "Nothing was found."
        hooked(server, "UserPromptSubmit", prompt=f"the password of the day is {word}")
        found = claude.said("session_search", query=word)
        assert HARNESS_KEY in found
        assert f"│ the password of the day is {word}" in found
        assert word in claude.said("session_transcript")


def test_a_sub_agent_looks_in_its_parents_session(server: Served) -> None:
    """By its lineage, as the runtime's own do: what was said elsewhere does not get in between."""
    child = server.finished("count the marigolds")["session_key"]
    say(server, "marigolds stand by the gate")
    server.session("agent:atlas:other")
    say(server, "marigolds are elsewhere too", "agent:atlas:other")
    with over_stdio(server.database, env={"UNDERSTUDY_SESSION": child}) as spoken:
        found = spoken.said("session_search", query="marigolds")
        assert MAIN in found
        assert "elsewhere" not in found
        assert "by the gate" in spoken.said("session_transcript")
        assert "elsewhere too" in spoken.said("session_search", query="marigolds", session_key="agent:atlas:other")
        refused = spoken.refused("sessions_spawn", task="one more")
        assert refused == f"session {child} is of a sub-agent that is not at work here: do the work yourself"


def test_a_harness_session_delegates_through_the_server(server: Served, claude: Spoken) -> None:
    """It is opened in the host that serves; its sub-agents are its own, and work where it does."""
    told = claude.said("sessions_spawn", task="count the tulips", label="tulips", wait=True, keep=True)
    assert "[Subagent Result: tulips]\nStatus: Completed" in told
    assert "│ done: count the tulips" in told
    (key,) = re.findall(r'sessions_send\(session_key="(.*)"\)', told)
    record = server.runtime.store.runs.find(session_key=key).items[0]
    assert record.parent_session_key == HARNESS_KEY
    assert record.packet.cwd == str(server.database.parent)
    assert "│ done: and the roses" in claude.said(
        "sessions_send", session_key=key, message="and the roses", wait_seconds=30
    )


def test_a_sub_agent_is_listed_steered_waited_for_and_killed(server: Served, claude: Spoken) -> None:
    """Each by its run id, which the spawn told."""
    (run,) = re.findall(r"Started as run ([a-z0-9-]+)\.", claude.said("sessions_spawn", task="stay", agent="hang"))
    assert re.fullmatch(rf"{run} stay: running, \d+ s, 0 steps, 0 tokens", claude.said("subagents", action="list"))
    assert claude.said("subagents", action="steer", run_ids=[run], message="stay longer") == f"Run {run} has been told."
    assert claude.said("subagents", action="kill", run_ids=[run]) == "1 ended, 0 had ended before."
    assert "Status: Killed" in claude.said("subagents", action="wait", run_ids=[run])
    assert claude.said("subagents", action="list") == "No sub-agent is at work."


def test_a_session_that_is_no_sub_agent_gets_a_message(server: Served, claude: Spoken) -> None:
    """Framed, under its sender's name; it is there for other processes too."""
    server.session("desk")
    claude.said("sessions_send", session_key="desk", message="the tulips are counted")
    note = claude.said("session_transcript", session_key="desk")
    assert f"(Message from session {HARNESS_KEY}]" in note
    assert "│ │ the tulips are counted" in note


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("session_search", {}, "session_search was not run: query: Field required"),
    ("session_search", {"query": ""}, "query: String should have at least 1 character"),
    ("session_search", {"query": "x", "limit": 21}, "limit: Input should be less than or equal to 20"),
    ("session_search", {"query": "x", "agent_id": "borea"}, "agent_id: Extra inputs are not permitted"),
    ("session_transcript", {"session_key": "nobody"}, "there is no session 'nobody' that you may read"),
    ("session_transcript", {"limit": 0}, "limit: Input should be greater than or equal to 1"),
    ("session_transcript", {"before": 2**63}, "before: Input should be less than or equal to"),
    ("sessions_spawn", {"task": ""}, "not started: task: String should have at least 1 character"),
    ("sessions_spawn", {"task": "x", "agent": "gardener"}, "not started (not_allowed): "),
    ("sessions_spawn", {"job": "x"}, "sessions_spawn was not run: "),
    ("sessions_send", {"session_key": "a b", "message": "x"}, "not sent: session key 'a b' is not allowed: use"),
    ("sessions_send", {"session_key": MAIN, "message": "x", "wait_seconds": 51}, "less than or equal to 50"),
    ("subagents", {"action": "wait"}, "not done: 0 runs are not allowed: wait for 1 to 32"),
    ("subagents", {"action": "wait", "run_ids": ["r-1"]}, "not done: run 'r-1' is not one of this session's"),
    ("subagents", {"action": "kill", "run_ids": ["R 1"]}, "run id 'R 1' is not allowed: use"),
    ("subagents", {"action": "kill"}, "kill takes one run id"),
    ("subagents", {"action": "steer", "run_ids": ["r-1"]}, "steer takes a message"),
    ("subagents", {"action": "dance"}, "Input should be 'list', 'wait', 'steer' or 'kill'"),
    (
        "sessions_dance",
        {},
        "there is no tool 'sessions_dance' (did you mean 'sessions_spawn'?): the tools here are session_search,",
    ),
]


@pytest.mark.parametrize(("name", "arguments", "words"), BAD, ids=lambda given: str(given)[:40])
def test_a_bad_call_is_refused_in_a_sentence(claude: Spoken, name: str, arguments: dict[str, Any], words: str) -> None:
    """The value and what is allowed; the server lives on."""
    assert words in claude.refused(name, **arguments)


def test_without_a_database_or_a_server_it_says_so(tmp_path: Path) -> None:
    """And works as soon as there is one: the client need not be started again."""
    database = tmp_path / "agents.db"
    with over_stdio(database, "--session", MAIN) as spoken:
        for name, arguments in (("session_search", {"query": "x"}), ("session_transcript", {})):
            assert "agents.db does not exist: give the path" in spoken.refused(name, **arguments)
        with Store.open(database, wall_ms=lambda: 1) as store:
            opened = op.OpenSession(SessionKey(MAIN), at=1, agent_id="atlas")
            store.transaction(opened, op.AppendTurns(SessionKey(MAIN), 1, (Turn("user", "a lupin"),))).result(
                timeout=10
            )
        assert "│ a lupin" in spoken.said("session_transcript")
        for name, arguments in (
            ("sessions_spawn", {"task": "x"}),
            ("sessions_send", {"session_key": MAIN, "message": "x"}),
            ("subagents", {"action": "list"}),
        ):
            refused = spoken.refused(name, **arguments)
            assert f"nobody serves {database}, and only a running host can do this: start one with" in refused


def test_a_server_that_speaks_no_mcp_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading goes on without it."""
    # As if it were not installed there.
    monkeypatch.setattr("understudy.gateway.http.app.find_spec", lambda _name: None)
    with served(tmp_path) as server, over_stdio(server.database, "--session", MAIN) as spoken:
        refused = spoken.refused("sessions_spawn", task="x")
        assert refused.startswith(f"the server at {server.url} speaks no MCP: run `pip install 'understudy[mcp]'`")
        assert spoken.said("session_search", query="x") == "Nothing was found."


@pytest.mark.parametrize(("file", "words"), [("text.db", "left as it is"), ("empty.db", "is empty: give the path")])
def test_a_file_that_is_no_database_is_a_sentence_too(tmp_path: Path, file: str, words: str) -> None:
    """It is left as it was found."""
    (tmp_path / file).write_text("" if file == "empty.db" else "no database\n" * 100)
    with over_stdio(tmp_path / file) as spoken:
        assert words in spoken.refused("session_search", query="x")


def test_an_agent_sees_its_own_alone(server: Served) -> None:
    """``--agent`` narrows what the owner of the file could see: for reading, and for what the server does."""
    server.session("agent:borea:main", agent_id="borea")
    say(server, "borea keeps bees", "agent:borea:main")
    with over_stdio(server.database, "--agent", "borea", "--session", "agent:borea:main") as spoken:
        assert "borea keeps bees" in spoken.said("session_search", query="bees")
        assert "Status: Completed" in spoken.said("sessions_spawn", task="count bees", wait=True)
    with over_stdio(server.database, "--agent", "cirrus", "--session", "agent:borea:main") as spoken:
        assert spoken.said("session_search", query="bees") == "Nothing was found."
        assert "which session is not known" in spoken.refused("session_transcript")
        assert "that you may read" in spoken.refused("session_transcript", session_key="agent:borea:main")
        assert "that you may act as" in spoken.refused("sessions_spawn", task="count bees")


def test_nothing_but_protocol_goes_to_the_output(tmp_path: Path) -> None:
    """Whatever comes in: what it complains of holds no secret, and closing the input ends it in good order."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}),
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        f"no json {SECRET}",
        json.dumps([SECRET]),
        json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": SECRET}}),
        json.dumps({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"arguments": SECRET}}),
    ]
    with started(tmp_path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(f"{line}\n" for line in lines))
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(3)]
        out, complaints = process.communicate(timeout=60)
    assert {answer["id"] for answer in answers} == {1, 2, 3}
    assert out == ""
    assert SECRET not in complaints
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    """Also while the client keeps the input open; without a word."""
    with started(tmp_path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        process.stdin.write(f"{json.dumps(ping)}\n")
        process.stdin.flush()
        process.stdout.readline()  # it is up
        process.send_signal(number)
        assert process.wait(60) == -number
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_client_that_is_gone_ends_it_quietly(tmp_path: Path) -> None:
    """Nobody reads any more: no traceback for nobody."""
    with started(tmp_path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        process.stdin.write(f"{json.dumps({'jsonrpc': '2.0', 'id': 1, 'method': 'ping'})}\n")
        process.stdin.close()
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def started(folder: Path) -> subprocess.Popen[str]:
    """The bare process."""
    command = [sys.executable, *COMMAND, "--db", str(folder / "agents.db")]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
