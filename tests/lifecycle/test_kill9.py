"""kill -9 of the host at each commit point: twelve rounds here, a thousand with ./scripts/kill9."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
POINTS = {f"{commit}.{side}" for commit in ("accept", "terminal", "merge") for side in ("before", "after")}


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_and_nothing_is_merged_twice() -> None:
    """Each round's hosts are real processes; after the last restart every run has exactly one end."""
    rounds = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "kill9.py"), "--rounds", "12", "--seed", "1"],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert rounds.returncode == 0, rounds.stdout + rounds.stderr
    assert "0 rounds broken" in rounds.stdout
    kills = {point: int(count) for point, count in re.findall(r"^  (\S+) +(\d+)$", rounds.stdout, re.MULTILINE)}
    assert set(kills) == POINTS
    assert min(kills.values()) >= 3, "every point was struck"


@pytest.mark.slow
def test_the_rounds_would_notice(tmp_path: Path) -> None:
    """With delivery after a restart taken out, results are missing, and the line to see it again is printed."""
    program = tmp_path / "broken.py"
    program.write_text(
        "import asyncio, runpy, sys\n"
        "from understudy.actors import recovery\n"
        "recovery.deliver_waiting = lambda session: asyncio.sleep(0)\n"
        f"sys.argv = ['kill9', '--rounds', '1', '--seed', '4']\n"
        f"runpy.run_path({str(ROOT / 'scripts' / 'kill9.py')!r}, run_name='__main__')\n"
    )
    rounds = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=110, check=False)
    assert rounds.returncode == 1, rounds.stdout + rounds.stderr
    assert "seed 4: " in rounds.stdout
    assert "again: ./scripts/kill9 --rounds 1 --seed 4" in rounds.stdout
