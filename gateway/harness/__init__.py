"""Other people's agent programs: what their hooks and events tell, as sessions, lineage, transcripts and context."""

from understudy.gateway.harness.continuity import Continuity, NotTheirsError, Reaction
from understudy.gateway.harness.opencode import OpenCodeEvents
from understudy.gateway.harness.opencode_stream import OpenCodeFollower
from understudy.gateway.harness.reception import Reception
from understudy.gateway.harness.sighting import Harness, Sighting
from understudy.gateway.harness.transcripts import Homes

__all__ = [
    "Continuity",
    "Harness",
    "Homes",
    "NotTheirsError",
    "OpenCodeEvents",
    "OpenCodeFollower",
    "Reaction",
    "Reception",
    "Sighting",
]
