"""Finding what was said: exact key, then words, then substring; and never another agent's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from _given import MAIN, a_store, commit, open_session, say

from understudy.persistence import search as module
from understudy.persistence.operations import AppendTurns
from understudy.protocol import SessionKey
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from understudy.persistence import SearchHit, Store

ME, OTHER = "me", "somebody else"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with a_store(tmp_path) as opened:
        yield opened


def excerpts(hits: list[SearchHit]) -> list[str]:
    return [hit.excerpt for hit in hits]


def test_an_exact_key_comes_before_words_and_words_before_substrings(store: Store) -> None:
    """Each step is taken only where the one before found nothing."""
    open_session(store, "agent:fox", agent_id=ME)
    open_session(store, "den", agent_id=ME)
    say(store, "said in the session of that name", key="agent:fox")
    say(store, "somebody mentions agent:fox here", "foxes are foxlike", key="den")
    assert excerpts(store.search("agent:fox", agent_id=ME)) == ["said in the session of that name"]
    assert excerpts(store.search("fox", agent_id=ME)) == ["somebody mentions agent:fox here"]
    assert excerpts(store.search("oxlik", agent_id=ME)) == ["foxes are foxlike"]
    assert store.search("wolf", agent_id=ME) == []


def test_an_exact_key_answers_its_newest_turns(store: Store) -> None:
    """Newest first, as many as asked for."""
    open_session(store, agent_id=ME)
    say(store, *(f"turn {n}" for n in range(30)))
    assert excerpts(store.search(MAIN, agent_id=ME, limit=3)) == ["turn 29", "turn 28", "turn 27"]


def test_a_hit_says_where_when_and_by_whom(store: Store) -> None:
    """The rank counts from the best."""
    open_session(store, agent_id=ME)
    commit(store, AppendTurns(MAIN, 77, (Turn("assistant", "the loader"), Turn("user", "a loader, a loader!"))))
    first, second = store.search("loader", agent_id=ME)
    assert (first.session_key, first.at, first.rank, second.rank) == (MAIN, 77, 1, 2)
    assert {first.role, second.role} == {"assistant", "user"}
    assert [stored.id for stored in store.transcripts.turns(MAIN)] == sorted([first.turn_id, second.turn_id])


def test_the_better_match_comes_first(store: Store) -> None:
    """bm25: the rarer, the denser, the shorter; not the newer."""
    open_session(store, agent_id=ME)
    say(store, "vixen vixen vixen", "a vixen " + "and other words " * 30, *("nothing of it",) * 20)
    assert [hit.excerpt[:7] for hit in store.search("vixen", agent_id=ME)] == ["vixen v", "a vixen"]


def test_all_words_come_before_any_word(store: Store) -> None:
    """Where no turn has them all, any of them will do."""
    open_session(store, agent_id=ME)
    say(store, "red fox", "red hen", "grey fox")
    assert excerpts(store.search("fox red", agent_id=ME)) == ["red fox"]
    assert sorted(excerpts(store.search("red wolf", agent_id=ME))) == ["red fox", "red hen"]


@pytest.mark.parametrize("query", ["cafe", "CAFÉ", "cafe\u0301", "Café"])
@pytest.mark.parametrize("said", ["un café crème", "un cafe\u0301 crème"])
def test_case_and_accents_do_not_matter(store: Store, said: str, query: str) -> None:
    """However either of them was composed."""
    open_session(store, agent_id=ME)
    say(store, said, "du thé")
    assert excerpts(store.search(query, agent_id=ME)) == [said]


def test_words_inside_a_decomposed_text_are_whole_words(store: Store) -> None:
    """An accent in the middle does not split the query."""
    open_session(store, agent_id=ME)
    say(store, "l'été dernier", "e te")
    assert excerpts(store.search("e\u0301te\u0301", agent_id=ME)) == ["l'été dernier"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("--force", "use --force here"),
        ("100%", "it is 100% sure"),
        ("a_b", "x a_b y"),
        ("\\n", "a \\n b"),
        ("🦊", "a 🦊!"),
    ],
)
def test_what_is_no_word_is_found_as_it_is_written(store: Store, query: str, said: str) -> None:
    """LIKE's own signs mean themselves."""
    open_session(store, agent_id=ME)
    say(store, said, "nothing 1000 axb of the kind")
    assert excerpts(store.search(query, agent_id=ME)) == [said]


@pytest.mark.parametrize(
    ("query", "shown"),
    [("needle", "needle"), ("NEEDLE", "needle"), ("épingle", "epingle"), ("epingle", "épingle"), ("ha-ha", "ha-ha")],
)
@pytest.mark.parametrize("before", ["İ" * 300, "hay " * 300, "🦊" * 299 + " "])
def test_an_excerpt_shows_the_match(store: Store, before: str, query: str, shown: str) -> None:
    """With a little of what stands before it; where it is cut is marked; case and accents shift nothing."""
    open_session(store, agent_id=ME)
    say(store, f"{before} {shown} {'hay ' * 300}")
    (hit,) = store.search(query, agent_id=ME)
    assert shown in hit.excerpt
    assert hit.excerpt.startswith("…")
    assert hit.excerpt.endswith("…")
    assert len(hit.excerpt) <= 242


def test_an_excerpt_shows_the_word_not_a_word_that_contains_it(store: Store) -> None:
    """The index found the word, so the word is what is shown."""
    open_session(store, agent_id=ME)
    say(store, "preloader " + "x " * 300 + "the loader itself")
    (hit,) = store.search("loader", agent_id=ME)
    assert "the loader itself" in hit.excerpt


def test_a_short_text_is_its_own_excerpt(store: Store) -> None:
    """Nothing is cut, nothing is marked."""
    open_session(store, agent_id=ME)
    say(store, "short and to the point")
    assert excerpts(store.search("point", agent_id=ME)) == ["short and to the point"]


def test_an_agent_sees_its_own_rows_only(store: Store) -> None:
    """By key, by word, by substring; whether a session is named or not."""
    open_session(store, "mine", agent_id=ME)
    open_session(store, "theirs", agent_id=OTHER)
    say(store, "common ground", key="mine")
    say(store, "common secret", key="theirs")
    for query in ("theirs", "secret", "ecre", "common"):
        for key in (None, "mine", "theirs"):
            found = store.search(query, agent_id=ME, session_key=key)
            assert {hit.session_key for hit in found} <= {"mine"}, (query, key)
    assert excerpts(store.search("common", agent_id=ME)) == ["common ground"]


def test_unknown_and_forbidden_answer_alike(store: Store) -> None:
    """Nobody can learn whether a key exists."""
    open_session(store, "theirs", agent_id=OTHER)
    say(store, "a word", key="theirs")
    for query in ("word", "wor", "theirs", "no-such"):
        for key in ("theirs", "no-such", "", "a\x00b", "\ud800"):
            assert store.search(query, agent_id=ME, session_key=key) == []


def test_sharing_takes_two(store: Store) -> None:
    """A shared agent sees what others share; an isolated one does not, and nobody sees what is isolated."""
    open_session(store, "isolated", agent_id=OTHER)
    open_session(store, "shared", agent_id=OTHER, visibility="shared")
    for key in ("isolated", "shared"):
        say(store, "a word", key=key)
    assert store.search("word", agent_id=ME) == []
    assert [hit.session_key for hit in store.search("word", agent_id=ME, visibility="shared")] == ["shared"]
    assert store.search("isolated", agent_id=ME, visibility="shared") == []


@pytest.mark.parametrize("agent_id", ["m\x00e", "me\x00", "m\ud800e", "me\ud800", "ME", "me ", "", "%", "m_"])
def test_an_agent_id_is_compared_as_it_is(store: Store, agent_id: str) -> None:
    """Nothing is cleaned out of it: almost the same agent is another agent."""
    open_session(store, agent_id=ME)
    say(store, "a word")
    assert store.search("word", agent_id=agent_id) == []


def test_the_scope_is_in_every_statement(store: Store) -> None:
    """No statement reads what was said without the agent in its own WHERE."""
    open_session(store, agent_id=ME)
    say(store, *("common",) * 5)
    statements: list[str] = []
    with store._reader.cursor() as cursor:
        cursor.connection.set_trace_callback(statements.append)
    for query in (MAIN, "common", "ommo", "common nowhere", "!!"):
        for key in (None, MAIN):
            store.search(query, agent_id=ME, session_key=key)
    reading = [statement for statement in statements if "turns.text" in statement]
    assert len(reading) >= 8
    assert [statement for statement in reading if "sessions.agent_id = 'me'" not in statement] == []


def test_a_word_that_is_nearly_everywhere_answers_newest_first(store: Store) -> None:
    """Ranking all of it would say nothing; a word in few turns is ranked, however many turns there are."""
    open_session(store, agent_id=ME)
    say(store, "everywhere everywhere everywhere")
    say(store, *(f"everywhere {n} {'rare' if n % 500 == 0 else ''}" for n in range(3_000)))
    assert excerpts(store.search("everywhere", agent_id=ME, limit=3)) == [
        f"everywhere {n} " for n in (2999, 2998, 2997)
    ]
    assert len(store.search("rare", agent_id=ME, limit=20)) == 6
    # Few enough to be ranked: the densest is the best, though the oldest.
    say(store, "seldom seldom seldom", *(f"seldom and many other words {n}" for n in range(100)))
    assert store.search("seldom", agent_id=ME)[0].excerpt == "seldom seldom seldom"


def test_an_agent_finds_its_turn_below_everybody_elses(store: Store) -> None:
    """The cap is on what is ranked, not on what is found."""
    open_session(store, "mine", agent_id=ME)
    open_session(store, "theirs", agent_id=OTHER)
    say(store, "everywhere, and mine", key="mine")
    say(store, *(f"everywhere {n}" for n in range(2_500)), key="theirs")
    assert excerpts(store.search("everywhere", agent_id=ME)) == ["everywhere, and mine"]
    assert excerpts(store.search("everywhere", agent_id=ME, session_key="mine")) == ["everywhere, and mine"]


def test_a_short_session_does_not_look_through_everybody_elses_matches(store: Store) -> None:
    """One window of theirs, then its own turns, newest first: the number of statements does not grow."""
    for key in ("mine", "others"):
        open_session(store, key, agent_id=ME)
    for n in range(5):
        say(store, f"everywhere, mine {n}", "nothing", key="mine")
        say(store, *("everywhere",) * 1_500, key="others")
    say(store, "nothing at the end", key="mine")
    statements: list[str] = []
    with store._reader.cursor() as cursor:
        cursor.connection.set_trace_callback(statements.append)
    found = store.search("everywhere", agent_id=ME, session_key="mine")
    assert excerpts(found) == [f"everywhere, mine {n}" for n in (4, 3, 2, 1, 0)]
    assert len([statement for statement in statements if "turns_fts MATCH" in statement]) == 3
    assert store.search("everywhere", agent_id=OTHER, session_key="mine") == []


def test_a_substring_is_looked_for_in_a_bounded_number_of_the_newest_turns(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named session is searched as a whole, along its own index."""
    monkeypatch.setattr(module, "SUBSTRING_WINDOW", 10)
    open_session(store, agent_id=ME)
    open_session(store, "other", agent_id=ME)
    say(store, "vixen")
    say(store, *("hay",) * 10, key="other")
    assert store.search("ixe", agent_id=ME) == []
    assert excerpts(store.search("ixe", agent_id=ME, session_key=MAIN)) == ["vixen"]
    statements: list[str] = []
    with store._reader.cursor() as cursor:
        cursor.connection.set_trace_callback(statements.append)
    store.search("ixe", agent_id=ME, session_key=MAIN)
    (substring,) = (statement for statement in statements if "LIKE" in statement)
    plan = [row[3] for row in store._reader.rows(f"EXPLAIN QUERY PLAN {substring}")]
    assert any("turns_by_session" in str(step) for step in plan), plan


@pytest.mark.parametrize(("limit", "found"), [(1, 1), (10, 10), (20, 20), (21, 20), (10**30, 20), (0, 1), (-5, 1)])
@pytest.mark.parametrize("query", ["word", "wor", MAIN])
def test_the_limit_is_between_one_and_twenty(store: Store, query: str, limit: int, found: int) -> None:
    """Whatever is asked for."""
    open_session(store, agent_id=ME)
    say(store, *("a word",) * 40)
    assert len(store.search(query, agent_id=ME, limit=limit)) == found


def test_what_is_committed_is_found_at_once(store: Store) -> None:
    """There is no indexing to wait for."""
    key = SessionKey("live")
    open_session(store, key, agent_id=ME)
    for n in range(5):
        say(store, f"word{n}", key=key)
        assert len(store.search(f"word{n}", agent_id=ME)) == 1
