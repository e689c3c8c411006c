"""The CLIs that are known by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.actors.runners.cli.claude import CLAUDE
from understudy.actors.runners.cli.codex import CODEX
from understudy.actors.runners.cli.copilot import COPILOT
from understudy.actors.runners.cli.gemini import GEMINI
from understudy.actors.runners.cli.opencode import OPENCODE
from understudy.protocol import ConfigError
from understudy.protocol._explain import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from understudy.actors.runners.cli.profile import CliProfile

PROFILES: Mapping[str, CliProfile] = {profile.name: profile for profile in (CLAUDE, CODEX, GEMINI, OPENCODE, COPILOT)}


def known_profile(name: str) -> CliProfile:
    """The profile of that name."""
    profile = PROFILES.get(name)
    if profile is None:
        known = ", ".join(PROFILES)
        raise ConfigError(f"no CLI is known as {name!r}{nearest(name, PROFILES)}: use one of {known}, or a CliProfile")
    return profile
