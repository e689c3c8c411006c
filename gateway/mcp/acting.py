"""Tools by which another program's model delegates: what the runtime's own models have, for one that runs elsewhere.

A result cannot be handed to such a model: it asks. So nothing here waits longer than clients do for an answer.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationError

from understudy.actors import control
from understudy.actors.errors import (
    NotSentError,
    SessionBusy,
    SessionClosedError,
    SteerError,
    UnknownRunError,
)
from understudy.actors.faces import AsyncSession
from understudy.actors.follow_ups import follow_up, reply_within
from understudy.actors.sending import is_sub_agent, leave_message
from understudy.actors.tools.outcome import ToolError
from understudy.actors.tools.subagents import GROUP, listed, run_id_of, spawn_of, told
from understudy.actors.tools.tool import tool
from understudy.gateway.mcp.caller import CallContext
from understudy.protocol import FollowUp, SessionKey, SpawnRejected
from understudy.protocol._explain import explain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from understudy.actors.session import SessionActor
    from understudy.actors.tools.context import ToolContext
    from understudy.protocol import RunId

LONGEST_WAIT = 50.0
"""Seconds that one call waits: less than a request may take, and than the most impatient clients allow."""
REFUSED = NotSentError, SessionBusy, SessionClosedError, SteerError, UnknownRunError
"""What a session says no with."""


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
    """Give a task to a sub-agent. It works on its own; its result is yours to ask for.

    With wait the answer is its result, if that comes within 50 seconds; without, you go on and ask later with
    subagents, action wait. With keep it can be followed up with sessions_send.
    """
    session = _session(context)
    with _in_a_sentence("started"):
        spawn = spawn_of(task, label, agent, objective, artifact_refs, tool_groups, wait=wait, keep=keep)
        run = await session.spawn(spawn)
    assert not isinstance(run, str), "only a spawn with an idempotency key can repeat an earlier one"
    name = run.packet.run_id
    return await _waited(session, [name]) if wait else f"Started as run {name}. {_later(name)}"


@tool(group=GROUP, paths=())
async def sessions_send(
    context: ToolContext,
    session_key: str,
    message: str,
    wait_seconds: Annotated[float, Field(ge=0, le=LONGEST_WAIT)] = 0.0,
) -> str:
    """Say more to a sub-agent that was kept; it remembers everything. Or leave a message for another session.

    With wait_seconds the answer is its reply, if it comes in time; else ask for it with subagents, action wait.
    """
    session = _session(context)
    with _in_a_sentence("sent"):
        asked = FollowUp(session_key=SessionKey(session_key), message=message, wait=wait_seconds)
        _refuse_strangers(context, asked.session_key)
        if not is_sub_agent(session.backstage, asked.session_key):
            return await leave_message(session, asked)
        run = await follow_up(session, asked)
        result = await reply_within(session, run, wait_seconds) if wait_seconds else None
    name = run.packet.run_id
    return f"Sent, as run {name}. {_later(name)}" if result is None else told(session, [result])


@tool(group=GROUP, paths=())
async def subagents(
    context: ToolContext,
    action: Literal["list", "wait", "steer", "kill"],
    run_ids: list[str] | None = None,
    message: str | None = None,
) -> str:
    """Look after your sub-agents: list those at work, wait for some (1 to 32), steer one with a message, or kill one.

    A wait ends after 50 seconds, and tells who is still at work. A kill ends everything that one has started, too.
    """
    session = _session(context)
    if action == "list":
        return listed(session)
    with _in_a_sentence("done"):
        names = [run_id_of(run_id) for run_id in run_ids or ()]
        if action == "wait":
            return await _waited(session, names)
        if len(names) != 1:
            raise ToolError(f"{action} takes one run id")
        if action == "kill":
            report = await control.kill(session, names[0], message or "no longer needed")
            return f"{len(report.killed)} ended, {len(report.already_ended)} had ended before."
        if message is None:
            raise ToolError("steer takes a message")
        control.steer(session, names[0], message)
    return f"Run {names[0]} has been told."


def _refuse_strangers(context: ToolContext, key: SessionKey) -> None:
    """What is another agent's answers like what is not there, wherever it is not to be made."""
    assert isinstance(context, CallContext)
    shelf, caller = context.caller.shelf, context.caller
    if caller.session(key) is None and not (context.may_make and shelf.sessions.get(key) is None):
        raise UnknownRunError(f"session {key!r} is not one that you can send to")


def _session(context: ToolContext) -> SessionActor:
    assert context.own_session is not None, "it is opened before a tool acts"
    return context.own_session()


@contextlib.contextmanager
def _in_a_sentence(what: str) -> Iterator[None]:
    """Whatever a session says no with, as the model reads it."""
    try:
        yield
    except SpawnRejected as refused:
        raise ToolError(f"not {what} ({refused.rejection.reason}): {refused.rejection.message}") from None
    except ValidationError as error:
        raise ToolError(f"not {what}: {explain(error)}") from None
    except (*REFUSED, ValueError) as error:
        raise ToolError(f"not {what}: {error}") from None


async def _waited(session: SessionActor, names: list[RunId]) -> str:
    """What these runs came to, as far as they are done in time; the others go on."""
    results = await AsyncSession(session).wait(names, timeout=LONGEST_WAIT)
    words = [told(session, list(results.values()))] if results else []
    missing = [name for name in names if name not in results]
    if missing:
        words.append(f"Still at work: {', '.join(missing)}. Wait again, or go on and ask later.")
    return "\n\n".join(words)


def _later(name: RunId) -> str:
    return f'Go on meanwhile, and ask for its result with subagents: action "wait", run_ids ["{name}"].'
