"""Ids are well formed once they exist, and safe as file names."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from understudy.protocol import RunId, SessionKey

KEYS = st.from_regex(SessionKey.pattern, fullmatch=True)


@pytest.mark.parametrize("key", ["agent:atlas:main", "a", "x" * 200, "a.b_c@d+e-f", "7"])
def test_an_ordinary_key_is_taken_as_it_is(key: str) -> None:
    """It stays a string, equal to what was given."""
    assert SessionKey(key) == key


@pytest.mark.parametrize(
    "bad", ["", ".", "..", "../x", "a/b", "a\\b", "a b", "a\n", "\x00", "é", "x" * 201, ":a", None, 5]
)
def test_a_bad_key_is_refused_with_the_value_and_what_is_allowed(bad: object) -> None:
    """One sentence, with the value in it."""
    with pytest.raises(ValueError, match=r"session key .* is not allowed: use 1 to 200 letters") as caught:
        SessionKey(bad)
    assert repr(bad)[:20] in str(caught.value)


@given(KEYS)
def test_a_file_name_is_one_component_that_any_file_system_takes(key: str) -> None:
    """Never a separator, a dot name, a colon, or more than 255 bytes."""
    name = SessionKey(key).file_name
    assert name not in {".", ".."}
    assert not set(name) & set('/\\:*?"<>|\0')
    assert 0 < len(name.encode()) <= 250


@given(st.lists(KEYS, unique=True, max_size=20))
def test_different_keys_have_different_file_names(keys: list[str]) -> None:
    """Also the long ones, which are shortened."""
    assert len({SessionKey(key).file_name for key in keys}) == len(keys)


def test_long_keys_that_differ_at_the_end_stay_different() -> None:
    """A shortened name carries a digest of the whole."""
    one, two = (SessionKey("a:" * 99 + end) for end in "bc")
    assert one.file_name != two.file_name


def test_pydantic_validates_and_serialises_ids() -> None:
    """As a field they come in and go out as strings."""
    adapter = TypeAdapter(RunId)
    assert type(adapter.validate_python("r-1")) is RunId
    assert adapter.dump_json(RunId("r-1")) == b'"r-1"'
    with pytest.raises(ValidationError, match="run id 'R-1' is not allowed"):
        adapter.validate_python("R-1")
    assert pickle.loads(pickle.dumps(RunId("r-1"))) == "r-1"  # noqa: S301 - our own
