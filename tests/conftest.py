"""How the suite runs: on which cores, and with Ctrl-C as a terminal has it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Named files and tests run in this process: workers would take longer to start than most of them to run."""
    named = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []
    files = [Path(name.split("::")[0]).is_file() for name in named]
    return 0 if files and all(files) else None


def pytest_configure() -> None:
    """Where the suite runs in the background Ctrl-C is ignored, and what a test starts would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
