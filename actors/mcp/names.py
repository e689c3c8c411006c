"""Names that a wire format takes, made of names that anybody may have chosen."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from understudy.protocol.authority import within

if TYPE_CHECKING:
    from collections.abc import Container

GROUP = "mcp"
"""The group of all MCP tools; those of one server are ``mcp:<server>``."""

_LONGEST_TOOL = 64
# Of which a server's own name takes at most so much, that there is room for its tools' names.
_LONGEST_SERVER = 24
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")


def server_name(given: str, taken: Container[str]) -> str:
    """A server's name as groups and tools show it; another than those that are taken."""
    return _fitted(_FOREIGN.sub("_", given), given, _LONGEST_SERVER, taken)


def tool_name(server: str, given: str, taken: Container[str]) -> str:
    """``mcp__<server>__<tool>``, within 64 letters, digits, ``_`` and ``-``; another than those that are taken."""
    return _fitted(f"mcp__{server}__{_FOREIGN.sub('_', given)}", given, _LONGEST_TOOL, taken)


def is_mcp(group: str) -> bool:
    """Whether a tool group is about MCP servers; which there are is known only when the child starts."""
    return within(group, GROUP)


def _fitted(name: str, given: str, longest: int, taken: Container[str]) -> str:
    """``name``, or as much of it as fits with a mark made from what was given: the same one at every start."""
    if name and len(name) <= longest and name not in taken:
        return name
    mark = hashlib.sha256(given.encode(errors="surrogatepass")).hexdigest()[:6]
    return f"{name[: longest - len(mark) - 1]}_{mark}"
