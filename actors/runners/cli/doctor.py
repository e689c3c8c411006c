"""Which agent CLIs this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from understudy.actors.processes import child_environment
from understudy.actors.runners.cli.profiles import PROFILES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from understudy.actors.runners.cli.profile import CliProfile

_PATIENCE_SECONDS = 20.0
_LONGEST_VERSION = 80


@dataclass(frozen=True, slots=True)
class CliReport:
    """One CLI: where it is and which, or how to get it."""

    name: str
    path: str | None
    version: str | None
    """What it says about itself; None where it is not installed, or does not start."""
    install: str
    credentials: tuple[str, ...]
    """Those of its usual variables that are set here, by name."""

    @property
    def installed(self) -> bool:
        """Whether it is there and starts."""
        return self.version is not None


def inspect_clis(profiles: Iterable[CliProfile] = tuple(PROFILES.values())) -> list[CliReport]:
    """Look for each CLI and ask it for its version. Blocks: it starts each once."""
    return [_inspect(profile) for profile in profiles]


def _inspect(profile: CliProfile) -> CliReport:
    path = shutil.which(profile.command)
    version = None if path is None else _version(path)
    set_here = tuple(name for name in profile.credentials if os.environ.get(name))
    return CliReport(profile.name, path, version, profile.install, set_here)


def _version(path: str) -> str | None:
    try:
        asked = subprocess.run(  # noqa: S603 - a program the host has installed, with nothing of ours in it
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=child_environment(),
            timeout=_PATIENCE_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = asked.stdout.decode(errors="replace").strip().splitlines()
    return lines[0].strip()[:_LONGEST_VERSION] if lines else ""
