"""``python -m understudy.gateway.demo``: runs the first act, lets it die, and runs the second."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from understudy.gateway.demo.acts import first_act, second_act
from understudy.gateway.demo.workers import write_project


def main() -> int:
    """The whole demo, in a temporary folder; or one act, in a process of its own."""
    if len(sys.argv) == 3:  # noqa: PLR2004 - an act and its folder
        act, folder = sys.argv[1], Path(sys.argv[2])
        if act == "second":
            return second_act(folder)
        first_act(folder)
        return 1  # it was to be killed
    with tempfile.TemporaryDirectory(prefix="understudy-demo-") as name:
        folder = Path(name)
        write_project(folder / "project")
        first, second = ([sys.executable, "-m", "understudy.gateway.demo", act, name] for act in ("first", "second"))
        ended = subprocess.run(first, check=False).returncode  # noqa: S603 - this very module
        if ended != -signal.SIGKILL:
            print(f"the first host should have been killed, and ended with {ended}", file=sys.stderr)
            return 1
        return subprocess.run(second, check=False).returncode  # noqa: S603 - this very module


if __name__ == "__main__":
    raise SystemExit(main())
