"""pytest fixtures for supervision tests; loaded by pytest itself once understudy is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from understudy.actors import Runtime
    from understudy.actors.testing.manual_clock import ManualClock

# Imports stand inside the fixtures: pytest loads this module in every project that has understudy installed.


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that moves only by `advance`."""
    from understudy.actors.testing.manual_clock import ManualClock  # noqa: PLC0415

    return ManualClock()


@pytest.fixture
def runtime(manual_clock: ManualClock) -> Iterator[Runtime]:
    """A runtime that lives by `manual_clock`; closed after the test."""
    from understudy.actors import Runtime  # noqa: PLC0415

    with Runtime(clock=manual_clock) as running:
        yield running
