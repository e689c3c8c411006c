"""What happens can be followed from outside, without a server too."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

from _program import run_of, understudy
from _scene import a_host_at_work, elsewhere  # noqa: F401 - fixtures
from _stage import MAIN

from understudy.gateway.cli import following
from understudy.gateway.cli.following import heard, in_words
from understudy.persistence import StoreView
from understudy.protocol import Spawn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from understudy.actors import Runtime


class Meanwhile:
    """Stands for the pause between two looks at the database: something happens in the first one, nothing later."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self.pauses: list[float] = []
        self._happens = happens

    def sleep(self, seconds: float = 0.0) -> None:
        """One pause."""
        self.pauses.append(seconds)
        if len(self.pauses) == 1:
            self._happens()


def test_tail_follows_a_run_to_its_end(host: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line an event, and nothing else on the standard output; it ends when the result is delivered."""
    run_id = run_of(host, "waiter")
    meanwhile = Meanwhile(lambda: host.session(MAIN).kill(run_id, "enough"))
    monkeypatch.setattr(following, "time", meanwhile)
    told = understudy("tail", "--run", run_id, "--interval", "0.25")
    assert told.exit_code == 0
    assert [line.split("  ")[1:] for line in told.out.splitlines()] == [
        [f"{run_id} waiter", "ended as killed after 0.0s, 0 tokens"],
        [f"{run_id} waiter", "delivered"],
    ]
    assert told.err.startswith("following ")
    assert set(meanwhile.pauses) == {0.25}

    again = understudy("tail", "--run", run_id)
    assert (again.exit_code, again.out) == (0, "")
    assert f"run {run_id} is over: see `understudy show {run_id}`" in again.err


def test_tail_as_json_lines_of_one_session(host: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line a document; other sessions' events are left out."""
    run_id = run_of(host, "waiter")

    def happens() -> None:
        other = host.session("agent:atlas:other")
        other.spawn(Spawn(task="elsewhere", runner="answer")).result(timeout=60)
        host.session(MAIN).kill(run_id)

    monkeypatch.setattr(following, "time", Meanwhile(happens))
    told = understudy("tail", "--json", "--session", MAIN, "--run", run_id)
    events = [json.loads(line) for line in told.out.splitlines()]
    assert [event["name"] for event in events] == ["session:sub_agent_lifecycle_ended", "session:sub_agent_delivered"]
    assert {event["session_key"] for event in events} == {MAIN}
    assert events[0]["data"]["end_reason"] == "killed"


def test_a_spawn_and_the_files_it_touches_are_heard(host: Runtime, tmp_path: Path) -> None:
    """From its acceptance to its delivery, in this order."""
    spawn = Spawn(task="read", label="late", runner="worker")
    meanwhile = Meanwhile(lambda: host.session(MAIN).spawn(spawn).result(timeout=60))
    with StoreView.open(tmp_path / "agents.db") as view:
        events = heard(view, None, meanwhile.sleep)
        told = [in_words(event) for event in itertools.islice(events, 6) if event is not None]
        events.close()
    assert told == [
        "spawned: runner worker",
        "started",
        f"read {tmp_path.resolve() / 'notes.txt'}",
        "ended as completed after 0.0s, 1234 tokens",
        "delivered",
    ]
