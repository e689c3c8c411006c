"""Tools by which a model delegates: spawn, send, kill, and look after its sub-agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from understudy.actors import control
from understudy.actors.errors import SteerError, UnknownRunError
from understudy.actors.tools.outcome import ToolError
from understudy.actors.tools.tool import tool
from understudy.protocol import RunId, Spawn, SpawnRejected
from understudy.protocol.narrative import narrate

if TYPE_CHECKING:
    from collections.abc import Callable

    from understudy.actors.live_run import LiveRun
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
        return _told(session, await _awaited(run))

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
                results = await _results(session, ids)
                return "\n\n".join(_told(session, result) for result in results.values())
            if len(ids) != 1 or message is None:
                raise ToolError("steer takes one run id and a message")
            control.steer(session, ids[0], message)
        except (UnknownRunError, SteerError, ValueError) as error:
            raise ToolError(str(error)) from None
        return f"Run {ids[0]} has been told."

    return sessions_spawn, sessions_kill, subagents


async def _awaited(run: LiveRun) -> SubAgentResult:
    """The result as a tool's answer; where nobody is left to take that, it comes as any other."""
    run.waited = True
    try:
        return await run.settled
    except BaseException:
        run.waited = False
        raise


async def _results(session: SessionActor, ids: list[RunId]) -> dict[RunId, SubAgentResult]:
    """What these runs ended with, or end with; each is the answer of the tool that waits, and is not told again."""
    for run_id in ids:
        control.owned(session, run_id)  # of others nothing is told
    runs = session.backstage.store.runs
    # Not `control.wait` for these: it waits for the merge, and the merge for the tools to come back.
    there = {run_id: result for run_id in ids if (result := runs.result(run_id)) is not None}
    missing = [run_id for run_id in ids if run_id not in there]
    if ids and not missing:
        return there
    waited = [run for run in map(session.backstage.live.get, missing) if run is not None and run.session is session]
    for run in waited:
        run.waited = True
    try:
        later = await control.wait(session, missing)
    except BaseException:
        for run in waited:
            run.waited = False
        raise
    everything = there | later
    return {run_id: everything[run_id] for run_id in ids if run_id in everything}


def _run_id(text: str) -> RunId:
    try:
        return RunId(text)
    except ValueError as error:
        raise ToolError(str(error)) from None


def _told(session: SessionActor, result: SubAgentResult) -> str:
    return narrate(result, tag_prefix=session.backstage.config.result_tag_prefix)


def _listed(session: SessionActor) -> str:
    children = control.children(session)
    if not children:
        return "No sub-agent is at work."
    return "\n".join(
        f"{child.run_id} {child.label}: {child.state}, {child.age_ms / 1000:.0f} s, "
        f"{child.steps} steps, {child.usage.total_tokens} tokens"
        for child in children
    )
