"""The event stream: taken up again without a gap or a duplicate, and never at the cost of others."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from _served import MAIN, PATIENCE, Listener, Served, served
from hypothesis import given
from hypothesis import strategies as st

from understudy.gateway.http.ring import Ring, Wanted
from understudy.protocol import Event, SessionKey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from understudy.actors.runners import AsyncFunctionContext
    from understudy.protocol import SpawnPacket

DELIVERED = "session:sub_agent_delivered"
ENDED = "session:sub_agent_lifecycle_ended"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("events"), runners={"talk": talk}) as server:
        yield server


async def talk(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    context.progress("password: hunter22 " + "word " * 2_000)
    return "said"


def number(event_id: str) -> int:
    return int(event_id.rpartition("-")[2])


def test_a_run_is_heard_from_spawn_to_delivery(server: Served) -> None:
    """In order, each event with what it is about."""
    key = "agent:heard:main"
    with Listener(server, session_key=key) as listener:
        run_id = server.spawned(key=key)["run_id"]
        events = listener.until(DELIVERED)
    assert [name.removeprefix("session:sub_agent_") for name, _ in events] == [
        *("spawned", "started", "completed", "lifecycle_ended", "delivered"),
    ]
    assert {data["run_id"] for _, data in events} == {run_id}
    assert events[3][1]["data"]["end_reason"] == "completed"
    assert {(data["session_key"], data["depth"]) for _, data in events} == {(key, 1)}


def test_a_broken_stream_is_taken_up_without_a_gap_or_a_duplicate(server: Served) -> None:
    """Wherever it broke: before the first event, in the middle, and while nobody listened."""
    with Listener(server) as listener:
        last = listener.seen
    seen: list[str] = []
    for task in range(4):
        server.finished(f"task {task}")
        with Listener(server, last) as listener:
            for _ in range(3):
                listener.next()
                seen.append(listener.seen)
            last = listener.seen
    with Listener(server, last) as listener:
        while len(seen) < 20:
            listener.next()
            seen.append(listener.seen)
    assert [number(one) for one in seen] == list(range(number(seen[0]), number(seen[0]) + 20))


@pytest.mark.parametrize("unknown", ["abc-7", "7", "", "-", "abc-", "abc-99999999999999999999", "{epoch}-999999"])
def test_an_id_that_is_not_ours_is_a_gap_of_unknown_size(server: Served, unknown: str) -> None:
    """As after a restart of the server; then everything that is still there."""
    epoch = server.cursor().rpartition("-")[0]
    server.finished()
    with Listener(server, unknown.format(epoch=epoch)) as listener:
        if unknown:
            assert (listener.last["event"], listener.last["data"]) == ("gap", '{"missed": null}')
            assert listener.next()[0] == "session:sub_agent_spawned"
            assert number(listener.seen) == 1
        else:
            assert listener.comments == ["welcome"]  # no id at all: from now on


def test_a_listener_hears_what_it_asked_for(server: Served) -> None:
    """By name, run and session."""
    before = server.cursor()
    first = server.finished(key="agent:first:main")["run_id"]
    server.finished(key="agent:second:main")
    last = server.finished(key="agent:first:main")["run_id"]
    for query, runs in (
        ({"name": [ENDED], "session_key": "agent:first:main"}, [first, last]),
        ({"name": [ENDED, "session:sub_agent_turn"], "run_id": first}, [first]),
    ):
        with Listener(server, before, **query) as listener:
            assert [listener.next()[1]["run_id"] for _ in runs] == runs


def test_an_event_that_there_is_not_is_refused(server: Served) -> None:
    """With those that there are."""
    with server.client() as client:
        answer = client.get("/api/events", params={"name": "odd"})
    assert answer.status_code == 422
    assert "'session:sub_agent_spawned'" in answer.json()["detail"]


def test_what_a_child_says_of_its_progress_is_cut_and_holds_no_secret(server: Served) -> None:
    """It is the one text here that a child words itself."""
    with Listener(server, name=["session:sub_agent_progress"]) as listener:
        server.spawned(agent="talk")
        text = listener.next()[1]["data"]["text"]
    assert text.startswith("password: [redacted]")
    assert len(text) == 4_000


def test_silence_is_broken_by_heartbeats_that_tell_the_place(tmp_path: Path) -> None:
    """A listener who hears nothing for long can still be taken up."""
    with served(tmp_path, feed={"heartbeat": 0.02}) as server:
        with Listener(server, run_id="none") as listener:
            run_id = server.finished()["run_id"]
            while number(listener.seen) < 5:
                listener._block()
            assert "heartbeat" in listener.comments
            last = listener.seen
        server.finished()
        with Listener(server, last) as listener:
            assert listener.next()[1]["run_id"] != run_id
            assert number(listener.seen) == 6


def test_events_that_nobody_hears_of_are_not_even_made(tmp_path: Path) -> None:
    """Before the first listener, and a while after the last; who comes back then is told of a gap."""
    with served(tmp_path, feed={"heartbeat": 0.01, "linger": 0.02}) as server:
        bus = server.runtime._backstage.bus
        assert bus.subscriptions == ()
        with Listener(server) as listener:
            assert len(bus.subscriptions) == 1
            before = listener.seen
        while bus.subscriptions:
            server.finished()
        with Listener(server, before) as listener:
            assert (listener.last["event"], listener.last["data"]) == ("gap", '{"missed": null}')
            run_id = server.spawned()["run_id"]
            assert listener.next()[1]["run_id"] == run_id
            assert number(listener.seen) == 1


def test_who_stays_away_too_long_is_told_how_much_is_lost(tmp_path: Path) -> None:
    """And goes on with the oldest that is still there."""
    with served(tmp_path, feed={"replay": 7}) as server:
        before = server.cursor()
        for _ in range(4):
            server.finished()  # five events each
        while number(server.cursor()) < 20:
            pass
        with Listener(server, before) as listener:
            gap, lost = listener.next(), number(listener.seen)
            assert gap == ("gap", {"missed": lost})
            listener.next()
            assert number(listener.seen) == lost + 1
        assert 20 <= lost + 7 <= number(server.cursor())  # results that are archived by now add theirs


@pytest.mark.slow
def test_a_stalled_listener_loses_its_own_backlog_and_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads nothing while more happens than any socket buffers, eight megabytes; a reader beside it hears all."""
    monkeypatch.setattr("understudy.gateway.http.feed._PAUSE_SECONDS", 0.001)
    monkeypatch.setattr("understudy.gateway.http.turns.SHARE", 0)
    told = Event("session:sub_agent_progress", 1, SessionKey(MAIN), data={"text": "word " * 800})

    with served(tmp_path, feed={"replay": 200}) as server:
        bus = server.runtime._backstage.bus

        async def happen(times: int) -> None:
            for _ in range(times):
                bus.emit(told)

        place = urlsplit(server.url)
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            stalled.settimeout(PATIENCE)
            stalled.connect((place.hostname, place.port))
            head = f"GET /api/events HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {server.token}\r\n\r\n"
            stalled.sendall(head.encode())
            assert stalled.recv(12) == b"HTTP/1.1 200"
            heard: list[int] = []
            with Listener(server) as reader:
                for _ in range(20):
                    server.do(happen(100))
                    for _ in range(100):
                        assert reader.next()[0] == told.name
                        heard.append(number(reader.seen))
            assert heard == list(range(1, 2_001))
            said = b""
            while b"event: gap" not in said:
                piece = stalled.recv(1_048_576)
                assert piece, "the stream ended"
                said = said[-20:] + piece


@given(st.lists(st.one_of(st.integers(1, 30), st.just(0)), max_size=40), st.integers(1, 12))
def test_every_number_is_read_once_or_counted_as_missed(steps: list[int], size: int) -> None:
    """However adding and reading alternate: what a reader hears, and what its gaps count, add up to everything."""

    async def play() -> None:
        ring, place, missed = Ring("e", size), 1, 0
        heard: list[int] = []

        def read() -> None:
            nonlocal place, missed
            chunk, place = ring.chunk(place, Wanted())
            for block in chunk.decode().split("\n\n")[:-1]:
                lines = dict(line.split(": ", 1) for line in block.split("\n"))
                if lines["event"] == "gap":
                    missed += int(lines["data"].removeprefix('{"missed": ').removesuffix("}"))
                    assert number(lines["id"]) == len(heard) + missed
                else:
                    heard.append(number(lines["id"]))
                    assert heard[-1] == len(heard) + missed

        for step in steps:
            for _ in range(step):
                ring.add(Event("session:sub_agent_turn", 1, SessionKey("agent:a:main")))
            if not step:
                read()
        while place < ring.next:
            read()
        assert len(heard) + missed == sum(steps) == ring.next - 1
        assert heard == sorted(set(heard))

    asyncio.run(play())


def test_half_a_character_is_told_as_it_is() -> None:
    """What no UTF-8 can say goes out escaped, as JSON has it; anything else as it is written."""
    ring = Ring("e", 3)
    for text in ("\ud83d", "größer"):
        ring.add(Event("session:sub_agent_progress", 1, SessionKey(MAIN), data={"text": text}))
        line = ring.chunk(ring.next - 1, Wanted())[0]
        assert json.loads(line.partition(b"data: ")[2])["data"] == {"text": text}


def test_a_stop_ends_the_streams(tmp_path: Path) -> None:
    """With a proper end, so that a listener knows that nothing broke."""
    with served(tmp_path) as server:
        listener = Listener(server)
        listener.__enter__()
        server.finished()
        listener.until(DELIVERED)
    with pytest.raises(EOFError):
        listener.next()
    listener.__exit__(None, None, None)


def test_no_more_listeners_than_allowed(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is told to come later."""
    with Listener(server), server.client() as client:
        monkeypatch.setattr("understudy.gateway.http.sse.MOST_LISTENERS", 1)
        answer = client.get("/api/events")
    assert answer.status_code == 429
    assert answer.json()["detail"].endswith("listen already: 1 may")


def test_a_listener_who_left_is_forgotten(server: Served) -> None:
    """Its connection was all there was of it."""
    with Listener(server):
        assert server.feed.listeners >= 1
    with Listener(server) as listener:
        while server.feed.listeners > 1:
            server.finished()
            listener.until(DELIVERED)
