"""Whatever a provider does over the wire, its run ends as what it is, in time, and in bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from typing import TYPE_CHECKING, Any, Literal

import pytest
from _extent import THOROUGH
from models.server import Broken, Drop, Fail, Flood, ModelServer, Say, Silence, Slow

from understudy.actors import AsyncRuntime
from understudy.actors.clock import sleep
from understudy.actors.models import AnthropicModel, OpenAIModel
from understudy.actors.models.retry import MAX_ATTEMPTS
from understudy.actors.runners import ModelRunner
from understudy.actors.testing import ManualClock
from understudy.protocol import Failure, RuntimeConfig, Spawn
from understudy.protocol.model import LONGEST_ANSWER, TextDelta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from pathlib import Path

    from models.server import Answer

    from understudy.actors.faces import AsyncSession
    from understudy.actors.models._provider import ProviderModel
    from understudy.actors.runners import RunContext
    from understudy.protocol import SpawnPacket
    from understudy.protocol.runner import RunnerEvent

Dialect = Literal["openai", "anthropic"]
Outcome = tuple[str, str, Failure | None]
"""Status (of a run) or nothing (of a reply), what was said, and the failure."""

both = pytest.mark.parametrize("dialect", ["openai", "anthropic"])
everybody = pytest.mark.parametrize("who", ["child", "parent"])

HOUR = 3_600.0


def model(dialect: Dialect, server: ModelServer) -> ProviderModel:
    if dialect == "openai":
        return OpenAIModel("m", api_key="sk-none", base_url=server.openai_url)
    return AnthropicModel("m", api_key="sk-none", base_url=server.anthropic_url)


class Stage:
    """A runtime whose model is behind a scripted server; all of it on one loop, so a manual clock sees the sockets."""

    def __init__(self, clock: ManualClock, server: ModelServer, session: AsyncSession) -> None:
        self.clock = clock
        self.server = server
        self.session = session

    async def ask(self, who: str, **fields: Any) -> Outcome:
        """What comes of one question, put to a child or to the session itself."""
        if who == "parent":
            reply = await self.session.prompt("Do it")
            return "", reply.output, reply.failure
        handle = await self.session.spawn(Spawn.model_validate({"task": "Do it", **fields}))
        result = await handle.result()
        return result.status, result.output, result.failure

    async def ask_while(self, seconds: float, who: str, **fields: Any) -> Outcome | None:
        """The same while so much time passes; None when it has not come to an end."""
        asking = asyncio.ensure_future(self.ask(who, **fields))
        # The SDKs look at the machine on a thread of their own first, which the clock does not know of.
        await self.server.called.wait()
        await self.clock.advance_async(seconds)
        for _ in range(5):  # what the last moment set off
            await self.clock.run_until_idle_async()
        if asking.done():
            return asking.result()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        return None


def play(
    dialect: Dialect,
    script: Sequence[Answer],
    folder: Path,
    act: Callable[[Stage], Coroutine[Any, Any, Any]],
    *,
    clock: ManualClock | None = None,
    **config: Any,
) -> Any:
    clock = clock or ManualClock()

    async def main() -> Any:
        async with ModelServer(script) as server:
            runner = model(dialect, server)
            # What was said too much is not worth asking a model about: the script has no answer for that.
            settings = RuntimeConfig(condensation_strategy="never", **config)
            runners = {"default": ModelRunner(runner)}
            try:
                async with AsyncRuntime(clock=clock, runners=runners, config=settings) as runtime:
                    session = await runtime.session("agent:atlas:main", workspace=folder)
                    return await act(Stage(clock, server, session))
            finally:
                await runner.close()

    return asyncio.run(asyncio.wait_for(main(), 100))


RETRIED = pytest.mark.parametrize(
    "answer",
    [
        Drop(),
        Fail(429),
        Fail(429, headers={"retry-after": "7"}),
        Fail(529),
        Fail(500),
        Broken("garbage"),
        Broken("end"),
        Broken("drop"),
    ],
    ids=["drop", "429", "retry-after", "529", "500", "malformed", "ended early", "dropped early"],
)


@both
@everybody
@RETRIED
def test_what_may_pass_is_tried_again_and_then_told_as_retryable(
    dialect: Dialect, who: str, answer: Answer, tmp_path: Path
) -> None:
    """So often, and no oftener; the end is a failure of the provider's, and nothing is partial."""

    async def act(stage: Stage) -> tuple[Outcome | None, int]:
        outcome = await stage.ask_while(300, who)
        return outcome, len(stage.server.asked)

    outcome, asked = play(dialect, [answer] * MAX_ATTEMPTS, tmp_path, act)
    assert outcome is not None
    status, said, failure = outcome
    assert (status, said) == ("failed" if who == "child" else "", "")
    assert failure is not None
    assert (failure.kind, failure.retryable, asked) == ("provider", True, MAX_ATTEMPTS)


@both
@everybody
@RETRIED
def test_what_passes_is_no_failure(dialect: Dialect, who: str, answer: Answer, tmp_path: Path) -> None:
    """The second attempt answers, and nothing is left of the first."""

    async def act(stage: Stage) -> Outcome | None:
        return await stage.ask_while(300, who)

    outcome = play(dialect, [answer, Say(["Here it is."])], tmp_path, act)
    assert outcome == ("completed" if who == "child" else "", "Here it is.", None)


@both
@everybody
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Fail(400), "provider"),
        (Fail(401), "provider"),
        (Fail(400, {"error": {"message": "prompt is too long: 9 tokens"}}), "context_full"),
    ],
    ids=["400", "401", "too long"],
)
def test_what_cannot_pass_is_told_at_once(
    dialect: Dialect, who: str, answer: Answer, kind: str, tmp_path: Path
) -> None:
    """Asked once, and not worth a second run."""

    async def act(stage: Stage) -> tuple[Outcome, int]:
        return await stage.ask(who), len(stage.server.asked)

    outcome, asked = play(dialect, [answer], tmp_path, act)
    assert outcome is not None
    assert outcome[2] is not None
    assert (outcome[2].kind, outcome[2].retryable, asked) == (kind, False, 1)


@both
@everybody
@pytest.mark.parametrize("how", ["drop", "end", "garbage", "error"])
def test_half_an_answer_is_partial_and_never_completed(
    dialect: Dialect, who: str, how: Literal["drop", "end", "garbage", "error"], tmp_path: Path
) -> None:
    """What was said was said: it is handed over, it is not tried again, and whoever asks may."""
    overloaded = {"type": "overloaded_error", "message": "busy"}

    async def act(stage: Stage) -> Outcome:
        return await stage.ask(who)

    outcome = play(dialect, [Broken(how, ["The loader ", "reads"], overloaded)], tmp_path, act)
    assert outcome is not None
    status, said, failure = outcome
    assert (status, said) == ("partial" if who == "child" else "", "The loader reads")
    assert failure is not None
    assert (failure.kind, failure.retryable) == ("provider", True)


@both
@everybody
def test_a_wait_that_would_not_end_in_time_is_not_begun(dialect: Dialect, who: str, tmp_path: Path) -> None:
    """The provider wants to be left alone for an hour: the failure is told now, not then."""

    async def act(stage: Stage) -> tuple[Outcome, int]:
        return await stage.ask(who, timeout_ms=600_000), len(stage.server.asked)

    outcome, asked = play(dialect, [Fail(429, headers={"retry-after": "3600"})], tmp_path, act)
    failure = outcome[2]
    assert failure is not None
    assert (failure.kind, failure.retryable, asked) == ("provider", True, 1)


@both
@pytest.mark.parametrize(
    ("limit", "kind"),
    [({"timeout_ms": 60_000}, "deadline"), ({"first_token_timeout_ms": 60_000}, "idle")],
    ids=["deadline", "first token"],
)
@pytest.mark.parametrize("answer", [Silence(), Broken("hang")], ids=["silent", "headers only"])
def test_a_provider_that_hangs_is_left(
    dialect: Dialect, answer: Answer, limit: dict[str, int], kind: str, tmp_path: Path
) -> None:
    """On time, not before it; and the server sees the connection close."""

    async def act(stage: Stage) -> Outcome | None:
        asking = asyncio.ensure_future(stage.ask("child", **limit))
        await stage.server.reached.wait()
        await stage.clock.advance_async(59)
        assert not asking.done()
        await stage.clock.advance_async(1)
        outcome = await asking
        await stage.server.disconnected.wait()
        return outcome

    outcome = play(dialect, [answer], tmp_path, act)
    assert outcome is not None
    assert outcome[2] is not None
    assert (outcome[0], outcome[2].kind, outcome[2].retryable) == ("timed_out", kind, True)


@both
def test_a_drip_is_progress(dialect: Dialect, tmp_path: Path) -> None:
    """An answer that comes byte by byte, a word in eight seconds, outlives an idle timeout of ten."""
    clock = ManualClock()
    slow = Slow(Say(["One ", "two ", "three ", "four."]), between=lambda: sleep(clock, 8))

    async def act(stage: Stage) -> Outcome | None:
        return await stage.ask_while(100, "child", idle_timeout_ms=10_000, first_token_timeout_ms=20_000)

    assert play(dialect, [slow], tmp_path, act, clock=clock) == ("completed", "One two three four.", None)


@both
def test_a_drip_too_slow_is_silence(dialect: Dialect, tmp_path: Path) -> None:
    """What was said until then is handed over."""
    clock = ManualClock()
    slow = Slow(Say(["One ", "two ", "three."]), between=lambda: sleep(clock, 12))

    async def act(stage: Stage) -> Outcome | None:
        return await stage.ask_while(100, "child", idle_timeout_ms=10_000, first_token_timeout_ms=30_000)

    outcome = play(dialect, [slow], tmp_path, act, clock=clock)
    assert outcome is not None
    assert outcome[1].strip() == "One"
    assert outcome[2] is not None
    assert outcome[2].kind == "idle"


@both
@everybody
def test_a_late_answer_is_an_answer(dialect: Dialect, who: str, tmp_path: Path) -> None:
    """Five minutes before the headers, where nobody has set a limit to it."""
    clock = ManualClock()
    slow = Slow(Say(["At last."]), before=lambda: sleep(clock, 290))

    async def act(stage: Stage) -> Outcome | None:
        return await stage.ask_while(300, who)

    outcome = play(dialect, [slow], tmp_path, act, clock=clock)
    assert outcome is not None
    assert outcome[1:] == ("At last.", None)


MOST_MEMORY = 48 * 1024 * 1024
"""Room for several copies of the longest answer; less than a 50 MB answer that is held once."""


@pytest.mark.parametrize(
    ("dialect", "who"),
    [("openai", "child"), ("anthropic", "parent")] + THOROUGH * [("openai", "parent"), ("anthropic", "child")],
)
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("deltas", "xxx"),
        ("event", "Here: "),
        ("lines", "Here: "),
        ("arguments", "Writing."),
        ("calls", "Calling."),
    ],
)
@pytest.mark.slow  # megabytes through SDK and store, with every allocation traced
def test_an_answer_without_end_is_cut_and_the_connection_closed(
    dialect: Dialect, who: str, what: Any, said: str, tmp_path: Path
) -> None:
    """Fifty megabytes as one event, as many, as arguments or as calls: partial, invalid output, bounded memory."""

    async def act(stage: Stage) -> tuple[Outcome, int, int]:
        tracemalloc.start()
        try:
            outcome = await stage.ask(who)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        await stage.server.disconnected.wait()
        return outcome, peak, stage.server.sent

    outcome, peak, sent = play(dialect, [Flood(what)], tmp_path, act)
    status, text, failure = outcome
    assert failure is not None
    assert "longer than" in failure.message
    assert (status, failure.kind, failure.retryable) == ("partial" if who == "child" else "", "invalid_output", False)
    assert text.startswith(said)
    assert len(text) <= LONGEST_ANSWER
    assert peak < MOST_MEMORY, f"{peak / 2**20:.0f} MiB at its highest"
    assert sent < 50 * 1024 * 1024


@both
@pytest.mark.slow  # as above
def test_an_error_without_end_is_read_as_far_as_it_helps(dialect: Dialect, tmp_path: Path) -> None:
    """Its status is what counts."""

    async def act(stage: Stage) -> tuple[Outcome | None, int]:
        tracemalloc.start()
        try:
            outcome = await stage.ask_while(HOUR, "child")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        await stage.server.disconnected.wait()
        return outcome, peak

    outcome, peak = play(dialect, [Flood("error"), Fail(400)], tmp_path, act)
    assert outcome is not None
    assert outcome[2] is not None
    assert (outcome[2].kind, outcome[2].retryable) == ("provider", False)
    assert peak < MOST_MEMORY, f"{peak / 2**20:.0f} MiB at its highest"


def test_a_runner_of_the_hosts_own_cannot_talk_for_ever_either(tmp_path: Path) -> None:
    """Text that no turn ends is collected up to the same limit."""

    class Endless:
        async def run(self, _packet: SpawnPacket, _context: RunContext) -> AsyncIterator[RunnerEvent]:
            while True:
                yield TextDelta("x" * 1_000_000)

    async def main() -> Any:
        async with AsyncRuntime(clock=ManualClock(), runners={"default": Endless()}) as runtime:
            session = await runtime.session("agent:atlas:main", workspace=tmp_path)
            return await (await session.spawn(Spawn(task="Talk"))).result()

    result = asyncio.run(main())
    assert (result.status, result.failure.kind) == ("partial", "invalid_output")
