"""A model as a sub-agent: the turn loop over the child's own history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.actors.tools import FILE_TOOLS, Toolbox
from understudy.actors.tools.context import ToolContext
from understudy.actors.tools.subagents import GROUP, sub_agent_tools
from understudy.actors.turns.compaction import Window
from understudy.actors.turns.history import closed
from understudy.actors.turns.loop import Means, TurnLoop
from understudy.protocol.model import Turn
from understudy.protocol.prompt import brief, system_prompt
from understudy.protocol.runner import Said

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from understudy.actors.runners.contract import RunContext
    from understudy.actors.tools import Tool
    from understudy.actors.turns.loop import Approve
    from understudy.protocol import SpawnPacket
    from understudy.protocol.model import Model
    from understudy.protocol.runner import RunnerEvent


class ModelRunner:
    """Runs ``model`` with ``tools``; ``system`` is what the host says to every agent of this kind.

    The same runner serves as the mind of a session (``session.prompt``) and of its sub-agents. ``approve`` is asked
    before each call of a tool that needs approval.

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
    ) -> None:
        self.model = model
        self.toolbox = Toolbox(*(FILE_TOOLS if tools is None else tools))
        self.system = system
        self.approve = approve

    async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        """The child's turns, from where its history stands."""
        # A leaf has no tools to spawn with, whatever its groups say.
        tools = () if packet.is_leaf else sub_agent_tools(context.own_session)
        groups = packet.tool_groups
        if groups is not None and packet.is_leaf:
            groups = tuple(group for group in groups if group != GROUP)
        toolbox = Toolbox(*self.toolbox.tools, *tools).narrow(groups)
        means = Means(
            model=self.model,
            toolbox=toolbox,
            tools=ToolContext(packet.cwd, packet.workspace_dir, context.backstage.clock, context.blocking),
            clock=context.backstage.clock,
            max_steps=packet.max_steps,
            window=Window(context.backstage.config, context.backstage.estimator, pinned=1),
            system=system_prompt(packet, own=self.system),
            model_name=packet.model,
            deadline=context.deadline,
            approve=self.approve,
            on_attempt=context.attempted,
        )
        history, made_up = closed(context.history)
        for turn in made_up:
            yield Said(turn)
        # The first turn is the bare task, as it is stored; the model gets the whole brief.
        history[0] = Turn("user", brief(packet))
        yield await TurnLoop(means, context).run(history)
