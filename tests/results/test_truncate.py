"""One truncation: head, tail and the exact count between them, whatever it is measured by."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.protocol.condense import condense, fits
from understudy.protocol.framing import frame
from understudy.protocol.tokens import estimate_tokens
from understudy.protocol.truncate import note, truncate

OMITTED = re.compile(r"\n\[… (\d+) characters omitted …\]\n")


def in_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def uneven(text: str) -> int:
    """Some characters count a hundred times as much as others."""
    return sum(100 if character > "\x7f" else 1 for character in text)


def parts(short: str) -> tuple[str, int, str]:
    """Head, omitted count and tail."""
    (found,) = OMITTED.finditer(short)
    return short[: found.start()], int(found[1]), short[found.end() :]


@given(
    st.text(st.sampled_from("ab ß漢\n\ud83d\ude00"), max_size=3_000),
    st.integers(60, 2_000),
    st.sampled_from([len, in_bytes, uneven, estimate_tokens]),
)
def test_what_is_shown_and_what_is_counted_add_up(text: str, most: int, measure: object) -> None:
    """It fits, both ends are the text's own, and nothing is counted twice or forgotten."""
    assert callable(measure)
    short = truncate(text, most, measure=measure)
    if measure(text) <= most:
        assert short is text
        return
    head, omitted, tail = parts(short)
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + omitted + len(tail) == len(text)
    # Only where the note itself is all that is left may it be more.
    assert measure(short) <= most or not head + tail


@pytest.mark.parametrize("cut", range(40, 60))
def test_a_pair_of_surrogates_is_never_halved(cut: int) -> None:
    """A text that came as UTF-16 halves keeps its pairs, so that joining them still works."""
    text = "\ud83d\ude00" * 50
    head, _, tail = parts(truncate(text, cut + len(note(100))))
    for part in (head, tail):
        assert part.encode("utf-16", "surrogatepass").decode("utf-16") == "😀" * (len(part) // 2)


def test_the_tail_is_two_fifths() -> None:
    """The conclusion stands at the end."""
    head, _, tail = parts(truncate("h" * 5_000 + "t" * 5_000, 1_000))
    assert len(head) / len(tail) == pytest.approx(1.5, abs=0.01)


def test_nearly_all_of_the_room_is_used() -> None:
    """A search that stops too early would throw away what there is room for."""
    for measure in (in_bytes, estimate_tokens):
        assert measure(truncate("wörter " * 5_000, 2_000, measure=measure)) >= 1_900


def test_a_large_text_is_measured_once_as_a_whole() -> None:
    """After that only what might be shown is: ten megabytes cost little more than looking at them."""
    seen: list[int] = []

    def measure(text: str) -> int:
        seen.append(len(text))
        return estimate_tokens(text)

    truncate("x" * 10_000_000, 4_000, measure=measure)
    assert seen[0] == 10_000_000
    assert sum(seen[1:]) < 200_000


def test_ten_megabytes_that_count_unevenly_are_found_a_fit_within_a_few_tries() -> None:
    """Dense where it is kept, thin where it is left out: the first guess is far off."""
    seen: list[int] = []

    def measure(text: str) -> int:
        seen.append(len(text))
        return text.count("d") * 50 + len(text) // 50

    text = "d" * 10_000 + "x" * 3_000_000 + "d" * 10_000
    assert measure(truncate(text, 4_000, measure=measure)) <= 4_000
    assert len(seen) < 30


@pytest.mark.parametrize("text", ["x" * 16_001, "\n" * 20_000 + "x", "a\n" * 9_000, "\ud800" * 20_000, "漢" * 20_000])
def test_a_condensed_output_fits_as_the_parent_reads_it(text: str) -> None:
    """The marks of its frame included: a thousand short lines are a thousand marks."""
    short, condensation = condense(text, 4_000, estimate_tokens)
    assert condensation.level == 3
    assert fits(short, 4_000, estimate_tokens)


@pytest.mark.parametrize("text", ["", "x" * 16_000, "line of some words\n" * 800])
def test_what_fits_passes_as_it_is(text: str) -> None:
    """Up to the very limit."""
    assert condense(text, 4_000, estimate_tokens)[0] is text
    assert estimate_tokens(frame(text)) <= 4_000 * 1.25


def test_an_estimator_that_finds_everything_too_long_still_leaves_a_word() -> None:
    """A result is never empty because of how it is counted."""
    short, condensation = condense("x" * 100, 100, lambda text: 10_000)
    assert (short.strip(), condensation.level) == ("[… 100 characters omitted …]", 3)
