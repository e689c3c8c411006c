"""Live transcripts: a row a turn, its index row in the same commit, and a tail that costs what it is long."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest
from _given import MAIN, a_delivered_run, a_store, commit, open_session, say

from understudy.actors.testing import CrashPoint
from understudy.persistence import StoreError
from understudy.persistence.operations import AppendTurns, CompleteSession, SaveCheckpoint, SaveContext
from understudy.protocol import RunId, SessionKey, WorkingContext
from understudy.protocol.model import ToolCall, Turn

if TYPE_CHECKING:
    from pathlib import Path


def test_turns_come_back_as_they_were_said(tmp_path: Path) -> None:
    """In order, with tool calls, the run and the time."""
    calling = Turn("assistant", "", (ToolCall("c1", "read", {"path": "/p", "lines": [1, 2]}),))
    answered = Turn("tool", "ünïcode 🦊\nsecond line", tool_call_id="c1")
    with a_store(tmp_path) as store:
        open_session(store)
        commit(store, AppendTurns(MAIN, 5, (calling, answered), run_id=RunId("r1")))
        say(store, "thanks", at=6)
        turns = store.transcripts.turns(MAIN)
        assert [(stored.turn, stored.at, stored.run_id) for stored in turns] == [
            (calling, 5, "r1"),
            (answered, 5, "r1"),
            (Turn("user", "thanks"), 6, None),
        ]
        assert [stored.turn.text for stored in store.transcripts.turns(MAIN, after=turns[0].id, limit=1)] == [
            answered.text
        ]
        assert store.transcripts.text(MAIN).endswith("user: thanks")


def test_created_at_is_never_rewritten(tmp_path: Path) -> None:
    """Opening a session again changes nothing about it, now or after a restart."""
    with a_store(tmp_path) as store:
        open_session(store, at=5, title="first")
        before = store.sessions.get(MAIN)
        open_session(store, at=9, title="second", agent_id="other")
        assert store.sessions.get(MAIN) == before
    with a_store(tmp_path) as store:
        open_session(store, at=99)
        assert store.sessions.get(MAIN) == before
        assert before is not None
        assert (before.created_at, before.title) == (5, "first")


def test_updated_at_moves_only_with_new_content(tmp_path: Path) -> None:
    """Nothing but a turn moves it, no turn moves it backwards, and only its own session's."""
    with a_store(tmp_path) as store:
        open_session(store, at=1)
        open_session(store, "other", at=1)

        def updated() -> int:
            session = store.sessions.get(MAIN)
            assert session is not None
            return session.updated_at

        commit(store, AppendTurns(MAIN, 50, ()))
        commit(store, SaveContext(MAIN, 51, WorkingContext(("/p/a",))))
        commit(store, SaveCheckpoint(MAIN, 52, "about a fox"))
        commit(store, CompleteSession(MAIN, 53))
        say(store, "elsewhere", key="other", at=54)
        assert updated() == 1
        say(store, "here", at=60)
        assert updated() == 60
        say(store, "said earlier, stored later", at=55)
        assert updated() == 60


def test_the_first_completion_is_the_one_that_counts(tmp_path: Path) -> None:
    """completed_at: first write wins, turns that come later are kept."""
    with a_store(tmp_path) as store:
        open_session(store)
        assert commit(store, CompleteSession(MAIN, 7)) == (True,)
        assert commit(store, CompleteSession(MAIN, 8)) == (False,)
        say(store, "a last word", at=9)
        session = store.sessions.get(MAIN)
        assert session is not None
        assert (session.completed_at, session.updated_at) == (7, 9)


def test_a_turn_of_no_session_is_refused(tmp_path: Path) -> None:
    """Nothing is stored that nobody could find again."""
    with a_store(tmp_path) as store, pytest.raises(StoreError):
        say(store, "hello", key="never-opened")


def test_a_turn_and_its_index_row_are_one_commit(tmp_path: Path) -> None:
    """Before the commit another connection sees neither, after it both; a commit that fails leaves neither."""
    strike = CrashPoint("merge.before")
    seen: list[tuple[int, int]] = []
    with a_store(tmp_path, commit_hook=strike) as store:
        open_session(store)
        outside = sqlite3.connect(store.path)

        def counts() -> tuple[int, int]:
            (turns,) = outside.execute("SELECT count(*) FROM turns").fetchone()
            (indexed,) = outside.execute("SELECT count(*) FROM turns_fts WHERE turns_fts MATCH 'fox'").fetchone()
            return turns, indexed

        turn = AppendTurns(MAIN, 5, (Turn("user", "a fox"),))
        with pytest.raises(Exception, match="struck"):
            store.transaction(turn, point="merge").result(timeout=30)
        seen.append(counts())
        store.transaction(turn, point="merge").result(timeout=30)
        seen.append(counts())
        outside.close()
        assert seen == [(0, 0), (1, 1)]
        assert store.problems() == []


def test_retention_takes_the_turns_of_a_child_that_was_not_kept(tmp_path: Path) -> None:
    """Out of the index too; a kept child's and the parent's stay."""
    with a_store(tmp_path) as store:
        gone, kept = a_delivered_run(store, "gone"), a_delivered_run(store, "kept", cleanup="keep")
        for key in (gone.session_key, kept.session_key, MAIN):
            say(store, f"vixen of {key}", key=key)
        store.results.sweep(ended_before=1_000)
        assert store.transcripts.turns(gone.session_key) == []
        assert {hit.session_key for hit in store.search("vixen", agent_id="default")} == {kept.session_key, MAIN}
        assert store.problems() == []


def test_the_tail_is_the_end_of_the_text_to_the_character(tmp_path: Path) -> None:
    """Of every length: inside a turn, on its edge, across several, beyond the beginning; of any weight."""
    with a_store(tmp_path) as store:
        open_session(store)
        open_session(store, "noise")
        for text in (
            "plain",
            "",
            "zwölf Boxkämpfer",
            "狐狸 🦊🦊",
            "e\u0301 combining",
            "two\nlines",
            "\u05e9\u05dc\u05d5\u05dd",
        ):
            say(store, text)
            say(store, "not ours", key="noise")
        whole = store.transcripts.text(MAIN)
        for chars in range(1, len(whole) + 5):
            assert store.transcripts.tail(MAIN, chars) == whole[-chars:], chars
        assert store.transcripts.tail(MAIN, 0) == store.transcripts.tail(MAIN, -1) == ""
        assert store.transcripts.tail("unknown", 100) == ""


def test_a_tail_can_begin_after_a_checkpoint(tmp_path: Path) -> None:
    """What the checkpoint covers is not repeated."""
    with a_store(tmp_path) as store:
        open_session(store)
        say(store, "covered")
        commit(store, SaveCheckpoint(MAIN, 3, "a digest"))
        say(store, "first after", "second after")
        checkpoint = store.sessions.checkpoint(MAIN)
        assert checkpoint is not None
        assert (
            store.transcripts.tail(MAIN, 1_000, after=checkpoint.last_turn_id)
            == "user: first after\nuser: second after"
        )


def test_a_tail_is_read_along_the_index(tmp_path: Path) -> None:
    """SQLite visits the session's own turns from the end: no scan, no sort."""
    with a_store(tmp_path) as store:
        open_session(store)
        plans = sqlite3.connect(store.path)
        statements: list[str] = []
        with store._reader.cursor() as cursor:
            cursor.connection.set_trace_callback(statements.append)
        store.transcripts.tail(MAIN, 100)
        (steps,) = [
            [step[3] for step in plans.execute(f"EXPLAIN QUERY PLAN {statement}")]
            for statement in statements
            if "FROM turns" in statement
        ]
        plans.close()
        assert steps[0].startswith("SEARCH turns USING INDEX turns_by_session")
        assert not [step for step in steps if "SCAN" in step or "TEMP B-TREE" in step]


def test_what_cannot_be_stored_as_text_is_replaced_not_refused(tmp_path: Path) -> None:
    """A model may say anything: NUL, a lone surrogate, also as a tool's name, argument or id."""
    odd = "a\x00b\ud800c"
    turns = (
        Turn("assistant", odd, (ToolCall(odd, odd, {odd: odd}),)),
        Turn("tool", odd, tool_call_id=odd),
    )
    with a_store(tmp_path) as store:
        open_session(store, title=odd)
        commit(store, AppendTurns(MAIN, 5, turns))
        assistant, tool = (stored.turn for stored in store.transcripts.turns(MAIN))
        assert assistant.text == tool.text == "a\ufffdb?c"
        assert assistant.tool_calls[0].id == tool.tool_call_id  # still each other's
        assert store.problems() == []


def test_sessions_do_not_mix(tmp_path: Path) -> None:
    """Interleaved in one commit, each keeps its own order."""
    with a_store(tmp_path) as store:
        keys = [open_session(store, f"s{n}") for n in range(3)]
        pending = [
            store.transaction(AppendTurns(SessionKey(key), n, (Turn("user", f"{key} {n}"),)))
            for n in range(50)
            for key in keys
        ]
        for one in pending:
            one.result(timeout=30)
        for key in keys:
            assert [stored.turn.text for stored in store.transcripts.turns(key)] == [f"{key} {n}" for n in range(50)]
