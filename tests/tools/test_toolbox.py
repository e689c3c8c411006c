"""Groups only narrow, and a name nobody knows is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.actors.tools import FILE_TOOLS, Tool, Toolbox, ToolGroupError, ToolOutcome, shell_tool, tool
from understudy.actors.tools.toolbox import within

if TYPE_CHECKING:
    from .conftest import Call

GROUPS = ["files", "files:read", "files:write", "search", "shell", "subagents", "nowhere"]


def made(name: str, group: str) -> Tool:
    @tool(name=name, group=group)
    def nothing() -> None:
        """Nothing."""

    return nothing


BOX = Toolbox(*FILE_TOOLS, shell_tool(), made("sessions_spawn", "subagents"))


@given(st.lists(st.none() | st.lists(st.sampled_from(GROUPS), max_size=3), max_size=5))
def test_however_often_it_is_narrowed_a_child_has_nothing_its_parent_lacks(steps: list[list[str] | None]) -> None:
    """The same tools or fewer, never others; and each is of a group that was asked for."""
    box = BOX
    for groups in steps:
        try:
            child = box.narrow(groups)
        except ToolGroupError:
            assert any(not any(within(tool.group, group) for tool in box.tools) for group in groups or ())
            continue
        assert set(child.tools) <= set(box.tools)
        if groups is None:
            assert child is box
        else:
            assert all(any(within(tool.group, group) for group in groups) for tool in child.tools)
            assert child.narrow(groups).tools == child.tools
        box = child


def test_no_groups_means_no_tools() -> None:
    """An empty list is not the same as saying nothing."""
    assert BOX.narrow([]).specs() == ()


def test_a_group_that_is_not_there_is_named_with_those_that_are() -> None:
    """Also one that the grandparent has: it was narrowed away."""
    with pytest.raises(ToolGroupError) as refused:
        BOX.narrow(["files", "serch"])
    assert str(refused.value) == (
        "tool group 'serch' is not among this agent's (did you mean 'search'?): "
        "it has files:read, files:write, search, shell, subagents"
    )
    with pytest.raises(ToolGroupError, match=r"'shell' is not among this agent's: it has files:read$"):
        BOX.narrow(["files:read"]).narrow(["shell"])
    with pytest.raises(ToolGroupError, match="it has none: this agent has no tools"):
        BOX.narrow([]).narrow(["shell"])


def test_a_group_is_matched_by_whole_words() -> None:
    """``file`` is not ``files``."""
    with pytest.raises(ToolGroupError):
        BOX.narrow(["file"])
    assert BOX.narrow(["files"]).groups == ("files:read", "files:write")


def test_two_tools_of_one_name_are_refused() -> None:
    """A model could not tell them apart."""
    with pytest.raises(ValueError, match="two tools are called 'grep': rename one"):
        Toolbox(*FILE_TOOLS, made("grep", "search"))


def test_the_default_tools_have_no_shell() -> None:
    """It is given by the host, on purpose."""
    assert Toolbox(*FILE_TOOLS).get("shell") is None
    assert BOX.get("shell") is not None


def test_an_unknown_tool_is_answered_with_the_nearest_known_one(call: Call) -> None:
    """An outcome, not an exception; an endless name is cut."""
    assert call("file_reed", path="x") == ToolOutcome(
        "there is no tool 'file_reed' (did you mean 'file_read'?): "
        "the tools here are file_read, list, file_write, file_edit, grep",
        is_error=True,
    )
    assert len(call("x" * 10_000).text) < 300
