"""Tools by which a model delegates: spawn, send, kill, and look after its sub-agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from understudy.actors import control
from understudy.actors.errors import SteerError, UnknownRunError
from understudy.actors.tools.outcome import MAX_CHARACTERS, ToolError
from understudy.actors.tools.tool import tool
from understudy.protocol import RunId, Spawn, SpawnRejected
from understudy.protocol.narrative import narrate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from understudy.actors.session import SessionActor
    from understudy.actors.tools.tool import Tool
    from understudy.protocol import SubAgentResult

GROUP = "subagents"


def sub_agent_tools(  # noqa: C901 - three small functions around one variable
    session_of: Callable[[], SessionActor],
) -> tuple[Tool, ...]:
    """The tools of one agent; ``session_of`` gives the session its children live under, once one is wanted."""

    @tool(group=GROUP, paths=())
    async def sessions_spawn(
        task: str,
        label: str | None = None,
        agent: str | None = None,
        objective: str | None = None,
        artifact_refs: list[str] | None = None,
        tool_groups: list[str] | None = None,
        wait: bool = False,
        keep: bool = False,
    ) -> str:
        """Give a task to a sub-agent. It works on its own and its result comes back to you.

        With wait the answer is its result; without, you go on and the result is handed to you later. With keep it
        can be followed up with sessions_send.
        """
        session = session_of()
        spawn = Spawn(
            task=task,
            label=label,
            runner=agent,
            objective=objective,
            artifact_refs=tuple(artifact_refs or ()),
            tool_groups=None if tool_groups is None else tuple(tool_groups),
            mode="wait" if wait else "background",
            cleanup="keep" if keep else "delete",
        )
        try:
            run = await session.spawn(spawn, announce=not wait, waited=wait)
        except SpawnRejected as refused:
            raise ToolError(f"not started ({refused.rejection.reason}): {refused.rejection.message}") from None
        if isinstance(run, str):
            raise ToolError(f"run {run} is doing this already")
        if not wait:
            return f"Started as run {run.packet.run_id}. Its result will be handed to you; go on meanwhile."
        return _told(session, [await run.settled])

    @tool(group=GROUP, paths=())
    async def sessions_kill(run_id: str, reason: str = "no longer needed") -> str:
        """End one of your sub-agents and everything it has started."""
        session = session_of()
        try:
            report = await control.kill(session, _run_id(run_id), reason)
        except UnknownRunError as error:
            raise ToolError(str(error)) from None
        return f"{len(report.killed)} ended, {len(report.already_ended)} had ended before."

    @tool(group=GROUP, paths=())
    async def subagents(
        action: Literal["list", "wait", "steer"],
        run_ids: list[str] | None = None,
        message: str | None = None,
    ) -> str:
        """Look after your sub-agents: list those at work, wait for some (1 to 32), or steer one with a message."""
        session = session_of()
        try:
            if action == "list":
                return _listed(session)
            ids = [_run_id(run_id) for run_id in run_ids or ()]
            if action == "wait":
                results = await control.wait(session, ids)
                return _told(session, list(results.values()))
            if len(ids) != 1 or message is None:
                raise ToolError("steer takes one run id and a message")
            control.steer(session, ids[0], message)
        except (UnknownRunError, SteerError, ValueError) as error:
            raise ToolError(str(error)) from None
        return f"Run {ids[0]} has been told."

    return sessions_spawn, sessions_kill, subagents


def _run_id(text: str) -> RunId:
    try:
        return RunId(text)
    except ValueError as error:
        raise ToolError(str(error)) from None


def _told(session: SessionActor, results: Sequence[SubAgentResult]) -> str:
    """The notes of these results. A tool's answer has its own limit: a frame that was cut by it would not hold."""
    config = session.backstage.config
    prefix, narrative = config.result_tag_prefix, config.narrative_casting
    room = MAX_CHARACTERS // max(len(results), 1) - 2
    return "\n\n".join(narrate(each, tag_prefix=prefix, narrative=narrative, room=room) for each in results)


def _listed(session: SessionActor) -> str:
    children = control.children(session)
    if not children:
        return "No sub-agent is at work."
    return "\n".join(
        f"{child.run_id} {child.label}: {child.state}, {child.age_ms / 1000:.0f} s, "
        f"{child.steps} steps, {child.usage.total_tokens} tokens"
        for child in children
    )
