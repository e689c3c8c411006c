"""What is left of children that are over: nothing that grows with their number."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow  # five hundred children on a file; ten thousand with ./scripts/faults
def test_children_of_every_kind_leave_nothing_behind() -> None:
    """Threads, descriptors, memory, tasks and objects are back where they were; in a process of their own."""
    program = [sys.executable, str(Path(__file__).parent / "_soak.py"), "500", "50"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=110, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["lost"], told["twice"], told["leaked"]) == ([], [], []), done.stdout
    assert told["runs"] == 550
