"""What people see fits their terminal, and is theirs to steer alone."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING

import pytest
from _program import run_of
from _scene import a_host_at_work, elsewhere  # noqa: F401 - fixtures
from _stage import MAIN

if TYPE_CHECKING:
    from pathlib import Path

    from understudy.actors import Runtime

WIDTH = 80
SEVERAL = """
import shlex, sys
from understudy.gateway.cli.app import app
for line in sys.argv[1:]:
    app(shlex.split(line), standalone_mode=False)
"""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def in_a_terminal(folder: Path, *commands: str) -> str:
    """What several commands print in a terminal, one process for all of them."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, WIDTH, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    for name in ("NO_COLOR", "COLUMNS"):
        environment.pop(name, None)
    with subprocess.Popen(
        [sys.executable, "-c", SEVERAL, *commands], cwd=folder, env=environment, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        said = b""
        while chunk := _read(ours):
            said += chunk
    os.close(ours)
    assert process.returncode == 0, said
    return said.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:
        return b""  # how Linux says that the other side is closed


@pytest.mark.slow
def test_everything_fits_into_eighty_columns(host: Runtime, tmp_path: Path) -> None:
    """Coloured, nothing cut but labels, and no escape but a colour. Slow: it starts a Python in a terminal."""
    run_id = run_of(host, "reader")
    said = in_a_terminal(
        tmp_path, "runs", f"tree {MAIN}", f"show {run_id}", "search loader", "config show", "dead-letters", "tree"
    )
    plain = COLOUR.sub("", said)
    assert plain != said
    assert "\x1b" not in plain
    # Paths are left whole, for copying.
    assert max(len(line) for line in plain.splitlines() if str(tmp_path) not in line) <= WIDTH
    assert run_id in plain
    assert "[red]boss[/red]" in plain
    assert r"\x1b[31mred\x1b[0m [bold]not bold[/bold]\x07 \u202e" in plain
