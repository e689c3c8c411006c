"""A store can be looked at while others use it, and nothing of it is touched."""

from __future__ import annotations

import hashlib
import sqlite3
from typing import TYPE_CHECKING

import pytest
from _given import HOST, MAIN, a_delivered_run, a_store, accept, commit, deliver, finish, open_session, say

from understudy.persistence import CorruptStoreError, ForeignStoreError, StoreUnavailableError, StoreView
from understudy.persistence.operations import RecordEvent, StartRun
from understudy.protocol import Event, RunId

if TYPE_CHECKING:
    from pathlib import Path


def fingerprints(folder: Path) -> dict[str, tuple[str, int]]:
    """Every file with its content and time of change."""
    return {
        file.name: (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns) for file in folder.iterdir()
    }


def test_looking_leaves_no_trace(tmp_path: Path) -> None:
    """No log, no index of one, not a byte of the file."""
    with a_store(tmp_path) as store:
        a_delivered_run(store, "r-1")
    before = fingerprints(tmp_path)
    with StoreView.open(tmp_path / "store.db") as view:
        assert [record.run_id for record in view.runs.find().items] == ["r-1"]
        assert view.problems() == []
    assert fingerprints(tmp_path) == before
    assert list(before) == ["store.db"]


def test_what_another_commits_is_seen_at_once(tmp_path: Path) -> None:
    """While it is open, and also where the view was there before the first writer came."""
    with a_store(tmp_path) as store:
        open_session(store)
    with StoreView.open(tmp_path / "store.db") as view:
        assert view.transcripts.text(MAIN) == ""
        with a_store(tmp_path) as store:
            say(store, "where is the loader?")
            assert view.transcripts.text(MAIN) == "user: where is the loader?"
            assert [hit.excerpt for hit in view.search("loader", agent_id="default")] == ["where is the loader?"]
            say(store, "in config.py")
            assert view.transcripts.text(MAIN).endswith("user: in config.py")
        assert view.transcripts.text(MAIN).endswith("user: in config.py")
    with a_store(tmp_path) as store:
        assert store.problems() == []


def test_a_view_cannot_write(tmp_path: Path) -> None:
    """Whatever SQL it is asked."""
    with a_store(tmp_path) as store:
        open_session(store)
        with (
            StoreView.open(tmp_path / "store.db") as view,
            pytest.raises(StoreUnavailableError, match="read-only"),
            view._reader.cursor() as cursor,
        ):
            cursor.execute("DELETE FROM sessions")


def test_there_must_be_something_to_look_at(tmp_path: Path) -> None:
    """A file that is missing, a folder, an empty file, text, another program's database."""
    (tmp_path / "empty.db").touch()
    (tmp_path / "text.db").write_text("no database at all, but long enough to be one\n" * 100)
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE things (id)")
    connection.close()
    for name, error, words in (
        ("none.db", FileNotFoundError, "does not exist"),
        (".", FileNotFoundError, "is no file"),
        ("empty.db", ForeignStoreError, "is empty"),
        ("text.db", CorruptStoreError, "was left as it is"),
        ("other.db", ForeignStoreError, "another program"),
    ):
        with pytest.raises(error, match=words):
            StoreView.open(tmp_path / name)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["empty.db", "other.db", "text.db"]


def test_news_are_told_once_and_in_order(tmp_path: Path) -> None:
    """The facts of a run as they come true, and what was recorded of it; nothing from before the bookmark."""
    with a_store(tmp_path) as store:
        a_delivered_run(store, "r-1")
        early = accept(store, "r-2", at=50)
        with StoreView.open(tmp_path / "store.db") as view:
            mark = view.news.bookmark()
            assert view.news.since(mark) == []
            commit(store, StartRun(early.run_id, 60, HOST))
            touched = Event("session:sub_agent_progress", 65, MAIN, early.run_id, None, 1, {"path": "/w/a"})
            commit(store, RecordEvent(touched))
            late = accept(store, "r-3", at=70)
            told = view.news.since(mark)
            assert [(event.at, event.run_id, event.name.removeprefix("session:sub_agent_")) for event in told] == [
                (60, "r-2", "started"),
                (65, "r-2", "progress"),
                (70, "r-3", "spawned"),
            ]
            assert told[1] == touched
            finish(store, early, at=80)
            deliver(store, early, at=90)
            finish(store, late, at=85)
            told = view.news.since(mark)
            assert [(event.at, event.run_id, event.name.removeprefix("session:sub_agent_")) for event in told] == [
                (80, "r-2", "lifecycle_ended"),
                (85, "r-3", "started"),
                (85, "r-3", "lifecycle_ended"),
                (90, "r-2", "delivered"),
            ]
            assert told[0].data["end_reason"] == "completed"
            assert view.news.since(mark) == []
            deliver(store, late, at=95)
            assert [event.run_id for event in view.news.since(mark)] == [RunId("r-3")]
            assert mark.open == {}
