"""Trying again, on the injected clock: later each time, when the provider says, and never past the deadline."""

from __future__ import annotations

from random import SystemRandom
from typing import TYPE_CHECKING

import tenacity

from understudy.actors.clock import sleep
from understudy.actors.models.errors import ProviderError
from understudy.protocol.model import UsageReport

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from random import Random

    from understudy.actors.clock import Clock
    from understudy.protocol.model import ModelEvent

MAX_ATTEMPTS = 5
BASE_SECONDS = 1.0
"""The first wait is at most this, the next at most twice as long, and so on."""
LONGEST_SECONDS = 60.0
PATIENCE_SECONDS = 300.0
"""Where there is no deadline: a provider that asks for a longer wait is not waited for. Somebody is waiting for us."""


class _Wait(tenacity.wait.wait_base):
    """Exponential with jitter, and never less than the provider asked for."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        longest = min(BASE_SECONDS * 2.0 ** (retry_state.attempt_number - 1), LONGEST_SECONDS)
        # Half of it is chance, so that children that failed together do not come back together.
        jittered = longest * self._random.uniform(0.5, 1.0)
        asked = _error(retry_state).retry_after_ms
        return jittered if asked is None else asked / 1000 + self._random.uniform(0.0, BASE_SECONDS)


class _TooLate(tenacity.stop.stop_base):
    """The next attempt would begin at the deadline or after it, or in a very long time.

    tenacity's own limit reads the machine's clock.
    """

    def __init__(self, clock: Clock, deadline: float | None) -> None:
        self._clock = clock
        self._deadline = deadline

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        wait = retry_state.upcoming_sleep
        if self._deadline is None:
            return wait > PATIENCE_SECONDS
        return self._clock.monotonic() + wait >= self._deadline


async def retrying(
    call: Callable[[], AsyncIterator[ModelEvent]],
    *,
    clock: Clock,
    deadline: float | None = None,
    max_attempts: int = MAX_ATTEMPTS,
    random: Random | None = None,
    on_attempt: Callable[[ProviderError | None], None] = lambda _error: None,
) -> AsyncGenerator[ModelEvent, None]:
    """The events of ``call``, called again while it fails in a way that may pass.

    Only until the first word or tool call: what has been given out cannot be taken back, so a failure after it is
    raised. A wait that would end at or after ``deadline`` (in the clock's monotonic seconds) is not begun; without one,
    a wait of more than `PATIENCE_SECONDS`. Usage of
    failed attempts is reported too. ``on_attempt`` hears of each attempt's error, or of its success as None.
    """
    spent: list[ModelEvent] = []
    stream = _Attempts(call, spent, on_attempt)
    failure: ProviderError | None = None
    try:
        try:
            try:
                await stream.begin()
            except ProviderError as error:
                if not error.retryable:
                    raise
                await _again(stream, error, clock, deadline, max_attempts, random or SystemRandom())
        except ProviderError as error:
            failure = error
        for event in spent:
            yield event
        if failure is not None:
            raise failure
        if stream.events is None:
            return
        try:
            async for event in stream.events:
                yield event
        except ProviderError as error:
            on_attempt(error)
            raise
        on_attempt(None)
    finally:
        await stream.close()


async def _again(
    stream: _Attempts,
    failed: ProviderError,
    clock: Clock,
    deadline: float | None,
    max_attempts: int,
    random: Random,
) -> None:
    """Go on after a first attempt that ``failed``. Only here: most calls go well, and a retry's state costs."""
    first: list[ProviderError] = [failed]

    async def attempt() -> None:
        if first:
            raise first.pop()  # it counts, and decides how long the first wait is
        await stream.begin()

    attempts = tenacity.AsyncRetrying(
        sleep=lambda seconds: sleep(clock, seconds),
        wait=_Wait(random),
        stop=tenacity.stop_any(tenacity.stop_after_attempt(max_attempts), _TooLate(clock, deadline)),
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, ProviderError) and error.retryable),
        reraise=True,
    )
    await attempts(attempt)


class _Attempts:
    """One stream after another, each up to its first word."""

    __slots__ = ("_call", "_on_attempt", "_spent", "events")

    def __init__(
        self,
        call: Callable[[], AsyncIterator[ModelEvent]],
        spent: list[ModelEvent],
        on_attempt: Callable[[ProviderError | None], None],
    ) -> None:
        self._call = call
        self._spent = spent
        self._on_attempt = on_attempt
        self.events: AsyncIterator[ModelEvent] | None = None
        """What is left of the stream that has begun; None when there is nothing."""

    async def begin(self) -> None:
        """Start a stream and wait for its first word, which goes to ``spent`` after any usage before it."""
        await self.close()
        self.events = self._call()
        try:
            async for event in self.events:
                self._spent.append(event)
                if not isinstance(event, UsageReport):
                    return
        except ProviderError as error:
            self._on_attempt(error)
            raise
        self.events = None
        self._on_attempt(None)

    async def close(self) -> None:
        events, self.events = self.events, None
        close = getattr(events, "aclose", None)  # any async iterator is a model's answer; generators can be closed
        if close is not None:
            await close()


def _error(retry_state: tenacity.RetryCallState) -> ProviderError:
    assert retry_state.outcome is not None
    error = retry_state.outcome.exception()
    assert isinstance(error, ProviderError), "only these are retried"
    return error
