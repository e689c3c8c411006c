"""No text can steer a terminal."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from understudy.gateway.cli.harmless import harmless, one_line

ANYTHING = st.text(st.characters())


@given(ANYTHING)
def test_what_is_left_steers_nothing(text: str) -> None:
    """Lines and tabs stay; everything else is visible and can be encoded."""
    left = {unicodedata.category(character) for character in harmless(text) if character not in "\n\t"}
    assert not left & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    harmless(text).encode()


@given(ANYTHING)
def test_one_line_is_one_line(text: str) -> None:
    """By everybody's idea of a line."""
    assert len(one_line(text).splitlines()) <= 1
    assert "\t" not in one_line(text)


def test_plain_text_stays_as_it_is() -> None:
    """In every script, with its lines."""
    for text in ("grüße, 世界, 👍\n\tindented", "[bold]x[/bold]", ""):
        assert harmless(text) == text
    assert harmless("\x1b[2J\x9b1m\u2028") == r"\x1b[2J\x9b1m\u2028"
