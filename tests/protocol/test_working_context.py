"""The ring buffer of recent files."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from understudy.protocol import WorkingContext

PATHS = st.text(max_size=8)


def test_the_last_touched_is_on_top_and_the_block_says_so() -> None:
    """The exact text of the block, as a model gets it."""
    context = WorkingContext(project_dir="/p").merge(["/p/a", "/p/b", "/p/c"])
    assert context.render() == ("[working-context]\nproject_dir: /p\nrecent_files:\n  - /p/c\n  - /p/b\n  - /p/a")


def test_nothing_touched_renders_nothing() -> None:
    """A session without sub-agents behaves exactly as before."""
    assert WorkingContext(project_dir="/p").render() is None


def test_what_changes_nothing_returns_the_same_instance() -> None:
    """Blank, control characters, line separators, lone surrogates, or already the head."""
    context = WorkingContext().add_recent_file("/a")
    for path in ("", "  ", "\t", "/b\n/c", "/b\x00", "/b\u2028", "\ud800", "/a"):
        assert context.add_recent_file(path) is context


def test_a_known_path_moves_to_the_head() -> None:
    """It is not listed twice."""
    assert WorkingContext().merge(["/a", "/b", "/a"]).recent_files == ("/a", "/b")


@given(st.lists(PATHS), st.integers(1, 12))
def test_it_stays_unique_bounded_and_in_touch_order(touched: list[str], most: int) -> None:
    """Whatever is touched: the newest distinct paths, newest first, no more than the limit."""
    context = WorkingContext(max_files=most).merge(touched)
    fit = [path for path in touched if WorkingContext().add_recent_file(path).recent_files]
    assert list(context.recent_files) == list(dict.fromkeys(reversed(fit)))[:most]


@given(st.lists(PATHS))
def test_a_path_cannot_forge_a_line_of_the_block(touched: list[str]) -> None:
    """One line a file, however it is named."""
    context = WorkingContext().merge(touched)
    block = context.render()
    assert block is None or len(block.splitlines()) == 2 + len(context.recent_files)
