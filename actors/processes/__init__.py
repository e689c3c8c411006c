"""Processes of ours: one way to start one, one way to end it with everything below it."""

from understudy.actors.processes.environment import PASSED_ON, child_environment
from understudy.actors.processes.launching import launch
from understudy.actors.processes.process import Process
from understudy.actors.processes.proof import Death, Proof

__all__ = ["PASSED_ON", "Death", "Process", "Proof", "child_environment", "launch"]
