"""May this spawn in? One pure function, asked in a fixed order: depth, allow-list, budget, children, queue."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from understudy.protocol import Rejection

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from understudy.actors.tree import Tally
    from understudy.protocol import RuntimeConfig, Spawn

MOST_UNDELIVERED = 50
"""With so many results stuck, more children would only add to them."""


class Standing(NamedTuple):
    """Where a session stands at the moment of asking."""

    config: RuntimeConfig
    depth: int
    runner: str
    runners: Collection[str]
    tallies: tuple[Tally, ...]
    running: int
    running_in_total: int
    queued: int
    undelivered: int
    unavailable: Mapping[str, Callable[[], str | None]] = MappingProxyType({})
    """Of runners that cannot always be used: asks why not, or None where they can."""


def admit(spawn: Spawn, standing: Standing) -> Literal["start", "queue"] | Rejection:  # noqa: PLR0911 - a rule each
    """Start it, queue it, or refuse it with what to do instead."""
    config = standing.config
    if standing.depth + 1 >= config.max_spawn_depth:
        return Rejection(
            reason="depth_exceeded",
            message=f"depth {standing.depth} is the deepest of max_spawn_depth={config.max_spawn_depth}: "
            "this agent is a leaf, do the work here",
            current=standing.depth,
            limit=config.max_spawn_depth,
        )
    allowed = standing.runners if config.allow_agents is None else config.allow_agents
    if standing.runner not in allowed or standing.runner not in standing.runners:
        known = tuple(sorted(name for name in standing.runners if name in allowed))
        return Rejection(
            reason="not_allowed",
            message=f"agent {standing.runner!r} may not be spawned here: use {' or '.join(map(repr, known)) or 'none'}",
            current=standing.runner,
            limit=known,
        )
    ask = standing.unavailable.get(standing.runner)
    why = None if ask is None else ask()
    if why is not None:
        return Rejection(reason="not_allowed", message=why, current=standing.runner, limit=None)
    for tally in standing.tallies:
        spent = tally.spent()
        if spent is not None:
            amount, limit, unit = spent
            return Rejection(
                reason="budget_exceeded",
                message=f"{amount:g} of {limit:g} {unit} are used up: finish with what is there",
                current=amount,
                limit=limit,
            )
    if standing.undelivered >= MOST_UNDELIVERED:
        return Rejection(
            reason="undelivered_backlog",
            message=f"{standing.undelivered} results of this session could not be delivered: "
            "see its dead letters and replay them before spawning more",
            current=standing.undelivered,
            limit=MOST_UNDELIVERED,
        )
    if spawn.graph is not None:
        return "start"
    return _find_room(standing)


def _find_room(standing: Standing) -> Literal["start", "queue"] | Rejection:
    config = standing.config
    current, limit, of_whom = standing.running, config.max_children_per_agent, "this agent"
    if config.max_total_children is not None and standing.running_in_total >= config.max_total_children:
        current, limit, of_whom = standing.running_in_total, config.max_total_children, "this runtime"
    # First in, first out: nobody overtakes those who wait already.
    if current < limit and not standing.queued:
        return "start"
    if standing.queued < config.max_queued_per_agent:
        return "queue"
    if config.max_queued_per_agent:
        return Rejection(
            reason="queue_full",
            message=f"{standing.queued} spawns wait already: wait for a child to finish, or do the work here",
            current=standing.queued,
            limit=config.max_queued_per_agent,
        )
    return Rejection(
        reason="children_exceeded",
        message=f"{current} children of {of_whom} run already: wait for one of them, or do the work here",
        current=current,
        limit=limit,
    )
