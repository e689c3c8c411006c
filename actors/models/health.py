"""Whether a provider is well, told from how its calls end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from understudy.actors.clock import Clock
    from understudy.actors.models.errors import ProviderError

CONSECUTIVE_FAILURES = 3
FAILING_AGENTS = 2
WINDOW_SECONDS = 60.0


class ProviderHealth:
    """Degraded after three failures in a row, or failures of two agents within a minute; one success recovers.

    Calls back once for each change. Requests that were wrong in themselves do not count.
    """

    def __init__(self, clock: Clock, *, on_degraded: Callable[[], None], on_recovered: Callable[[], None]) -> None:
        self._clock = clock
        self._on_degraded = on_degraded
        self._on_recovered = on_recovered
        self._in_a_row = 0
        self._failed_at: dict[str, float] = {}
        self.degraded = False

    def attempted(self, agent: str, error: ProviderError | None) -> None:
        """An attempt of ``agent`` ended with this error, or well."""
        if error is None:
            self._succeeded()
        elif not error.is_the_requests_own:
            self._failed(agent)

    def _failed(self, agent: str) -> None:
        now = self._clock.monotonic()
        self._in_a_row += 1
        self._failed_at[agent] = now
        # Thousands of agents may come and go: only the last minute is kept.
        self._failed_at = {name: at for name, at in self._failed_at.items() if now - at <= WINDOW_SECONDS}
        ill = self._in_a_row >= CONSECUTIVE_FAILURES or len(self._failed_at) >= FAILING_AGENTS
        if ill and not self.degraded:
            self.degraded = True
            self._on_degraded()

    def _succeeded(self) -> None:
        self._in_a_row = 0
        self._failed_at.clear()
        if self.degraded:
            self.degraded = False
            self._on_recovered()
