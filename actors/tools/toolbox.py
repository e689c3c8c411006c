"""Named tools in groups: what an agent can do, and the most its children can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.actors.tools.outcome import ToolOutcome
from understudy.protocol._explain import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from understudy.actors.tools.context import ToolContext
    from understudy.actors.tools.tool import Tool
    from understudy.protocol.model import JsonObject, ToolSpec


class ToolGroupError(ValueError):
    """A group was named that this toolbox does not have."""


class Toolbox:
    """An immutable set of tools; a child's box is made by narrowing its parent's.

    Example:
        >>> from understudy.actors.tools import FILE_TOOLS
        >>> box = Toolbox(*FILE_TOOLS)
        >>> [spec.name for spec in box.narrow(["files:read"]).specs()]
        ['file_read', 'list']
    """

    def __init__(self, *tools: Tool) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ValueError(f"two tools are called {tool.name!r}: rename one with @tool(name=…)")
            self._tools[tool.name] = tool

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All of them, in the order they were given."""
        return tuple(self._tools.values())

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that have a tool here, in order."""
        return tuple(dict.fromkeys(tool.group for tool in self.tools))

    def get(self, name: str) -> Tool | None:
        """The tool of this name."""
        return self._tools.get(name)

    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as a model sees them."""
        return tuple(tool.spec for tool in self.tools)

    def narrow(self, groups: Iterable[str] | None) -> Toolbox:
        """Only the tools of these groups; None keeps all. ``files`` stands for ``files:read`` and ``files:write``.

        There is no way to name a tool that is not here: a child never gets what its parent lacks.
        """
        if groups is None:
            return self
        wanted = list(groups)
        for group in wanted:
            if not any(within(tool.group, group) for tool in self.tools):
                allowed = ", ".join(self.groups) or "none: this agent has no tools"
                raise ToolGroupError(
                    f"tool group {group!r} is not among this agent's{nearest(group, self.groups)}: it has {allowed}"
                )
        return Toolbox(*(tool for tool in self.tools if any(within(tool.group, group) for group in wanted)))

    async def call(self, name: str, arguments: JsonObject, context: ToolContext) -> ToolOutcome:
        """Run the tool of this name; that there is none is an outcome too, naming the nearest there is."""
        tool = self.get(name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            message = f"there is no tool {name[:100]!r}{nearest(name[:100], self._tools)}: the tools here are {known}"
            return ToolOutcome(message, is_error=True)
        return await tool.call(arguments, context)


def within(group: str, wanted: str) -> bool:
    """Whether ``wanted`` names this group: itself, or a group it is part of."""
    return group == wanted or group.startswith(f"{wanted}:")
