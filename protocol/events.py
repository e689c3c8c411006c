"""What the runtime tells the world while it works."""

from __future__ import annotations

from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

from understudy.protocol._value import value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from understudy.protocol.ids import RunId, SessionKey

EventName = Literal[
    "session:sub_agent_spawn_prepared",
    "session:sub_agent_spawn_queued",
    "session:sub_agent_spawn_rejected",
    "session:sub_agent_spawned",
    "session:sub_agent_started",
    "session:sub_agent_turn",
    "session:sub_agent_progress",
    "session:sub_agent_result_condensed",
    "session:sub_agent_completed",
    "session:sub_agent_lifecycle_ended",
    "session:sub_agent_delivered",
    "session:sub_agent_dead_lettered",
    "session:sub_agent_dead_letter_delivered",
    "session:sub_agent_archived",
    "session:sub_agent_provider_degraded",
    "session:sub_agent_provider_recovered",
    "session:sub_agent_ghost_suspected",
    "session:sub_agent_process_ended",
]

EventValue: TypeAlias = str | int | float | bool | None


@value
class Event:
    """Something that happened to a run; ``data`` holds what is particular to the name."""

    name: EventName
    at: int
    session_key: SessionKey
    run_id: RunId | None = None
    parent_run_id: RunId | None = None
    depth: int = 0
    data: Mapping[str, EventValue] = field(default_factory=lambda: MappingProxyType({}))
