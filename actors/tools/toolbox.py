"""Named tools in groups: what an agent can do, and the most its children can."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from understudy.actors.tools.outcome import ToolOutcome
from understudy.protocol._explain import nearest
from understudy.protocol.authority import Authority, within

if TYPE_CHECKING:
    from collections.abc import Iterable

    from understudy.actors.tools.context import ToolContext
    from understudy.actors.tools.tool import Tool
    from understudy.protocol.model import JsonObject, ToolSpec
    from understudy.protocol.tokens import TokenEstimator


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
        self._specs = tuple(tool.spec for tool in tools)
        # What many children ask of the same box is worked out once.
        self._authority: Authority | None = None
        self._weighed: tuple[TokenEstimator, int] | None = None

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
        return self._specs

    def weigh(self, estimate: TokenEstimator) -> int:
        """About how many tokens the tools cost in each request."""
        if self._weighed is None or self._weighed[0] is not estimate:
            told = [(spec.name, spec.description, dict(spec.parameters)) for spec in self._specs]
            self._weighed = estimate, estimate(json.dumps(told, default=str))
        return self._weighed[1]

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
        return self.only(wanted)

    def only(self, groups: Iterable[str]) -> Toolbox:
        """The tools of these groups, as far as there are any."""
        wanted = list(groups)
        return Toolbox(*(tool for tool in self.tools if any(within(tool.group, group) for group in wanted)))

    def bounded(self, authority: Authority | None) -> Toolbox:
        """Only what ``authority`` has too, under its conditions; None is a host's, which has everything."""
        if authority is None:
            return self
        return Toolbox(
            *(
                replace(tool, approval=True) if tool.name in authority.ask_first else tool
                for tool in self.tools
                if tool.name in authority.tools
            )
        )

    @property
    def authority(self) -> Authority:
        """What whoever works with this box may hand down."""
        if self._authority is None:
            self._authority = Authority(tuple(self._tools), tuple(tool.name for tool in self.tools if tool.approval))
        return self._authority

    async def call(self, name: str, arguments: JsonObject, context: ToolContext) -> ToolOutcome:
        """Run the tool of this name; that there is none is an outcome too, naming the nearest there is."""
        tool = self.get(name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            message = f"there is no tool {name[:100]!r}{nearest(name[:100], self._tools)}: the tools here are {known}"
            return ToolOutcome(message, is_error=True)
        return await tool.call(arguments, context)
