"""Questions about what was: runs, sessions, dead letters, history; now and after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from _given import (
    HOST,
    MAIN,
    a_delivered_run,
    a_failure,
    a_store,
    accept,
    commit,
    deliver,
    finish,
    open_session,
    say,
)

from understudy.persistence.operations import (
    DeadLetter,
    Progress,
    RecordEvent,
    ReplayDeadLetter,
    SaveCheckpoint,
    SaveContext,
    StartRun,
)
from understudy.protocol import EndReason, Event, RunId, SessionKey, Usage, WorkingContext

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from understudy.persistence import Page, RunRecord, Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with a_store(tmp_path) as opened:
        yield opened


def names(page: Page[RunRecord]) -> list[str]:
    return [run.run_id for run in page.items]


@pytest.fixture
def many(store: Store) -> Store:
    """Six runs of every kind, accepted at 10, 20, … 60."""
    accept(store, "r1", at=10, spec_id="spec-a")
    started = accept(store, "r2", at=20, runner="other")
    commit(store, StartRun(started.run_id, 21, HOST))
    finish(store, accept(store, "r3", at=30, spec_id="spec-a", runner="other"), at=31)
    finish(store, accept(store, "r4", at=40), at=41, **a_failure("broke"))
    accept(store, "r5", at=50, parent_session_key=started.session_key, parent_run_id=started.run_id, depth=2)
    accept(store, "r6", at=60, parent_session_key=SessionKey("elsewhere"), root_session_key=SessionKey("elsewhere"))
    return store


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, ["r6", "r5", "r4", "r3", "r2", "r1"]),
        ({"runner": "other"}, ["r3", "r2"]),
        ({"runner": "nobody"}, []),
        ({"status": "pending"}, ["r6", "r5", "r1"]),
        ({"status": "running"}, ["r2"]),
        ({"status": "completed"}, ["r3"]),
        ({"status": "failed"}, ["r4"]),
        ({"since": 40}, ["r6", "r5", "r4"]),
        ({"since": 61}, []),
        ({"spec_id": "spec-a"}, ["r3", "r1"]),
        ({"session_key": "agent:atlas:sub:r3"}, ["r3"]),
        ({"parent_session_key": "agent:atlas:sub:r2"}, ["r5"]),
        ({"parent_run_id": "r2"}, ["r5"]),
        ({"root_session_key": MAIN}, ["r5", "r4", "r3", "r2", "r1"]),
        ({"runner": "other", "status": "completed", "since": 30, "spec_id": "spec-a"}, ["r3"]),
        ({"runner": "' OR 1=1 --"}, []),
        ({"limit": 2}, ["r6", "r5"]),
    ],
)
def test_runs_are_found_by_what_is_known_of_them(many: Store, asked: dict[str, Any], found: list[str]) -> None:
    """Newest first; conditions add up; a value is never syntax."""
    assert names(many.runs.find(**asked)) == found


def test_the_status_asked_for_is_the_status_derived(many: Store) -> None:
    """SQL and the facts agree about every run."""
    for status in ("pending", "running", "completed", "failed"):
        for run in many.runs.find(status=status).items:
            assert run.facts.status == status


def test_pages_follow_on_each_other_while_runs_are_added(many: Store) -> None:
    """Every run once, none skipped, none twice; what is newer than the first page is not in the next ones."""
    seen, cursor, number = list[str](), None, 0
    while True:
        page = many.runs.find(limit=2, cursor=cursor)
        seen += names(page)
        number += 1
        accept(many, f"new{number}")
        if page.cursor is None:
            break
        cursor = page.cursor
    assert seen == ["r6", "r5", "r4", "r3", "r2", "r1"]


def test_pages_follow_on_each_other_while_runs_are_forgotten(many: Store) -> None:
    """Even when the very run the cursor stands on is gone."""
    page = many.runs.find(limit=3)
    assert names(page) == ["r6", "r5", "r4"]
    (last,) = (run for run in page.items if run.run_id == "r4")
    deliver(many, last.packet)
    assert many.results.forget(last.run_id)
    assert names(many.runs.find(limit=3, cursor=page.cursor)) == ["r3", "r2", "r1"]


def test_a_last_page_has_no_cursor(many: Store) -> None:
    """Also when it is exactly full."""
    assert many.runs.find(limit=6).cursor is None
    assert many.runs.find(limit=7).cursor is None
    assert many.runs.find(limit=5).cursor is not None


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1.5", "1 OR 1", "٣", " 1"])
def test_a_cursor_of_somebody_elses_is_refused(many: Store, cursor: str) -> None:
    """With what to do instead."""
    with pytest.raises(ValueError, match="pass back what a page gave"):
        many.runs.find(cursor=cursor)


def test_a_cursor_or_limit_beyond_all_numbers_is_no_error_of_sqlite(many: Store) -> None:
    """Nothing a caller types overflows."""
    assert len(many.runs.find(cursor="9" * 30).items) == 6
    assert len(many.runs.find(limit=10**30).items) == 6
    with pytest.raises(ValueError, match="use 1 or more"):
        many.runs.find(limit=0)


def test_a_parent_asks_for_its_children(many: Store) -> None:
    """In the order of their acceptance; the unfinished ones alone."""
    assert [run.run_id for run in many.runs.children(MAIN)] == ["r1", "r2", "r3", "r4"]
    assert [run.run_id for run in many.runs.children(MAIN, unfinished=True)] == ["r1", "r2"]
    assert [session.session_key for session in many.sessions.children("agent:atlas:sub:r2")] == ["agent:atlas:sub:r5"]


def test_usage_adds_up_along_the_tree(many: Store) -> None:
    """Of a whole tree, and below a session; of runs that are not over yet too."""
    usage = Usage(input_tokens=10, output_tokens=1, cost_usd=0.5)
    commit(many, StartRun(RunId("r5"), 51, HOST), Progress(RunId("r5"), 52, usage=usage, steps=3))
    commit(many, Progress(RunId("r2"), 53, usage=usage))
    assert many.runs.usage(MAIN) == many.runs.usage_below(MAIN) == usage + usage
    assert many.runs.usage_below("agent:atlas:sub:r2") == usage
    assert many.runs.usage("elsewhere") == Usage()


def test_no_number_a_runner_reports_keeps_a_run_from_ending(store: Store) -> None:
    """Beyond all integers and floats of SQLite; the result says it as it was said, and sums are still sums."""
    absurd = Usage(input_tokens=2**63, output_tokens=2**200, cost_usd=1.7e308)
    for run_id in ("r1", "r2"):
        packet = accept(store, run_id)
        commit(store, StartRun(packet.run_id, 11, HOST), Progress(packet.run_id, 12, usage=absurd, steps=2**64))
        finish(store, packet, usage=absurd, steps=2**64)
    result = store.runs.result("r1")
    assert result is not None
    assert (result.usage, result.steps) == (absurd, 2**64)
    assert store.runs.usage(MAIN).input_tokens == 2 * 2**48
    assert store.runs.usage(MAIN).cost_usd == 2.0 * 2**48


def test_sessions_are_found_newest_first_and_by_agent(store: Store) -> None:
    """In pages, like runs."""
    for n in range(5):
        open_session(store, f"s{n}", agent_id="odd" if n % 2 else "even")
    first = store.sessions.find(limit=3)
    open_session(store, "s5")
    rest = store.sessions.find(limit=3, cursor=first.cursor)
    assert [session.session_key for session in (*first.items, *rest.items)] == ["s4", "s3", "s2", "s1", "s0"]
    assert [session.session_key for session in store.sessions.find(agent_id="odd").items] == ["s3", "s1"]
    assert store.sessions.get("nobody") is None


def test_the_most_recent_session_is_the_one_with_the_newest_content(store: Store) -> None:
    """Of the same project, harness and agent, and never the one that asks."""
    about = {"project": "/p", "harness": "claude"}
    for n, key in enumerate(("a", "b", "me")):
        open_session(store, key, at=n, **about)
    open_session(store, "elsewhere", at=99, project="/q", harness="claude")
    open_session(store, "other-agent", at=99, agent_id="x", **about)
    say(store, "newest", key="a", at=50)

    def most_recent(other_than: str) -> str | None:
        found = store.sessions.most_recent(agent_id="default", other_than=other_than, **about)
        return None if found is None else found.session_key

    assert most_recent("me") == "a"
    assert most_recent("a") == "me"
    assert store.sessions.most_recent(project="/r", harness="claude", agent_id="default", other_than="") is None


def test_dead_letters_are_listed_until_they_are_replayed(store: Store) -> None:
    """Nothing is pruned: a replayed one is still there for who asks."""
    open_session(store)
    numbers = [
        commit(store, DeadLetter(n, "nobody there", f"letter {n}", SessionKey(key)))[0]
        for n, key in enumerate(("a", "b", "a"))
    ]
    assert commit(store, ReplayDeadLetter(numbers[1], 9)) == (True,)
    listed = [letter.id for letter in store.dead_letters.find().items]
    assert listed == [numbers[2], numbers[0]]
    assert [letter.id for letter in store.dead_letters.find(replayed=True).items] == numbers[::-1]
    assert [letter.id for letter in store.dead_letters.find(session_key="a", limit=1).items] == [numbers[2]]
    page = store.dead_letters.find(limit=1)
    assert [letter.payload for letter in store.dead_letters.find(limit=1, cursor=page.cursor).items] == ["letter 0"]
    letter = store.dead_letters.get(numbers[1])
    assert letter is not None
    assert (letter.payload, letter.replayed_at) == ("letter 1", 9)
    assert store.dead_letters.get(999) is None


def test_history_is_the_same_after_a_restart(tmp_path: Path) -> None:
    """Everything a host asks gives the same answer from a store opened anew."""

    def history(store: Store) -> list[object]:
        return [
            store.runs.find(),
            store.runs.result("r1"),
            store.runs.full_output("r1"),
            store.runs.events("r1"),
            store.runs.unfinished(),
            store.runs.usage(MAIN),
            store.sessions.find(),
            store.sessions.working_context(MAIN),
            store.sessions.checkpoint(MAIN),
            store.transcripts.turns(MAIN),
            store.outbox.undelivered(dead=True),
            store.dead_letters.find(replayed=True),
            store.search("remember", agent_id="default"),
        ]

    with a_store(tmp_path) as store:
        packet = a_delivered_run(store, "r1", full="everything", spec_id="spec-a")
        accept(store, "r2")
        finish(store, accept(store, "r3"))
        say(store, "remember this")
        spawned = Event("session:sub_agent_spawned", 11, packet.session_key, packet.run_id, depth=1, data={"n": 1})
        commit(
            store,
            RecordEvent(spawned),
            SaveContext(MAIN, 12, WorkingContext(("/p/ä", "/p/b"), "/p")),
            SaveCheckpoint(MAIN, 13, "a digest", entities=("fox",), constraints=("be kind",)),
            DeadLetter(14, "nobody there", "a letter", MAIN),
        )
        before = history(store)
        assert all(before)
        assert store.runs.events("r1") == [spawned]
    with a_store(tmp_path) as store:
        assert history(store) == before
        assert store.sessions.working_context(MAIN) == WorkingContext(("/p/ä", "/p/b"), "/p")
        run = store.runs.get("r1")
        assert run is not None
        assert run.packet == packet
        assert run.facts.end_reason is EndReason.COMPLETED


def test_the_documents_views_show_the_same_rows(many: Store) -> None:
    """A person who knows ``subagent_sessions`` and ``session_transcripts`` can query them."""
    say(many, "one", "two")
    rows = many._reader.rows("SELECT id, runner_id, status, created_at, error FROM subagent_sessions ORDER BY id")
    assert rows[1:4] == [
        ("r2", "other", "running", "1970-01-01T00:00:00.020Z", None),
        ("r3", "other", "completed", "1970-01-01T00:00:00.030Z", None),
        ("r4", "default", "failed", "1970-01-01T00:00:00.040Z", "broke"),
    ]
    transcript = many._reader.row("SELECT content FROM session_transcripts WHERE session_key = ?", (MAIN,))
    assert transcript == ("user: one\nuser: two",)
