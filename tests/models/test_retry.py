"""Trying again: on the clock, when asked, not for ever, and never after the first word."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from understudy.actors.models import OpenAIModel, ProviderError, retrying
from understudy.actors.testing import ManualClock, ScriptedModel
from understudy.protocol import Usage
from understudy.protocol.model import ModelRequest, TextDelta, ToolCall, Turn, UsageReport

from .server import Fail, ModelServer, Say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from understudy.actors.models.errors import ErrorKind
    from understudy.protocol.model import ModelEvent

REQUEST = ModelRequest((Turn("user", "hello"),))
USED = UsageReport(Usage(input_tokens=10, output_tokens=5))


def failure(kind: ErrorKind = "server", *, after_ms: int | None = None) -> ProviderError:
    return ProviderError(f"scripted {kind}", kind=kind, retry_after_ms=after_ms)


class Trial:
    """One run of `retrying` on a manual clock: when each attempt began, what came, and how it ended."""

    def __init__(self, script: list[Any], **options: Any) -> None:
        self.clock = ManualClock()
        self.model = ScriptedModel(script)
        self.began: list[float] = []
        self.heard: list[str | None] = []
        self.events: list[ModelEvent] = []
        self.error: ProviderError | None = None
        asyncio.run(self._run(options))

    def _call(self) -> AsyncIterator[ModelEvent]:
        self.began.append(self.clock.monotonic())
        return self.model.complete(REQUEST)

    async def _run(self, options: dict[str, Any]) -> None:
        stream = retrying(
            self._call,
            clock=self.clock,
            random=Random(7),
            on_attempt=lambda error: self.heard.append(error.kind if error else None),
            **options,
        )

        async def read() -> None:
            try:
                async for event in stream:
                    self.events.append(event)
            except ProviderError as error:
                self.error = error

        reading = asyncio.ensure_future(read())
        await self.clock.advance_async(3600)
        assert reading.done()
        await reading

    @property
    def waits(self) -> list[float]:
        return [later - sooner for sooner, later in zip(self.began, self.began[1:], strict=False)]


def test_what_may_pass_is_tried_again_later_and_later() -> None:
    """Each wait is between half of its step and the whole of it; the steps double."""
    trial = Trial([failure("overloaded"), failure("connection"), failure("timeout"), failure("malformed"), "hello"])
    assert trial.events == [TextDelta("hello"), USED]
    assert trial.error is None
    for wait, step in zip(trial.waits, [1, 2, 4, 8], strict=True):
        assert step / 2 <= wait <= step
    assert trial.heard == ["overloaded", "connection", "timeout", "malformed", None]


def test_chance_is_seedable_and_spreads() -> None:
    """The same seed, the same waits; and they are not all alike."""
    first, second = (Trial([failure(), failure(), "x"]).waits for _ in range(2))
    assert first == second
    assert first[0] != first[1] / 2


@pytest.mark.parametrize("kind", ["auth", "quota", "not_found", "bad_request", "context_full"])
def test_what_will_not_pass_is_not_tried_again(kind: ErrorKind) -> None:
    """One attempt, and the error as it was."""
    trial = Trial([failure(kind), "never"])
    assert len(trial.began) == 1
    assert trial.error is not None
    assert trial.error.kind == kind


def test_the_provider_is_left_alone_for_as_long_as_it_asks() -> None:
    """At least; a little chance on top, so that not all come back at once."""
    trial = Trial([failure("rate_limit", after_ms=30_000), "x"])
    assert 30 <= trial.waits[0] <= 31


def test_attempts_are_counted() -> None:
    """And the last error is raised as itself."""
    trial = Trial([failure(), failure(), failure("overloaded"), "never"], max_attempts=3)
    assert len(trial.began) == 3
    assert trial.error is not None
    assert trial.error.kind == "overloaded"


def test_no_wait_is_begun_that_would_end_after_the_deadline() -> None:
    """A run that has no time left fails at once, with the provider's error, instead of sleeping to its end."""
    trial = Trial([failure("rate_limit", after_ms=30_000), "never"], deadline=30.0)
    assert trial.began == [0.0]
    assert trial.error is not None
    assert trial.error.kind == "rate_limit"
    assert Trial([failure("rate_limit", after_ms=30_000), "x"], deadline=31.5).error is None


@pytest.mark.parametrize("first", ["a word", ToolCall("1", "now")])
def test_after_the_first_word_a_failure_is_raised(first: str | ToolCall) -> None:
    """What was given out cannot be taken back."""
    trial = Trial([[first, failure()], "never"])
    assert len(trial.began) == 1
    assert len(trial.events) == 1
    assert trial.error is not None
    assert trial.heard == ["server"]


def test_what_failed_attempts_used_is_reported_too() -> None:
    """Usage is real on every path."""
    trial = Trial([[USED, failure()], [USED, failure()], "x"])
    assert trial.events == [USED, USED, TextDelta("x"), USED]
    trial = Trial([[USED, failure("auth")]])
    assert trial.events == [USED]
    assert trial.error is not None


def test_an_error_that_is_not_the_providers_passes_through() -> None:
    """At once."""

    async def main() -> None:
        model = ScriptedModel([KeyError("a bug")])
        with pytest.raises(KeyError):
            await anext(retrying(lambda: model.complete(REQUEST), clock=ManualClock()))

    asyncio.run(main())


def test_closing_it_closes_the_stream_under_it() -> None:
    """In the middle of an answer, and in the middle of a wait."""
    closed = []

    async def answer() -> AsyncIterator[ModelEvent]:
        try:
            yield TextDelta("one")
            yield TextDelta("two")
        finally:
            closed.append("answer")

    async def main() -> None:
        clock = ManualClock()
        async with aclosing(retrying(answer, clock=clock)) as events:
            assert await anext(events) == TextDelta("one")
        assert closed == ["answer"]
        waiting = asyncio.ensure_future(anext(retrying(failing, clock=clock)))
        await clock.run_until_idle_async()
        assert clock.next_timer is not None
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        assert clock.next_timer is None

    def failing() -> AsyncIterator[ModelEvent]:
        return ScriptedModel([failure()]).complete(REQUEST)

    asyncio.run(main())


def test_over_real_http_a_429_is_waited_out_on_the_manual_clock() -> None:
    """A minute passes in no time, and the second request is the first one again."""

    async def main() -> None:
        clock = ManualClock()
        async with ModelServer([Fail(429, headers={"retry-after": "60"}), Say(["here"])]) as server:
            model = OpenAIModel("m", api_key="sk-test", base_url=server.openai_url)

            async def read() -> list[ModelEvent]:
                return [event async for event in retrying(lambda: model.complete(REQUEST), clock=clock, deadline=100.0)]

            reading = asyncio.ensure_future(read())
            while clock.next_timer is None:
                await asyncio.sleep(0)
            await clock.advance_async(59.9)
            assert len(server.asked) == 1
            await clock.advance_async(1.1)
            events = await reading
            await model.close()
            assert events[0] == TextDelta("here")
            assert server.asked[0].body == server.asked[1].body

    asyncio.run(main())
