"""Other people's agent programs: what their hooks and events tell, as sessions, lineage, transcripts and context."""

from understudy.gateway.harness.continuity import Continuity, Reaction
from understudy.gateway.harness.opencode import OpenCodeEvents
from understudy.gateway.harness.sighting import Harness, Sighting

__all__ = ["Continuity", "Harness", "OpenCodeEvents", "Reaction", "Sighting"]
