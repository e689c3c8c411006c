"""Tools by which a model delegates: spawn, send, kill, and look after its sub-agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from understudy.actors import control
from understudy.actors.errors import NotSentError, SteerError, UnknownRunError
from understudy.actors.follow_ups import follow_up, reply_within
from understudy.actors.sending import is_sub_agent, leave_message
from understudy.actors.tools.outcome import MAX_CHARACTERS, ToolError
from understudy.actors.tools.tool import tool
from understudy.protocol import FollowUp, RunId, SessionKey, Spawn, SpawnRejected
from understudy.protocol.narrative import narrate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from understudy.actors.control import KillReport
    from understudy.actors.live_run import LiveRun
    from understudy.actors.session import SessionActor
    from understudy.actors.tools.context import ToolContext
    from understudy.protocol import SubAgentResult

GROUP = "subagents"
MOST_SECONDS = 600.0
"""The longest that one call waits for a reply."""


@tool(group=GROUP, paths=())
async def sessions_spawn(
    context: ToolContext,
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
    session = _session(context)
    spawn = spawn_of(task, label, agent, objective, artifact_refs, tool_groups, wait=wait, keep=keep)
    try:
        run = await session.spawn(spawn, announce=not wait, waited=wait, authority=context.authority)
    except SpawnRejected as refused:
        raise ToolError(f"not started ({refused.rejection.reason}): {refused.rejection.message}") from None
    if isinstance(run, str):
        raise ToolError(f"run {run} is doing this already")
    if not wait:
        return f"Started as run {run.packet.run_id}. Its result will be handed to you; go on meanwhile."
    return told(session, [await _awaited(session, run)])


@tool(group=GROUP, paths=())
async def sessions_send(
    context: ToolContext,
    session_key: str,
    message: str,
    wait_seconds: Annotated[float, Field(ge=0, le=MOST_SECONDS)] = 0.0,
) -> str:
    """Say more to a sub-agent that was kept; it remembers everything. Or leave a message for another session.

    With wait_seconds the answer is its reply, if it comes in time; else the reply is handed to you later.
    """
    session = _session(context)
    try:
        asked = FollowUp(session_key=SessionKey(session_key), message=message, wait=wait_seconds)
        if not is_sub_agent(session.backstage, asked.session_key):
            return await leave_message(session, asked)
        run = await follow_up(session, asked, announce=not wait_seconds, waited=bool(wait_seconds))
        result = await reply_within(session, run, wait_seconds) if wait_seconds else None
    except SpawnRejected as refused:
        raise ToolError(f"not sent ({refused.rejection.reason}): {refused.rejection.message}") from None
    except (UnknownRunError, NotSentError, ValueError) as error:
        raise ToolError(str(error)) from None
    if result is not None:
        return told(session, [result])
    return f"Sent, as run {run.packet.run_id}. The reply will be handed to you; go on meanwhile."


@tool(group=GROUP, paths=())
async def sessions_kill(context: ToolContext, run_id: str, reason: str = "no longer needed") -> str:
    """End one of your sub-agents and everything it has started."""
    session = _session(context)
    run = run_id_of(run_id)
    try:
        control.owned(session, run)
        report = await _killed(session, run, reason)
    except UnknownRunError as error:
        raise ToolError(str(error)) from None
    said = f"{len(report.killed)} ended, {len(report.already_ended)} had ended before."
    results = [result for result in session.owed if result.run_id == run]
    return f"{said}\n\n{told(session, results)}" if results else said


@tool(group=GROUP, paths=())
async def subagents(
    context: ToolContext,
    action: Literal["list", "wait", "steer"],
    run_ids: list[str] | None = None,
    message: str | None = None,
) -> str:
    """Look after your sub-agents: list those at work, wait for some (1 to 32), or steer one with a message."""
    session = _session(context)
    try:
        if action == "list":
            return listed(session)
        ids = [run_id_of(run_id) for run_id in run_ids or ()]
        if action == "wait":
            results = await control.wait(session, ids, as_answer=True)
            return told(session, list(results.values()))
        if len(ids) != 1 or message is None:
            raise ToolError("steer takes one run id and a message")
        control.steer(session, ids[0], message)
    except (UnknownRunError, NotSentError, SteerError, ValueError) as error:
        raise ToolError(str(error)) from None
    return f"Run {ids[0]} has been told."


SUB_AGENT_TOOLS = (sessions_spawn, sessions_send, sessions_kill, subagents)
"""Made once: an agent's own session comes with each call."""


async def _killed(session: SessionActor, run_id: RunId, reason: str) -> KillReport:
    """Ended, and its result is this call's answer; also one that had just ended, and was still on its way."""
    session.claim_answers([run_id])
    try:
        report = await control.kill(session, run_id, reason)
        coming = session.roster.unsettled.get(run_id)
        if coming is not None:
            coming.hurry()
            await control.settled(coming)
    except BaseException:
        session.disclaim_answers([run_id])
        raise
    return report


def _session(context: ToolContext) -> SessionActor:
    """The session the caller's children live under; made when the first one is wanted."""
    if context.own_session is None:
        raise ToolError("sub-agents are started inside a runtime, and this call is outside of one")
    return context.own_session()


async def _awaited(session: SessionActor, run: LiveRun) -> SubAgentResult:
    """The result as a tool's answer; where nobody is left to take that, it comes as any other."""
    try:
        return await run.settled
    except BaseException:
        session.disclaim_answers([run.packet.run_id])
        raise


def spawn_of(
    task: str,
    label: str | None,
    agent: str | None,
    objective: str | None,
    artifact_refs: Sequence[str] | None,
    tool_groups: Sequence[str] | None,
    *,
    wait: bool,
    keep: bool,
) -> Spawn:
    """What a model asked for."""
    return Spawn(
        task=task,
        label=label,
        runner=agent,
        objective=objective,
        artifact_refs=tuple(artifact_refs or ()),
        tool_groups=None if tool_groups is None else tuple(tool_groups),
        mode="wait" if wait else "background",
        cleanup="keep" if keep else "delete",
    )


def run_id_of(text: str) -> RunId:
    """A run's id as a model wrote it."""
    try:
        return RunId(text)
    except ValueError as error:
        raise ToolError(str(error)) from None


def told(session: SessionActor, results: Sequence[SubAgentResult]) -> str:
    """The notes of these results. A tool's answer has its own limit: a frame that was cut by it would not hold."""
    config = session.backstage.config
    prefix, narrative = config.result_tag_prefix, config.narrative_casting
    room = MAX_CHARACTERS // max(len(results), 1) - 200
    return "\n\n".join(narrate(each, tag_prefix=prefix, narrative=narrative, room=room) for each in results)


def listed(session: SessionActor) -> str:
    """The children that have not finished, a line each."""
    children = control.children(session)
    if not children:
        return "No sub-agent is at work."
    return "\n".join(
        f"{child.run_id} {child.label}: {child.state}, {child.age_ms / 1000:.0f} s, "
        f"{child.steps} steps, {child.usage.total_tokens} tokens"
        for child in children
    )
