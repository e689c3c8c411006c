"""Each promise names the tests that hold us to it, and these tests exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text()
LINK = re.compile(r"\[`(\w+)`\]\(\.\./(tests/[\w/]+\.py)\)")


@cache
def names_in(file: str) -> set[str]:
    """The names pytest would collect from a file."""
    return {
        node.name
        for node in ast.walk(ast.parse((ROOT / file).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_every_test_that_is_named_exists() -> None:
    """A test that was renamed, moved or dropped leaves a promise without its proof."""
    named = LINK.findall(PAGE)
    assert len(named) > 80
    assert [f"{file}::{name}" for name, file in named if name not in names_in(file)] == []
    assert PAGE.count("`test_") == len(named), "a test is named without its file"


def test_every_promise_has_a_proof_and_a_limit() -> None:
    """In that order, and nothing is promised beside them."""
    promises, _, hurt = PAGE.partition("## Where users were hurt")
    paragraphs = [part for part in re.split(r"\n\n+", promises) if part.startswith("**")]
    assert len(paragraphs) > 20
    for promise in paragraphs:
        kinds = re.findall(r"^(\*\*|- \w+:)", promise, re.MULTILINE)
        assert kinds == ["**", "- Proof:", "- Limit:"], promise
        assert LINK.search(promise), promise
    rows = [row for row in hurt.splitlines() if row.startswith("| ")][1:]
    assert len(rows) == 16
    assert [row for row in rows if not LINK.search(row)] == []


def test_every_hurt_that_has_its_own_test_is_listed() -> None:
    """The file of that name holds most of them."""
    listed = {name for name, file in LINK.findall(PAGE) if file == "tests/spawning/test_hurt.py"}
    assert listed == names_in("tests/spawning/test_hurt.py")
