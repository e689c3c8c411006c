"""Two agents' tokens: nothing crosses. What is another's and what is not there answer in the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from _extent import so_far
from _served import Listener, Served, served
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.persistence import operations as op
from understudy.protocol import SessionKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

AGENTS = ["atlas", "borea"]
DELIVERED = "session:sub_agent_delivered"


class World:
    """A server with things of two agents, everything of which carries its agent's name."""

    def __init__(self, server: Served) -> None:
        self.server = server
        self.before = server.cursor()
        self.clients = {agent: server.bound(agent) for agent in AGENTS}
        self.sessions: dict[str, list[str]] = {agent: [] for agent in AGENTS}
        self.runs: dict[str, list[str]] = {agent: [] for agent in AGENTS}
        self.letters: dict[str, list[int]] = {agent: [] for agent in AGENTS}
        self.starts: dict[str, str] = {}
        for agent, client in self.clients.items():
            with Listener(server, client=server.client(client.headers["authorization"].split()[1])) as listener:
                self.starts[agent] = listener.seen
        for agent in AGENTS * 2:
            self.grow(agent)

    def grow(self, agent: str) -> None:
        """One more session with a run, its transcript, its result and a dead letter."""
        key = f"agent:{agent}:s{len(self.sessions[agent])}"
        self.server.session(key, agent_id=agent)
        accepted = self.server.finished(f"secret of {agent}", key, cleanup="keep")
        self.sessions[agent] += [key, accepted["session_key"]]
        self.runs[agent].append(accepted["run_id"])
        self.letters[agent].append(self.server.do(self._letter(agent, key)))

    async def _letter(self, agent: str, key: str) -> int:
        letter = op.DeadLetter(1, f"secret of {agent}", "[]", SessionKey(key))
        (number,) = await self.server.runtime.store.transaction(letter)
        assert isinstance(number, int)
        return number


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with served(tmp_path_factory.mktemp("scope")) as server:
        world = World(server)
        yield world
        for client in world.clients.values():
            client.close()


def asked(client: httpx.Client, method: str, path: str, body: Any) -> tuple[int, bytes]:
    answer = client.request(method, path, **({} if body is None else {"json": body}))
    return answer.status_code, answer.content


@settings(max_examples=so_far(30, 1_000), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_anothers_and_nobodys_answer_alike(world: World, data: st.DataObject) -> None:
    """Every route that names something, with anything of the other agent's, beside a name that nobody has."""
    mine = data.draw(st.sampled_from(AGENTS))
    other = AGENTS[1 - AGENTS.index(mine)]
    key = data.draw(st.sampled_from(world.sessions[other]))
    run = data.draw(st.sampled_from(world.runs[other]))
    letter = data.draw(st.sampled_from(world.letters[other]))
    create = data.draw(st.sampled_from(["", "?create=true", "?create=false"]))
    method, path, name, body = data.draw(
        st.sampled_from(
            [
                ("GET", "/api/sessions/{}/transcript", key, None),
                ("GET", "/api/sessions/{}/transcript?limit=1&cursor=1", key, None),
                ("POST", f"/api/sessions/{{}}/spawn{create}", key, {"task": "mine now"}),
                ("POST", "/api/sessions/search", key, {"query": "secret", "session_key": "{}"}),
                ("POST", "/api/sessions/search", "agent", {"query": "secret", "agent_id": "{}"}),
                ("GET", "/api/sessions?agent_id={}", "agent", None),
                ("GET", "/api/runs/{}", run, None),
                ("POST", "/api/runs/{}/kill", run, {"reason": "mine now"}),
                ("POST", "/api/runs/{}/follow-up", run, {"message": "mine now"}),
                ("GET", "/api/runs?session_key={}", key, None),
                ("GET", "/api/dead-letters?session_key={}", key, None),
                ("POST", "/api/dead-letters/{}/replay", letter, None),
            ]
        )
    )
    theirs = other if name == "agent" else name
    nobodys = 999_999 if isinstance(name, int) else "nobody-at-all"
    client = world.clients[mine]
    answers = [
        asked(client, method, path.format(it), body and {k: str(v).format(it) for k, v in body.items()})
        for it in (theirs, nobodys)
    ]
    assert answers[0] == answers[1]
    assert f"secret of {other}".encode() not in answers[0][1]


@pytest.mark.parametrize("mine", AGENTS)
@pytest.mark.parametrize("path", ["/api/sessions", "/api/runs", "/api/dead-letters", "/api/dead-letters?replayed=true"])
def test_a_list_has_all_of_ones_own_and_nothing_else(world: World, mine: str, path: str) -> None:
    """Page by page too: the other's rows do not thin the pages."""
    known = {"/api/sessions": world.sessions, "/api/runs": world.runs}.get(path, world.letters)[mine]
    name = {"/api/sessions": "session_key", "/api/runs": "run_id"}.get(path, "id")
    found: list[Any] = []
    cursor = ""
    for _ in known:
        page = world.clients[mine].get(path, params={"limit": 1, **({"cursor": cursor} if cursor else {})}).json()
        assert len(page["items"]) == 1
        found += page["items"]
        cursor = page["cursor"] or ""
    assert {one[name] for one in found} == set(known)
    assert cursor == ""
    with world.server.client() as everybody:
        assert len(everybody.get(path).json()["items"]) >= 2 * len(known)


@pytest.mark.parametrize("mine", AGENTS)
def test_a_search_finds_ones_own_words_only(world: World, mine: str) -> None:
    """Where both said the same, and where the query names what is the other's."""
    hits = world.clients[mine].post("/api/sessions/search", json={"query": "secret", "limit": 20}).json()["items"]
    assert {hit["session_key"] for hit in hits} == set(world.sessions[mine])
    other = AGENTS[1 - AGENTS.index(mine)]
    for query in (other, *world.sessions[other], *world.runs[other]):
        hits = world.clients[mine].post("/api/sessions/search", json={"query": query, "limit": 20}).json()["items"]
        assert {hit["session_key"] for hit in hits} <= set(world.sessions[mine])


@pytest.mark.parametrize("mine", AGENTS)
def test_a_stream_tells_of_ones_own_runs_and_counts_no_others(world: World, mine: str) -> None:
    """Not even the numbers of its events say how much others do."""
    token = world.clients[mine].headers["authorization"].split()[1]
    other = AGENTS[1 - AGENTS.index(mine)]
    world.grow(other)
    world.grow(mine)
    with Listener(world.server, world.starts[mine], client=world.server.client(token)) as listener:
        heard: list[tuple[str, dict[str, Any]]] = []
        while len([name for name, _ in heard if name == DELIVERED]) < len(world.runs[mine]):
            heard.append(listener.next())
        last = int(listener.seen.rpartition("-")[2])
    assert {data["run_id"] for _, data in heard} == set(world.runs[mine])
    assert last - int(world.starts[mine].rpartition("-")[2]) == len(heard)


def test_an_agents_token_makes_no_sessions(world: World) -> None:
    """Whether a key is free would tell what others have."""
    answer = world.clients["atlas"].post("/api/sessions/agent:new:main/spawn?create=true", json={"task": "x"})
    assert answer.status_code == 404
    assert world.server.runtime.store.sessions.get("agent:new:main") is None


def test_ones_own_can_be_acted_on(world: World) -> None:
    """The same token that sees nothing else spawns, follows up and kills where it is at home."""
    client, key = world.clients["atlas"], world.sessions["atlas"][0]
    accepted = client.post(f"/api/sessions/{key}/spawn", json={"task": "more", "agent": "hang"})
    assert accepted.status_code == 202
    run_id = accepted.json()["run_id"]
    assert client.post(f"/api/runs/{run_id}/kill").json()["killed"] == [run_id]
    run = world.runs["atlas"][0]
    world.runs["atlas"].append(run_id)
    world.sessions["atlas"].append(accepted.json()["session_key"])
    more = client.post(f"/api/runs/{run}/follow-up", json={"message": "go on", "wait": 30})
    assert more.json()["result"]["output"] == "done: go on"
    world.runs["atlas"].append(more.json()["run_id"])
