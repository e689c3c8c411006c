"""A digest says what a conversation was about, the same every time, and always fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from understudy.protocol.digest import digest, head
from understudy.protocol.model import ToolCall, Turn
from understudy.protocol.tokens import estimate_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

TALK = [
    Turn("user", "Where is the\nconfig loaded?"),
    Turn("assistant", "", (ToolCall("1", "grep", {"pattern": "load"}),)),
    Turn("tool", "loader.py", tool_call_id="1"),
    Turn("assistant", "In loader.py."),
]


def dense(text: str) -> int:
    """An estimator that finds three tokens in every character."""
    return 3 * len(text)


def test_it_tells_counts_requests_answers_tools_and_files() -> None:
    """In a fixed order, a line each."""
    said = digest(TALK, max_tokens=500, estimate=estimate_tokens, files=["/p/loader.py"])
    assert said.splitlines() == [
        "4 turns: 1 user, 2 assistant, 1 tool results.",
        "Asked:",
        "- Where is the config loaded?",
        "Answered last:",
        "- In loader.py.",
        "Tools: grep ×1",
        "Files:",
        "- /p/loader.py",
    ]


@pytest.mark.parametrize("max_tokens", [0, 1, 20, 64, 500])
@pytest.mark.parametrize("estimate", [estimate_tokens, dense])
@pytest.mark.parametrize(
    "turns",
    [
        [Turn("user", "x" * 10_000_000)],
        [Turn("user", "ab\0\ud800\u202e\n" * 1_000)] * 3,
        [Turn(role, f"{number} " * 100) for number in range(500) for role in ("user", "assistant")],
        [],
    ],
    ids=["10 MB", "odd", "many", "none"],
)
@pytest.mark.parametrize("previous", [None, "before " * 100_000])
def test_it_always_fits(
    turns: list[Turn], estimate: Callable[[str], int], max_tokens: int, previous: str | None
) -> None:
    """Whatever was said, however long, by any estimator."""
    files = [f"/p/{number}" for number in range(100)]
    said = digest(turns, max_tokens=max_tokens, estimate=estimate, files=files, previous=previous)
    assert estimate(said) <= max_tokens


def test_the_oldest_requests_are_left_out_first_and_counted() -> None:
    """What was asked last is there."""
    turns = [Turn("user", f"request {number}") for number in range(100)]
    lines = digest(turns, max_tokens=100, estimate=estimate_tokens).splitlines()
    shown = [line for line in lines if "request" in line]
    assert shown[-1] == "- request 99"
    assert f"- … {100 - len(shown)} earlier ones left out" in lines


def test_what_was_known_before_goes_first() -> None:
    """Its beginning and its end survive the next digest, and the one after that."""
    said = "The goal is X."
    for number in range(10):
        said = digest([Turn("user", f"step {number}")], max_tokens=300, estimate=estimate_tokens, previous=said)
    assert said.startswith("The goal is X.")
    assert "step 9" in said
    assert estimate_tokens(said) <= 300


def test_a_head_is_one_printable_line() -> None:
    """Cut where it is too long, and marked."""
    assert head(" a\n b\0c ") == "a b c"
    assert head("x" * 100, 10) == "xxxxxxxxx…"
    assert head("é" * 10, 10) == "é" * 10
