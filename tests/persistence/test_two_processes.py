"""Two processes on one file: each sees the other's commits at once, and both may write."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from understudy.persistence import Store
from understudy.persistence.operations import HostStarted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Given

pytestmark = pytest.mark.slow  # each test starts a process

PROGRAM = Path(__file__).with_name("second_host.py")


class Other:
    """The second process."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def __call__(self, command: str) -> Any:
        self.tell(command)
        return self.answer()

    def close(self) -> None:
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(30) == 0


@pytest.fixture
def mine(path: Path, given: Given) -> Iterator[Store]:
    """This process's store; the file is whole in the end."""
    with Store.open(path, wall_ms=lambda: 0, busy_timeout_ms=60_000) as store:
        store.transaction(given.opened()).result(60)
        yield store
        assert store.problems() == []


@pytest.fixture
def other(mine: Store) -> Iterator[Other]:
    """The other process, on the same file, up and ready."""
    process = Other(mine.path)
    assert process("sees 1") is False
    yield process
    process.close()


@pytest.fixture
def doing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """What the second process does, for the first to do as well."""
    monkeypatch.syspath_prepend(PROGRAM.parent)
    return runpy.run_path(str(PROGRAM)).__getitem__


def test_a_reader_sees_the_others_commit_at_once(mine: Store, other: Other, given: Given) -> None:
    """As soon as it is acknowledged, in both directions, again and again on connections that stay open."""
    for number in range(1, 11):
        assert (mine.runs.get(given.run_id(number)), other(f"sees {number + 100}")) == (None, False)
        other(f"accept {number}")
        assert mine.runs.get(given.run_id(number)) is not None
        mine.transaction(*given.accept(number + 100)).result(60)
        assert other(f"sees {number + 100}") is True


def test_two_writers_lose_nothing(mine: Store, other: Other, given: Given, doing: Callable[[str], Any]) -> None:
    """Both take runs from accept to merge at full speed: every run is there, told to the parent once."""
    other.tell("live 1 100")
    doing("live")(mine, given, 101, 200)
    assert other.answer() == 100
    assert [run.facts.delivered_at is not None for run in mine.runs.children(given.parent)] == [True] * 200
    told = [int(row.turn.text.split()[1]) for row in mine.transcripts.turns(given.parent)]
    assert sorted(told) == list(range(1, 201))
    assert mine.outbox.backlog(given.parent) == 0


def test_of_two_that_want_to_be_first_one_is(
    mine: Store, other: Other, given: Given, doing: Callable[[str], Any]
) -> None:
    """A key accepted, a run started, ended and merged, a session held: by one process, never by both."""
    for name in ("a", "b"):
        mine.transaction(HostStarted(name, pid=1, process_started=1, at=1)).result(60)
    everything = list(range(1, 31))
    mine.transaction(*(op for number in everything for op in given.accept(number))).result(60)
    other.tell("race 30")
    ours = doing("race")(mine, given, "a", 30)
    theirs = other.answer()
    assert {what: sorted(won + theirs[what]) for what, won in ours.items()} == dict.fromkeys(ours, everything)
    assert len(mine.transcripts.turns(given.parent)) == 30
