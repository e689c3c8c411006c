"""Twelve thousand query strings, sixty thousand in a thorough run: no exception, and no row of another agent."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from _extent import so_far
from _given import a_store, open_session, say

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

QUERIES = so_far(12_000, 60_000)
SHARDS = 6

# What full-text search, LIKE, SQL and Unicode find special, and words that are there to be found.
PIECES = [
    *('"', '""', "'", "''", '"\n', "\n", "\r\n", "\t", " ", "  ", "\x00", "\x01", "\x1a", "\x7f", "\ufeff"),
    *("\ud800", "\udfff", "\udc80", "\U0010ffff", "\ufffe", "\u200f", "\u202e", "\u2028", "\u0301", "\u200d"),
    *("AND", "OR", "NOT", "NEAR", "NEAR(", "NEAR(a b, 5)", " AND ", " OR ", " NOT ", "^", "*", ":", "+", "-", ","),
    *("text:", "text :", "{text}:", "- text:", "rank", "turns_fts", "rowid:", "content:", "(", ")", "{", "}", "[", "]"),
    *("%", "_", "\\", "\\%", "?", "?1", ":agent", "@x", "$x", ";", "--", "/*", "*/", "' OR 1=1 --", '" OR "a'),
    *("🦊", "👩‍👩‍👧", "🇩🇪", "שלום", "مرحبا", "狐狸", "é", "e\u0301", "İ", "ß", "ǆ", "ﬁ", "𝔣𝔬𝔵", "²", "½", "\u1e900"),
    *("fox", "secret", "common", "mine", "theirs", "agent", "theirs:secret", "a", "0", "1e999", "null", "NaN"),
]
ALPHABETS: list[Callable[[random.Random], str]] = [
    lambda chance: chr(chance.randrange(0x20, 0x7F)),
    lambda chance: chr(chance.randrange(0x00, 0x100)),
    lambda chance: chr(chance.randrange(0x110000)),
    lambda chance: chance.choice("\"'()*:^-+ \n\x00"),
    lambda chance: chance.choice(PIECES),
]


def a_query(chance: random.Random) -> str:
    """Mostly short, now and then huge; of one alphabet or of all."""
    length = chance.choice((0, 1, 1, 2, 3, 4, 6, 9))
    if chance.random() < 0.002:
        length = chance.choice((500, 5_000))
    if chance.random() < 0.5:
        return "".join(chance.choice(PIECES) for _ in range(length))
    alphabet = chance.choice(ALPHABETS)
    query = "".join(alphabet(chance) for _ in range(length))
    if chance.random() < 0.3:
        query = chance.choice("\"'(^*{") + query
    return query


@pytest.mark.slow  # thousands of searches each
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_query_breaks_out(tmp_path: Path, shard: int) -> None:
    """Also as a session key and as an agent id; every hit is a row of the agent that asked."""
    chance = random.Random(f"search {shard}")
    with a_store(tmp_path, inline=True, synchronous="normal") as store:
        for agent, key in (("me", "mine"), ("them", "theirs"), ("AND", "theirs:secret")):
            open_session(store, key, agent_id=agent)
            say(store, f"a common {key} fox, {agent}", "' OR 1=1 -- \" NEAR(a b, 5) 🦊 שלום é % _ \\ a 0", key=key)
        found = 0
        for _ in range(QUERIES // SHARDS):
            query = a_query(chance)
            named = None if chance.random() < 0.8 else chance.choice((a_query(chance), "theirs", "mine"))
            try:
                hits = store.search(query, agent_id="me", session_key=named)
                if chance.random() < 0.05:
                    assert store.search("common", agent_id=(odd := a_query(chance))) == [] or odd == "AND"
            except Exception as error:
                error.add_note(f"query {query!r}, key {named!r}")
                raise
            assert {hit.session_key for hit in hits} <= {"mine"}, (query, named)
            found += bool(hits)
        # A fuzz that finds nothing would prove nothing.
        assert found > QUERIES // SHARDS // 10
