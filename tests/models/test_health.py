"""A provider is degraded and recovers, each told once."""

from __future__ import annotations

from understudy.actors.models import ProviderError, ProviderHealth
from understudy.actors.testing import ManualClock

FAILED = ProviderError("scripted", kind="server")


class Told:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.told: list[str] = []
        self.health = ProviderHealth(
            self.clock,
            on_degraded=lambda: self.told.append("degraded"),
            on_recovered=lambda: self.told.append("recovered"),
        )


def test_three_failures_in_a_row_degrade_and_one_success_recovers() -> None:
    """Told once each, however many follow."""
    it = Told()
    for _ in range(2):
        it.health.attempted("a", FAILED)
    assert it.told == []
    for _ in range(5):
        it.health.attempted("a", FAILED)
    assert it.told == ["degraded"]
    assert it.health.degraded
    for _ in range(2):
        it.health.attempted("b", None)
    assert it.told == ["degraded", "recovered"]
    assert not it.health.degraded


def test_a_success_in_between_begins_the_count_again() -> None:
    """Two, a success, two: well."""
    it = Told()
    for error in (FAILED, FAILED, None, FAILED, FAILED):
        it.health.attempted("a", error)
    assert it.told == []


def test_failures_of_two_agents_within_a_minute_degrade() -> None:
    """Within: at sixty seconds still, after that no longer."""
    it = Told()
    it.health.attempted("a", FAILED)
    it.clock.advance(60)
    it.health.attempted("b", FAILED)
    assert it.told == ["degraded"]
    late = Told()
    late.health.attempted("a", FAILED)
    late.clock.advance(60.001)
    late.health.attempted("b", FAILED)
    assert late.told == []


def test_a_request_that_was_wrong_in_itself_does_not_count() -> None:
    """A full context says nothing about the provider."""
    it = Told()
    for agent in "abcd":
        it.health.attempted(agent, ProviderError("too long", kind="context_full"))
        it.health.attempted(agent, ProviderError("wrong", kind="bad_request"))
    assert it.told == []


def test_agents_of_long_ago_are_forgotten() -> None:
    """Thousands come and go."""
    it = Told()
    for number in range(100):
        it.health.attempted(f"agent {number}", FAILED)
        it.health.attempted("another", None)
        it.clock.advance(61)
    assert len(it.health._failed_at) <= 1
    assert it.told == []
