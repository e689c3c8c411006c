"""The reference is what the docstrings say, and the examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    "understudy." + ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for room in ("protocol", "persistence", "actors", "gateway")
    for file in sorted((ROOT / room).rglob("*.py"))
    if ">>> " in file.read_text()
]


@pytest.mark.slow
def test_the_page_is_up_to_date() -> None:
    """Slow: it imports every room in a Python of its own. `./scripts/reference` mends it."""
    run = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "reference.py"), "--check"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand, with what their module has."""
    monkeypatch.chdir(tmp_path)
    ran = doctest.testmod(importlib.import_module(name), optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert ran.attempted
    assert not ran.failed
