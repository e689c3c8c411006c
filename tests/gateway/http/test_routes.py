"""The routes: what each answers, and how each refuses."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from _served import MAIN, PATIENCE, Served, served

from understudy.actors import FunctionRunner, Runtime
from understudy.gateway.http import Rules
from understudy.persistence import operations as op
from understudy.protocol import SessionKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import httpx

    from understudy.actors.runners import AsyncFunctionContext
    from understudy.protocol import SpawnPacket

PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("routes")) as server:
        yield server


@pytest.fixture
def client(server: Served) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def detail(answer: httpx.Response, status: int) -> str:
    """What a refusal says, which is a problem with that status."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM), answer.text
    told = answer.json()
    assert told["status"] == status
    return str(told["detail"])


# -- the main road ------------------------------------------------------------------------------------------------


def test_a_sub_agent_is_spawned_read_and_followed_up(server: Served, client: httpx.Client) -> None:
    """The road of one spawn, over HTTP from beginning to end."""
    accepted = server.finished("weigh the anchor", "agent:road:main", cleanup="keep", label="anchor")
    run = client.get(f"/api/runs/{accepted['run_id']}").json()
    assert (run["status"], run["task"], run["kept"]) == ("completed", "weigh the anchor", True)
    assert (run["result"]["output"], run["result"]["end_reason"]) == ("done: weigh the anchor", "completed")

    more = client.post(f"/api/runs/{accepted['run_id']}/follow-up", json={"message": "once more", "wait": 30})
    assert more.status_code == 200
    assert more.json()["session_key"] == accepted["session_key"]
    assert (more.json()["result"]["output"], more.json()["result"]["is_follow_up"]) == ("done: once more", True)

    said = client.get(f"/api/sessions/{accepted['session_key']}/transcript").json()["items"]
    assert [turn["text"] for turn in said if turn["role"] == "user"] == ["weigh the anchor", "once more"]
    hits = client.post("/api/sessions/search", json={"query": "anchor", "session_key": "agent:road:main"}).json()
    assert "done: weigh the anchor" in hits["items"][0]["excerpt"]


def test_a_follow_up_that_is_not_waited_for_is_accepted(server: Served, client: httpx.Client) -> None:
    """202 and the new run, whose result comes on the usual way."""
    accepted = server.finished(cleanup="keep")
    answer = client.post(f"/api/runs/{accepted['run_id']}/follow-up", json={"message": "go on"})
    assert (answer.status_code, answer.json()["result"]) == (202, None)
    assert answer.json()["run_id"] != accepted["run_id"]


def test_a_kill_ends_a_run_and_says_so(server: Served, client: httpx.Client) -> None:
    """True counts; a second kill finds that it had ended."""
    run_id = server.spawned(agent="hang")["run_id"]
    answer = client.post(f"/api/runs/{run_id}/kill", json={"reason": "enough"})
    assert answer.json() == {"killed": [run_id], "already_ended": []}
    run = client.get(f"/api/runs/{run_id}").json()
    assert (run["end_reason"], run["failure"]["message"]) == ("killed", "enough")
    assert client.post(f"/api/runs/{run_id}/kill").json() == {"killed": [], "already_ended": [run_id]}


def test_the_same_idempotency_key_is_the_same_run(server: Served) -> None:
    """And says that it is one."""
    first = server.finished(idempotency_key="once")
    again = server.spawned(idempotency_key="once")
    assert (again["run_id"], again["duplicate"]) == (first["run_id"], True)


def test_both_spellings_of_a_spawn_are_understood(server: Served) -> None:
    """The documents' camelCase too."""
    first = server.finished("either way", idempotencyKey="spelt", timeoutMs=5_000)
    assert server.spawned("either way", idempotency_key="spelt", timeout_ms=5_000)["run_id"] == first["run_id"]


def test_an_environment_is_not_shown(server: Served, client: httpx.Client) -> None:
    """What a child was given to itself stays there."""
    run_id = server.finished(env={"GREETING": "swordfish"})["run_id"]
    for path in (f"/api/runs/{run_id}", "/api/runs"):
        assert "swordfish" not in client.get(path).text


@pytest.mark.parametrize("what", ["sessions", "runs", "transcript", "dead-letters"])
def test_pages_of_one_add_up_to_everything(server: Served, client: httpx.Client, what: str) -> None:
    """In the same order, each once."""
    for number in range(3):
        server.finished(f"page {number}", "agent:pages:main")
        server.do(_letter(server, f"letter {number}"))
    path = {"transcript": "/api/sessions/agent:pages:main/transcript"}.get(what, f"/api/{what}")
    whole = client.get(path, params={"limit": 1000}).json()
    found: list[Any] = []
    cursor: str | None = None
    while len(found) < 1000:
        page = client.get(path, params={"limit": 1, **({} if cursor is None else {"cursor": cursor})}).json()
        found += page["items"]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert found == whole["items"]
    assert len(found) >= 3


def test_runs_are_found_by_session_runner_status_and_time(server: Served, client: httpx.Client) -> None:
    """Alone and together."""
    run_id = server.finished("find me", "agent:found:main")["run_id"]
    run = client.get(f"/api/runs/{run_id}").json()
    asked = {"session_key": "agent:found:main", "runner": "default", "status": "completed", "since": run["accepted_at"]}
    for more in ({}, {"session_key": "agent:none:main"}, {"runner": "x"}, {"status": "failed"}, {"since": 2**60}):
        found = client.get("/api/runs", params={**asked, **more}).json()["items"]
        assert [one["run_id"] for one in found] == ([run_id] if not more else [])


async def _letter(server: Served, reason: str, session_key: str | None = None) -> int:
    """A dead letter of which only a description is kept, unless it was for a session."""
    key = None if session_key is None else SessionKey(session_key)
    (number,) = await server.runtime.store.transaction(op.DeadLetter(1, reason, "to nobody", key))
    assert isinstance(number, int)
    return number


def test_a_dead_letter_that_cannot_be_sent_again_says_why(server: Served, client: httpx.Client) -> None:
    """Of a message to an actor only a description is kept."""
    number = server.do(_letter(server, "nobody was there"))
    listed = client.get("/api/dead-letters").json()["items"]
    assert listed[0]["reason"] == "nobody was there"
    assert "only a description is kept" in detail(client.post(f"/api/dead-letters/{number}/replay"), 409)


def test_health_needs_a_token_and_reads_the_store(client: httpx.Client) -> None:
    """Nothing else is told: a bound token sees it too."""
    assert client.get("/api/health").json()["status"] == "ok"


# -- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "spawn", "status", "reason"),
    [
        ({"max_spawn_depth": 1}, {}, 409, "depth_exceeded"),
        ({"allow_agents": ["default"]}, {"agent": "hang"}, 403, "not_allowed"),
        ({"max_children_per_agent": 1}, {}, 429, "children_exceeded"),
        ({}, {"idempotency_key": "first", "label": "another"}, 409, "duplicate_conflict"),
        ({"tree_token_budget": 1}, {}, 429, "budget_exceeded"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refused_spawn_has_its_reason_and_its_limit(
    tmp_path: Path, config: Mapping[str, Any], spawn: Mapping[str, Any], status: int, reason: str
) -> None:
    """As a problem whose status says whether asking again can help."""

    async def spend(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        context.usage(input_tokens=5)
        return "spent"

    with served(tmp_path, config=config, runners={"spend": spend}) as server, server.client() as client:
        server.session()
        path = f"/api/sessions/{MAIN}/spawn"
        if reason == "children_exceeded":
            server.spawned(agent="hang")
        if reason == "duplicate_conflict":
            server.finished(idempotency_key="first")
        if reason == "budget_exceeded":
            server.finished(agent="spend")
        answer = client.post(path, json={"task": "too much", **spawn})
        assert detail(answer, status)
        assert answer.json()["reason"] == reason
        if reason == "children_exceeded":
            assert (answer.json()["current"], answer.json()["limit"]) == (1, 1)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "/api/runs?limit=0", None, 422, "limit = '0' is not allowed: Input should be greater than or equal to"),
        ("GET", "/api/runs?cursor=abc", None, 422, "cursor = 'abc' is not allowed: String should match"),
        ("GET", "/api/runs?status=odd", None, 422, "status = 'odd' is not allowed: Input should be 'pending', 'run"),
        ("GET", "/api/runs?since=99999999999999999999", None, 422, "since = '99999999999999999999' is not allowed"),
        (
            "GET",
            "/api/runs?sesion_key=x",
            None,
            422,
            "'sesion_key' is not allowed (did you mean 'session_key'?)",
        ),
        ("GET", "/api/runs/none?limit=1", None, 422, "query parameter 'limit' is not allowed: this route has none"),
        ("GET", "/api/runs/UPPER", None, 422, "run id 'UPPER' is not allowed: use 1 to 80 lower-case letters"),
        ("GET", "/api/sessions/%2e%2e%5c/transcript", None, 422, "session key '..\\\\' is not allowed: use 1 to 200"),
        ("POST", f"/api/sessions/{MAIN}/spawn", {}, 422, "task: Field required"),
        ("POST", f"/api/sessions/{MAIN}/spawn", {"task": "x", "tsk": 1}, 422, "tsk: Extra inputs are not permitted"),
        ("POST", f"/api/sessions/{MAIN}/spawn", "{", 400, "the body is no JSON: send one JSON object"),
        ("POST", f"/api/sessions/{MAIN}/spawn", "[" * 100_000, 400, ""),
        ("POST", f"/api/sessions/{MAIN}/spawn", None, 422, "the body is no JSON object: send one, with the header"),
        ("POST", "/api/sessions/search", {"query": "x", "limit": 21}, 422, "limit: Input should be less than or equal"),
        ("POST", "/api/runs/none/follow-up", {"message": "x", "wait": 51}, 422, "wait: Input should be less than or"),
        ("POST", "/api/runs/none/follow-up", '{"message": "x", "wait": NaN}', 422, "wait: Input should be a finite"),
        ("POST", "/api/dead-letters/0/replay", None, 422, "number = '0' is not allowed"),
        ("PUT", "/api/runs", None, 405, "PUT is not for this route: use GET"),
        ("GET", "/api/runs/none", None, 404, "there is nothing of that name for this token"),
        ("GET", "/api/nowhere", None, 404, "there is nothing of that name for this token"),
        ("POST", "/api/hooks/claude-code/Stop", {}, 404, "there is nothing of that name for this token"),
    ],
)
def test_bad_input_is_told_in_one_sentence(
    server: Served, client: httpx.Client, method: str, path: str, body: object, status: int, words: str
) -> None:
    """With the value, where it can be no secret, and what is allowed."""
    server.session()
    given: dict[str, Any] = {} if body is None else {"json": body}
    if isinstance(body, str):
        given = {"content": body, "headers": {"content-type": "application/json"}}
    assert words in detail(client.request(method, path, **given), status)


def test_what_a_body_holds_is_not_repeated(server: Served, client: httpx.Client) -> None:
    """It may be a secret; errors go to logs."""
    server.session()
    body = {"task": {"swordfish": 1}, "env": {"KEY": ["swordfish"]}}
    answer = client.post(f"/api/sessions/{MAIN}/spawn", json=body)
    assert "swordfish" not in detail(answer, 422)


def test_a_sub_agents_session_is_not_spawned_from_outside(server: Served, client: httpx.Client) -> None:
    """It would have no depth there; who wants more of it follows it up."""
    key = server.finished()["session_key"]
    assert f"spawn from {MAIN}" in detail(client.post(f"/api/sessions/{key}/spawn", json={"task": "more"}), 409)


def test_a_child_that_was_not_kept_cannot_be_followed_up(server: Served, client: httpx.Client) -> None:
    """The runtime's own words."""
    run_id = server.finished()["run_id"]
    assert "was not kept" in detail(client.post(f"/api/runs/{run_id}/follow-up", json={"message": "more"}), 409)


def test_a_session_that_another_host_holds_is_told(server: Served, client: httpx.Client) -> None:
    """With the holder's name, as a conflict."""
    with Runtime(server.database, runners={"default": FunctionRunner(lambda packet, context: "x")}) as other:
        other.session("agent:elsewhere:main")
        answer = client.post("/api/sessions/agent:elsewhere:main/spawn", json={"task": "mine"})
        assert "is held by host" in detail(answer, 409)


# -- limits -------------------------------------------------------------------------------------------------------


def test_a_body_is_measured_as_it_comes(server: Served, client: httpx.Client) -> None:
    """A length that is claimed is believed, one that is not claimed makes no difference."""
    server.session()
    path, kind = f"/api/sessions/{MAIN}/spawn", {"content-type": "application/json"}
    most = Rules(frozenset()).most_bytes
    fits = b'{"task": "' + b"x" * (most - 12) + b'"}'
    assert client.post(path, content=fits, headers=kind).status_code == 202
    words = f"the body is larger than the {most} bytes allowed"
    assert words in detail(client.post(path, content=fits + b" ", headers=kind), 413)
    pieces = (fits[start : start + 65_536] for start in range(0, len(fits), 65_536))

    def unclaimed() -> Iterator[bytes]:
        yield from pieces
        yield b" " * 100

    assert words in detail(client.post(path, content=unclaimed(), headers=kind), 413)


class _Hooks:
    """A harness side that shows what it was given, or fails as it is told."""

    def __init__(self) -> None:
        self.given: list[tuple[str, str, dict[str, Any], str | None]] = []

    async def __call__(
        self, harness: str, event: str, payload: Mapping[str, Any], *, agent_id: str | None
    ) -> Mapping[str, Any]:
        self.given.append((harness, event, dict(payload), agent_id))
        if event == "Unknown":
            raise KeyError(event)
        if event == "Wrong":
            raise ValueError("session_id is missing: send it")
        if event == "Broken":
            raise RuntimeError("swordfish")
        if event == "Slow":
            await asyncio.get_running_loop().create_future()
        return {"additionalContext": "remember"}


def test_hooks_are_handed_to_who_understands_them(tmp_path: Path) -> None:
    """With the token's agent; what it raises is an answer."""
    hooks = _Hooks()
    with (
        served(tmp_path, hooks=hooks) as server,
        server.client() as client,
        server.bound("atlas") as atlas,
    ):
        path = "/api/hooks/claude-code"
        for somebody in (client, atlas):
            answer = somebody.post(f"{path}/SubagentStart", json={"session_id": "s"})
            assert answer.json() == {"additionalContext": "remember"}
        given = "claude-code", "SubagentStart", {"session_id": "s"}
        assert hooks.given == [(*given, None), (*given, "atlas")]
        detail(client.post(f"{path}/Unknown", json={}), 404)
        assert detail(client.post(f"{path}/Wrong", json={}), 422) == "session_id is missing: send it"
        assert detail(client.post(f"{path}/Broken", json={}), 500) == "the server failed with RuntimeError: see its log"


def test_a_request_that_takes_too_long_is_answered(tmp_path: Path) -> None:
    """With what to do before asking again."""
    with served(tmp_path, hooks=_Hooks(), patience=0.1) as server, server.client() as client:
        answer = client.post("/api/hooks/claude-code/Slow", json={})
        assert "not done within 0.1 s; what was begun goes on: ask for it" in detail(answer, 503)


def test_a_body_that_never_comes_is_not_waited_for(tmp_path: Path) -> None:
    """Its time is the request's."""
    with served(tmp_path, patience=0.1) as server:
        place = urlsplit(server.url)
        head = (
            f"POST /api/sessions/search HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {server.token}\r\n"
            'Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"query": '
        )
        with socket.create_connection((place.hostname, place.port), timeout=PATIENCE) as connection:
            connection.sendall(head.encode())
            assert connection.recv(12) == b"HTTP/1.1 503"
