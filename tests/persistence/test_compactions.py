"""A compaction is a record beside the turns: it says from where on they are kept, and touches none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from _given import MAIN, a_delivered_run, a_store, commit, open_session, say

from understudy.persistence import Compaction, MemoryStore
from understudy.persistence.operations import (
    AppendTurns,
    CompactHistory,
    OpenSession,
    SaveCheckpoint,
    SetObjective,
)
from understudy.protocol import SessionKey
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("kept", "first"), [(0, 6), (1, 5), (2, 2), (3, 1), (9, 1)])
def test_the_newest_turns_are_counted_from_the_end(tmp_path: Path, kept: int, first: int) -> None:
    """Whatever stands between them of other sessions; of the numbers 1, 4 and 5, from 2 on is from 4 on."""
    other = SessionKey("agent:other:main")
    with a_store(tmp_path) as store:
        open_session(store)
        commit(store, OpenSession(other, 1))
        say(store, "one")
        commit(store, AppendTurns(other, 1, (Turn("user", "x"), Turn("user", "y"))))
        say(store, "two", "three")
        before = store.transcripts.turns(MAIN)
        assert commit(store, CompactHistory(MAIN, 9, "s", kept)) == (first,)
        assert store.transcripts.compaction(MAIN) == Compaction(9, "s", first)
        left = [row.turn.text for row in store.transcripts.turns(MAIN, after=first - 1)]
        assert left == ["one", "two", "three"][max(0, 3 - kept) :]
        assert store.transcripts.turns(MAIN) == before
        assert store.transcripts.compaction(other) is None


def test_it_is_about_the_turns_of_its_own_transaction_and_the_last_one_counts(tmp_path: Path) -> None:
    """In whatever order they are given."""
    with a_store(tmp_path) as store:
        open_session(store)
        said = AppendTurns(MAIN, 1, (Turn("user", "a"), Turn("user", "b")))
        commit(store, CompactHistory(MAIN, 2, "first", 2), CompactHistory(MAIN, 3, "second", 1), said)
        assert store.transcripts.compaction(MAIN) == Compaction(3, "second", 2)


def test_an_unknown_session_is_told(tmp_path: Path) -> None:
    """Nothing is compacted in nobody's name, and nobody gets an objective."""
    with a_store(tmp_path) as store:
        with pytest.raises(LookupError, match="no session agent:atlas:main to compact: open it first"):
            commit(store, CompactHistory(MAIN, 1, "s", 0))
        assert commit(store, SetObjective(MAIN, "x")) == (False,)


@pytest.mark.parametrize("kind", ["memory", "database"])
def test_retention_takes_what_sums_a_child_up_with_its_turns(tmp_path: Path, kind: str) -> None:
    """The summary and the checkpoints of a child that was not kept say what it said."""
    store = MemoryStore(wall_ms=lambda: 0) if kind == "memory" else a_store(tmp_path)
    with store:
        packet = a_delivered_run(store, "r1")  # type: ignore[arg-type]
        key = packet.session_key
        store.transaction(
            AppendTurns(key, 1, (Turn("user", "x"),)), CompactHistory(key, 2, "s", 0), SaveCheckpoint(key, 2, "d")
        ).result()
        assert store.transcripts.compaction(key) is not None
        assert store.results.sweep(ended_before=1_000) == [packet.run_id]
        assert store.transcripts.turns(key) == []
        assert store.transcripts.compaction(key) is None
        assert store.sessions.checkpoint(key) is None
