"""For supervision tests of your own agents: the runtime's clock, model and commit points in your hand."""

from understudy.actors.testing.crash_point import CrashPoint, CrashPointError
from understudy.actors.testing.gate import Gate
from understudy.actors.testing.manual_clock import ClockStuckError, ManualClock
from understudy.actors.testing.probe import Probe
from understudy.actors.testing.scripted_model import ScriptedModel, ScriptExhaustedError
from understudy.actors.testing.scripted_runner import ScriptedRunner

__all__ = [
    "ClockStuckError",
    "CrashPoint",
    "CrashPointError",
    "Gate",
    "ManualClock",
    "Probe",
    "ScriptExhaustedError",
    "ScriptedModel",
    "ScriptedRunner",
]
