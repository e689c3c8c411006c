"""A model as a sub-agent: the turn loop over the child's own history."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from understudy.actors.mcp.names import is_mcp
from understudy.actors.mcp.servers import servers_of
from understudy.actors.tools import FILE_TOOLS, Toolbox
from understudy.actors.tools.context import ToolContext
from understudy.actors.tools.session_search import session_search
from understudy.actors.tools.subagents import SUB_AGENT_TOOLS
from understudy.actors.turns.compaction import Window
from understudy.actors.turns.history import closed
from understudy.actors.turns.loop import Means, TurnLoop
from understudy.protocol._explain import nearest
from understudy.protocol.authority import within
from understudy.protocol.domain_knowledge import marked_knowledge
from understudy.protocol.model import Turn
from understudy.protocol.prompt import brief, system_prompt
from understudy.protocol.runner import Said

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable

    from understudy.actors.runners.contract import RunContext
    from understudy.actors.tools import Tool
    from understudy.actors.turns.loop import Approve
    from understudy.protocol import Spawn, SpawnPacket
    from understudy.protocol.model import Model
    from understudy.protocol.runner import RunnerEvent

Extractor: TypeAlias = "Callable[[str | None], Iterable[str]]"
"""Takes a system prompt, gives the knowledge in it, item by item."""


class ModelRunner:
    """Runs ``model`` with ``tools``; ``system`` is what the host says to every agent of this kind.

    The same runner serves as the mind of a session (``session.prompt``) and of its sub-agents. ``approve`` is asked
    before each call of a tool that needs approval. ``domain_knowledge`` finds in ``system`` what every child is told;
    by default that is the section ``## Domain Knowledge``. Sub-agents also get the MCP servers that ``.mcp.json`` in
    their cwd names: all, none with ``mcp=False``, or those of ``mcp=("name", …)``.

    Example:
        >>> from understudy.actors.testing import ScriptedModel
        >>> runner = ModelRunner(ScriptedModel(["It is loaded by loader.py."]))
    """

    def __init__(
        self,
        model: Model,
        *,
        tools: Iterable[Tool] | None = None,
        system: str | None = None,
        approve: Approve | None = None,
        domain_knowledge: Extractor = marked_knowledge,
        mcp: bool | Collection[str] = True,
    ) -> None:
        if isinstance(mcp, str):
            raise TypeError(f"mcp={mcp!r} is one name: write mcp=({mcp!r},)")
        self.model = model
        self.toolbox = Toolbox(*(FILE_TOOLS if tools is None else tools), session_search)
        self.delegating = Toolbox(*self.toolbox.tools, *SUB_AGENT_TOOLS)
        """The same tools, and those to delegate with: for whoever is no leaf."""
        self.system = system
        self.approve = approve
        self.domain_knowledge = tuple(domain_knowledge(system))
        """What agents of this kind hand down to every child."""
        self.mcp = mcp

    def refusal(self, spawn: Spawn) -> str | None:
        """Why ``spawn`` cannot be taken: a tool group that its child could never have."""
        if spawn.tool_groups is None:
            return None
        groups = self.delegating.groups
        for asked in spawn.tool_groups:
            # Which MCP servers there are is known only once they run.
            if not is_mcp(asked) and not any(within(group, asked) for group in groups):
                known = ", ".join(map(repr, groups))
                return f"there is no tool group {asked!r}{nearest(asked, groups)}: choose from {known}"
        return None

    def _toolbox(self, packet: SpawnPacket) -> Toolbox:
        """What the child has: no more than its groups, and than whoever spawned it."""
        # A leaf has no tools to spawn with, whatever its groups say.
        toolbox = self.toolbox if packet.is_leaf else self.delegating
        if packet.tool_groups is not None:
            toolbox = toolbox.only(packet.tool_groups)
        return toolbox.bounded(packet.authority)

    async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        """The child's turns, from where its history stands."""
        toolbox = self._toolbox(packet)
        servers = servers_of(packet, context, allowed=self.mcp)
        try:
            if servers is not None:
                # The folder's own, given with it: narrowed by the groups, and by no parent's tools.
                toolbox = Toolbox(*toolbox.tools, *await servers.start(taken={tool.name for tool in toolbox.tools}))
            history, made_up = closed(context.history)
            for turn in made_up:
                yield Said(turn)
            # The first turn is the bare task, as it is stored; the model gets the whole brief. The packet's own task
            # is another one in a follow-up, where it stands at the end.
            told = brief(packet, task=history[0].text, own=self.system)
            history[0] = Turn("user", told if servers is None else told + servers.notice())
            yield await TurnLoop(self._means(packet, context, toolbox), context).run(history)
        except asyncio.CancelledError:
            if servers is not None:
                # Killed, out of time, or the host stops: nobody waits for a goodbye.
                servers.cut()
            raise
        finally:
            if servers is not None:
                await servers.close()

    def _means(self, packet: SpawnPacket, context: RunContext, toolbox: Toolbox) -> Means:
        clock = context.backstage.clock
        return Means(
            model=self.model,
            toolbox=toolbox,
            tools=ToolContext(
                packet.cwd,
                packet.workspace_dir,
                clock,
                context.blocking,
                context.own_session,
                toolbox.authority,
                search=context.searcher,
            ),
            clock=clock,
            max_steps=packet.max_steps,
            window=Window(context.backstage.config, context.backstage.estimator, pinned=1),
            system=system_prompt(packet, own=self.system, may_spawn=toolbox.get("sessions_spawn") is not None),
            model_name=packet.model,
            deadline=context.deadline,
            approve=self.approve,
            on_attempt=context.attempted,
        )
