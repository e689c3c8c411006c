"""The whole demo: the first act, its death, and the second, each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from understudy.gateway.demo.workers import write_project


def play() -> int:
    """Both acts, in a temporary folder; answers with the exit code."""
    with tempfile.TemporaryDirectory(prefix="understudy-demo-") as name:
        folder = Path(name)
        write_project(folder / "project")
        first, second = ([sys.executable, "-m", "understudy.gateway.demo", act, name] for act in ("first", "second"))
        ended = subprocess.run(first, check=False).returncode  # noqa: S603 - this very package
        if ended != -signal.SIGKILL:
            print(f"the first host should have been killed, and ended with {ended}", file=sys.stderr)
            return 1
        return subprocess.run(second, check=False).returncode  # noqa: S603 - this very package
