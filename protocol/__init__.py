"""What can be said: messages, results, configuration. Pure values, without I/O, clock or thread."""

from understudy.protocol.config import ConfigError, RuntimeConfig
from understudy.protocol.ending import EndReason, Failure
from understudy.protocol.events import Event
from understudy.protocol.files import Receipt, RecentFile
from understudy.protocol.ids import RunId, SessionKey
from understudy.protocol.messages import (
    FollowUp,
    InvalidMessageError,
    Kill,
    Message,
    Release,
    Steer,
    parse_message,
)
from understudy.protocol.result import SubAgentResult
from understudy.protocol.run_facts import IllegalFactsError, RunFacts
from understudy.protocol.spawn import Accepted, Budget, Rejection, Spawn, SpawnPacket, SpawnRejected
from understudy.protocol.usage import Usage
from understudy.protocol.working_context import WorkingContext

__all__ = [
    "Accepted",
    "Budget",
    "ConfigError",
    "EndReason",
    "Event",
    "Failure",
    "FollowUp",
    "IllegalFactsError",
    "InvalidMessageError",
    "Kill",
    "Message",
    "Receipt",
    "RecentFile",
    "Rejection",
    "Release",
    "RunFacts",
    "RunId",
    "RuntimeConfig",
    "SessionKey",
    "Spawn",
    "SpawnPacket",
    "SpawnRejected",
    "Steer",
    "SubAgentResult",
    "Usage",
    "WorkingContext",
    "parse_message",
]
