"""From what was asked to what the child gets: every default resolved, nothing that the parent did not have."""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.actors.tools.toolbox import within
from understudy.actors.tree import run_budget
from understudy.protocol import Rejection, SessionKey, SpawnPacket

if TYPE_CHECKING:
    from understudy.actors.session import SessionActor
    from understudy.protocol import Spawn

_AS_ASKED = (
    *("objective", "artifact_refs", "domain_knowledge", "expected_outputs", "env", "model", "cleanup", "spec_id"),
    "graph",
)
"""Fields that a packet takes from the spawn as they are."""

_LONGEST_LABEL = 60
# A key is at most 200 characters; an agent's name may be longer than what is left of them.
_LONGEST_AGENT = 80
_NOT_IN_A_KEY = re.compile(r"[^A-Za-z0-9._@+-]")


def assemble(spawn: Spawn, session: SessionActor, *, now: int) -> SpawnPacket | Rejection:
    """The packet, or why there cannot be one."""
    backstage, place = session.backstage, session.place
    config, run_id = backstage.config, backstage.next_run_id()
    cwd = place.cwd if spawn.cwd is None else os.path.realpath(Path(place.cwd, spawn.cwd))
    if spawn.cwd is not None and session.owner is not None and not session.owner.may_touch(cwd):
        return Rejection(
            reason="not_allowed",
            message=f"cwd {spawn.cwd!r} is outside of what this agent may use: choose a folder below {place.cwd!r}",
            current=spawn.cwd,
            limit=place.cwd,
        )
    max_steps = spawn.max_steps or config.max_steps
    timeout = min(spawn.timeout_ms or max_steps * config.per_step_timeout_ms, config.max_run_timeout_ms)
    owner = session.owner
    asked = spawn.model_fields_set
    # What is left out of a packet has the packet's own default: validating it again would cost more than the spawn.
    return SpawnPacket(
        run_id=run_id,
        session_key=SessionKey.made(f"{session.child_prefix}{run_id}"),
        parent_session_key=session.key,
        parent_run_id=None if owner is None else owner.packet.run_id,
        root_session_key=session.root_key,
        agent_id=place.agent_id,
        depth=session.depth + 1,
        max_depth=config.max_spawn_depth,
        task=spawn.task,
        label=spawn.label or _label(spawn.task),
        runner=spawn.runner or place.runner,
        tool_groups=spawn.tool_groups if owner is None else _narrowed(spawn.tool_groups, owner.packet.tool_groups),
        workspace_dir=place.workspace_dir,
        cwd=cwd,
        max_steps=max_steps,
        deadline_at=now + timeout,
        timeout_ms=timeout,
        idle_timeout_ms=spawn.idle_timeout_ms or config.idle_timeout_ms,
        first_token_timeout_ms=spawn.first_token_timeout_ms or config.first_token_timeout_ms,
        budget=run_budget(spawn.budget, config),
        restart=spawn.restart or config.restart_policy,
        graph_shared_dir=None if spawn.graph is None else backstage.graph_dir(spawn.graph.graph_id),
        **({} if asked.isdisjoint(_AS_ASKED) else {name: getattr(spawn, name) for name in _AS_ASKED if name in asked}),
    )


def child_prefix(agent_id: str) -> str:
    """What the keys of an agent's sub-agents begin with. Lineage is recorded, never read off this."""
    return f"agent:{_NOT_IN_A_KEY.sub('-', agent_id[:_LONGEST_AGENT])}:subagent:"


def _label(task: str) -> str:
    """The task's first words, on one line; a task of invisible characters alone has none."""
    words = " ".join("".join(c if c.isprintable() else " " for c in task[: 4 * _LONGEST_LABEL]).split())
    return words or "untitled" if len(words) <= _LONGEST_LABEL else f"{words[: _LONGEST_LABEL - 1]}…"


def _narrowed(asked: tuple[str, ...] | None, parents: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Groups only ever narrow: the child's are the parent's, or fewer."""
    if asked is None or parents is None:
        return parents if asked is None else asked
    # ``mcp:docs`` of a parent's ``mcp`` is fewer; of ``mcp``, where the parent has ``mcp:docs``, that one is left.
    kept = [group for group in asked if any(within(group, had) for had in parents)]
    return tuple(dict.fromkeys(kept + [had for had in parents if any(within(had, group) for group in asked)]))
