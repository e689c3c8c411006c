"""How the suite runs: on which cores, how far, the same each time, and with Ctrl-C as a terminal has it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from _extent import THOROUGH
from hypothesis import HealthCheck, settings

# Neither luck nor a busy machine decides over a run of the suite; a thorough one looks at what was not yet seen.
settings.register_profile(
    "suite", deadline=None, database=None, derandomize=not THOROUGH, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("suite"), max_examples=1_000, print_blob=True)
settings.load_profile("thorough" if THOROUGH else "suite")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Named files and tests run in this process: workers would take longer to start than most of them to run."""
    named = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []
    files = [Path(name.split("::")[0]).is_file() for name in named]
    return 0 if files and all(files) else None


@pytest.fixture(scope="session")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing in it."""
    return tmp_path_factory.mktemp("nothing")


def pytest_configure() -> None:
    """Where the suite runs in the background Ctrl-C is ignored, and what a test starts would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
