"""A running OpenCode is listened to: what its stream told once is replayed by a server that stands for it."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _program import understudy

from understudy.gateway.harness import Continuity, OpenCodeFollower
from understudy.gateway.harness.opencode_stream import FIRST_WAIT, LONGEST_WAIT
from understudy.persistence import MemoryStore
from understudy.protocol import RuntimeConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

STREAM = (Path(__file__).parents[2] / "data" / "opencode" / "subagent.jsonl").read_text().splitlines()
PARENT, CHILD = (json.loads(row)["properties"]["info"] for row in STREAM if '"session.created"' in row)


class Replaying(ThreadingHTTPServer):
    """Tells each listener the next part of a stream, and then breaks off."""

    daemon_threads = True

    def __init__(self, *parts: list[str], sessions: list[Any] | None = None, password: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.parts = list(parts)
        self.sessions = sessions or []
        self.password = password

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Replaying

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        pass

    def do_GET(self) -> None:
        if self.server.password and self.headers["authorization"] != self.server.password:
            self.send_error(401)
            return
        if self.path == "/session":
            body = json.dumps(self.server.sessions)
        else:
            body = "".join(f"data: {row}\n\n" for row in self.server.parts.pop(0)) if self.server.parts else ""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())


@contextmanager
def replaying(*parts: list[str], **more: Any) -> Iterator[Replaying]:
    with Replaying(*parts, **more) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def followed(url: str, tries: int, **more: Any) -> tuple[MemoryStore, list[float]]:
    """What is known after so many connections, and how long it would have waited after each."""
    store = MemoryStore(wall_ms=lambda: 1)
    continuity = Continuity(store, wall_ms=lambda: 1, config=RuntimeConfig())
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == tries

    OpenCodeFollower(url, continuity, wait=wait, **more).run()
    return store, waits


def known(store: MemoryStore) -> dict[str, tuple[Any, ...]]:
    told: dict[str, tuple[Any, ...]] = {}
    for record in store.sessions.find(limit=9).items:
        context = store.sessions.working_context(record.session_key)
        said = [stored.turn.text for stored in store.transcripts.turns(record.session_key)]
        files = () if context is None else context.recent_files
        told[record.session_key] = (record.parent_session_key, record.completed_at is not None, files, said)
    return told


def check(store: MemoryStore) -> None:
    """All that the stream tells, once."""
    parent, child = f"opencode:{PARENT['id']}", f"opencode:{CHILD['id']}"
    files = ("/home/dev/project/hello.txt",)
    told = known(store)
    answers = [told[child][3][-1], told[parent][3][-1]]
    note = f"[Subagent Result: {CHILD['title']}]"
    assert told == {
        parent: (None, False, files, ["The blue heron. [[scene:parent]]", told[parent][3][1], answers[1]]),
        child: (parent, True, files, ["Look: [[scene:child]]", answers[0]]),
    }
    assert answers[0].startswith("child heard <path>/home/dev/project/hello.txt")
    assert answers[1].startswith("parent done: ")
    assert told[parent][3][1].startswith(note)


def test_what_the_real_one_told_is_kept() -> None:
    """A parent, its sub-agent with the file that it read, and what both said; the sub-agent's end when it is idle."""
    with replaying(STREAM) as server:
        store, _ = followed(server.url, 1)
    check(store)


def test_a_stream_that_breaks_is_taken_up_again() -> None:
    """Sessions that began before are asked for, so that a sub-agent is never taken for somebody of its own."""
    begun = [row for row in STREAM if '"session.created"' not in row]
    sessions = [{**CHILD, "time": {"created": 2}}, {**PARENT, "time": {"created": 1}}, "nobody", {"id": 7}]
    with replaying([], begun, sessions=sessions) as server:
        store, _ = followed(server.url, 2)
    check(store)


def test_it_tries_less_and_less_often_until_something_is_heard() -> None:
    """Nobody there, garbage, a refusal: each doubles the wait, up to a longest; a word begins anew."""
    garbage = [
        "",
        "{",
        "[]",
        "null",
        '"x"',
        '{"type": "session.created", "properties": {"info": {"id": ""}}}',
        "[" * 9_999,
    ]
    with replaying(garbage) as server:
        store, waits = followed(server.url, 10)
    assert waits == [min(FIRST_WAIT * 2**n, LONGEST_WAIT) for n in range(10)]
    assert known(store) == {}
    _, waits = followed(server.url, 3)  # it is gone by now
    assert waits == [FIRST_WAIT, FIRST_WAIT * 2, FIRST_WAIT * 4]


def test_a_password_is_shown() -> None:
    """As the user opencode; without it nothing is heard."""
    with replaying(STREAM, password="Basic b3BlbmNvZGU6c2VzYW1l") as server:  # noqa: S106 - opens nothing
        assert known(followed(server.url, 1)[0]) == {}
        check(followed(server.url, 1, password="sesame")[0])  # noqa: S106 - likewise


def test_it_stops_when_it_is_told_to() -> None:
    """Also while it waits for the next word, which may never come."""
    store = MemoryStore(wall_ms=lambda: 1)
    with replaying() as server:
        follower = OpenCodeFollower(server.url, Continuity(store, wall_ms=lambda: 1, config=RuntimeConfig()))
        follower.start()
        follower.stop()
        assert not follower._thread.is_alive()


@pytest.mark.parametrize(
    "url",
    ["http://example.org", "https://127.0.0.1:1", "http://10.0.0.1:1", "127.0.0.1:1", "http://u@127.0.0.1:1",
     "http://127.0.0.1:1/x", "http://127.0.0.1:99999", "http://[::1", ""],
)  # fmt: skip
def test_nobody_but_this_machine_is_asked(url: str, tmp_path: Path) -> None:
    """One sentence, before anything is opened."""
    told = understudy("serve", "--opencode", url, "--db", tmp_path / "a.db")
    assert told.exit_code == 2
    assert (
        told.err == f"understudy: --opencode {url!r} is no address of this machine: write it as http://127.0.0.1:4096\n"
    )
    assert not (tmp_path / "a.db").exists()
