"""Agent CLIs as sub-agents: how each is run, and how its output is read."""

from understudy.actors.runners.cli.doctor import CliReport, inspect_clis
from understudy.actors.runners.cli.generic import FieldPaths, PlainText
from understudy.actors.runners.cli.profile import CliProfile
from understudy.actors.runners.cli.profiles import PROFILES
from understudy.actors.runners.cli.runner import CliRunner
from understudy.actors.runners.cli.settings import load_profiles
from understudy.actors.runners.cli.stream import Stream

__all__ = [
    "PROFILES",
    "CliProfile",
    "CliReport",
    "CliRunner",
    "FieldPaths",
    "PlainText",
    "Stream",
    "inspect_clis",
    "load_profiles",
]
