"""Histories of a seed's choice: the same seed is the same history, all promises hold, and a broken one is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _simulation import simulate
from _verdict import BrokenError

from understudy.actors import recovery
from understudy.actors.live_run import LiveRun
from understudy.actors.roster import Roster
from understudy.actors.session import SessionActor

if TYPE_CHECKING:
    from collections.abc import Callable

    from understudy.actors.endings import Ending
    from understudy.persistence.operations import MergeResult
    from understudy.protocol import SubAgentResult

HERE = Path(__file__).parent
SEEDS = range(1, 31)
"""As many as the suite has time for; ./scripts/faults plays ten thousand."""


def play(seed: int) -> str:
    """The digest of a history in which every promise holds; raises BrokenError."""
    outcome = simulate(seed)
    if not outcome.verdict.held:
        raise outcome.verdict.error(seed)
    return outcome.digest


@pytest.mark.slow  # thirty histories, each of them hosts, children and a few hundred commits
def test_every_promise_holds_in_every_history() -> None:
    """One end, one result, one delivery for each; limits kept; nothing left behind."""
    assert len({play(seed) for seed in SEEDS}) == len(SEEDS), "no two seeds are the same history"


@pytest.mark.slow  # two more processes
def test_the_same_seed_is_the_same_history() -> None:
    """Callback by callback, commit by commit; here, again, and in processes that hash strings otherwise."""
    seeds = [2, 3, 5, 8]
    here = [simulate(seed).digest for seed in seeds]
    assert [simulate(seed).digest for seed in seeds] == here
    program = f"from _simulation import simulate\nfor seed in {seeds}: print(simulate(seed).digest)"
    for hashing in ("1", "2"):
        elsewhere = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hashing, "PYTHONPATH": str(HERE)},
            check=True,
            capture_output=True,
            text=True,
        )
        assert elsewhere.stdout.split() == here


def a_second_end_wins(patch: pytest.MonkeyPatch) -> None:
    def claim(self: LiveRun, ending: Ending) -> bool:
        self.ending = ending
        return True

    patch.setattr(LiveRun, "claim", claim)


def slots_are_never_freed(patch: pytest.MonkeyPatch) -> None:
    occupy = Roster._occupy
    patch.setattr(Roster, "_occupy", lambda self, slots: occupy(self, max(slots, 0)))


def what_waits_is_not_delivered_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    async def forget(_session: SessionActor) -> None:
        """Nothing."""

    patch.setattr(recovery, "deliver_waiting", forget)


def results_are_narrated_twice(patch: pytest.MonkeyPatch) -> None:
    merge_of = SessionActor.merge_of

    def twice(self: SessionActor, result: SubAgentResult) -> MergeResult:
        merge = merge_of(self, result)
        return replace(merge, turns=merge.turns * 2)

    patch.setattr(SessionActor, "merge_of", twice)


def children_outlive_their_parents(patch: pytest.MonkeyPatch) -> None:
    async def spare(_self: SessionActor, _ending: Ending) -> None:
        """Nobody."""

    patch.setattr(SessionActor, "end_children", spare)


def what_is_used_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LiveRun, "charge", lambda _self, _usage: None)


MUTATIONS: list[Callable[[pytest.MonkeyPatch], Any]] = [
    a_second_end_wins,
    slots_are_never_freed,
    what_waits_is_not_delivered_after_a_crash,
    results_are_narrated_twice,
    children_outlive_their_parents,
    what_is_used_is_not_counted,
]


@pytest.mark.slow  # as many histories as it takes
@pytest.mark.parametrize("break_it", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_broken_promise_is_noticed(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one thing taken out of the runtime, one of the same seeds shows it, and names the line to see it again."""
    break_it(monkeypatch)
    with pytest.raises(BrokenError, match=r"again: ./scripts/faults --only simulation --seed \d+"):
        sum(len(play(seed)) for seed in SEEDS)
