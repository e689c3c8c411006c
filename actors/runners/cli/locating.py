"""Where a CLI is installed."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy.actors.runners.cli.profile import CliProfile

# A spawn asks every time; somebody who installs the CLI meanwhile waits no longer than this.
_BELIEVED_SECONDS = 10.0


class Program:
    """A command on the host's PATH, looked for now and then."""

    def __init__(self, profile: CliProfile) -> None:
        self._profile = profile
        self._found: str | None = None
        self._believed_until = float("-inf")

    def path(self, now: float) -> str | None:
        """Its absolute path, or None where it is not installed; ``now`` is any monotonic time in seconds."""
        if now >= self._believed_until:
            found = shutil.which(self._profile.command)
            self._found = None if found is None else os.path.abspath(found)  # noqa: PTH100 - a link stays one
            self._believed_until = now + _BELIEVED_SECONDS
        return self._found

    def missing(self) -> str:
        """That it is not there, and how to get it."""
        profile = self._profile
        how = f"install it with `{profile.install}`" if profile.install else "install it"
        return f"{profile.command!r} is not installed on this machine: {how}, or use another agent"
