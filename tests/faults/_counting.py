"""A pytest plugin: how many runs were really accepted by the runtimes of these tests, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.actors import acceptance

if TYPE_CHECKING:
    import pytest

    from understudy.actors.live_run import LiveRun

_accepted = 0
_acknowledge = acceptance._acknowledge


def _counted(run: LiveRun) -> None:
    global _accepted  # noqa: PLW0603 - one count for the process
    _accepted += 1
    _acknowledge(run)


acceptance._acknowledge = _counted


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"{_accepted} runs accepted")
