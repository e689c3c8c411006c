"""Recognising tool calls that a model printed as text instead of making them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# The spellings of common chat templates. Quoted in a code block they are talk about tools, not a call.
_MARKUP = re.compile(
    r"<\|?(?:tool_call|tool_calls|function_call|function_calls|invoke|tool_use)\b[^>]*>"
    r"|\[TOOL_CALLS\]|<\|python_tag\|>",
    re.IGNORECASE,
)
_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)


def printed_tool_call(text: str, tools: Iterable[str]) -> bool:
    """Whether ``text`` is, or ends in, a tool call that was printed."""
    if "<" not in text and "[" not in text and "{" not in text:
        return False  # nearly every answer: none of the spellings does without
    bare = _FENCE.sub("", text)
    if _MARKUP.search(bare):
        return True
    stripped = bare.strip()
    if not (stripped.startswith("{") and stripped.endswith("}")):
        return False
    return any(re.search(rf'"(?:name|tool|function)"\s*:\s*"{re.escape(name)}"', stripped) for name in tools)
