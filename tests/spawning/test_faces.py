"""What a host writes: the sentences of the public API, sync and async, and functions as sub-agents."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import TYPE_CHECKING, Any

import pytest
from _stage import MAIN, a_host, answer, died, durable, hang, later, notes

from understudy.actors import AsyncRuntime, FunctionRunner, Runtime, SessionBusy, UnknownRunError
from understudy.protocol import EndReason, Failure, RuntimeConfig, Spawn, SpawnRejected, Usage
from understudy.protocol.runner import Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from understudy.actors.runners import AsyncFunctionContext, FunctionContext, RunContext
    from understudy.actors.testing import ManualClock
    from understudy.protocol import SpawnPacket, SubAgentResult
    from understudy.protocol.runner import RunnerEvent

# -- functions ----------------------------------------------------------------------------------------------------


def sync_work(packet: SpawnPacket, context: FunctionContext) -> str:
    text = context.read_file("notes.txt")
    context.touch("out.txt", "write")
    context.progress("half way")
    context.usage(input_tokens=2, output_tokens=3, cost_usd=0.25)
    below = context.spawn(Spawn(task="count", runner="answer")).result(timeout=30)
    return f"{text}; {below.output}; {context.cancelled}"


async def async_work(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    text = await context.read_file("notes.txt")
    context.touch("out.txt", "write")
    context.progress("half way")
    context.usage(input_tokens=2, output_tokens=3, cost_usd=0.25)
    handle = await context.spawn(Spawn(task="count", runner="answer"))
    below = await handle.result()
    return f"{text}; {below.output}; {context.cancelled}"


def check_work(result: SubAgentResult, workspace: Path) -> None:
    assert result.output == "hello; done: count; False"
    assert [(file.path, file.provenance) for file in result.recent_files] == [
        (str(workspace / "notes.txt"), "read"),
        (str(workspace / "out.txt"), "changed"),
    ]
    assert (result.usage, result.steps) == (Usage(input_tokens=2, output_tokens=3, cost_usd=0.25), 1)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "work"
    folder.mkdir()
    (folder / "notes.txt").write_text("hello", encoding="utf-8")
    return folder


@pytest.mark.parametrize("fn", [sync_work, async_work])
def test_a_sync_host_runs_sync_and_async_functions(fn: Callable[..., Any], workspace: Path) -> None:
    """On real time, as in the README: everything of the context works in both."""
    runners = {"default": FunctionRunner(fn), "answer": FunctionRunner(answer)}
    with Runtime(runners=runners, config=RuntimeConfig()) as runtime:
        session = runtime.session(MAIN, workspace=workspace, runner="default")
        with runtime.events(names=["session:sub_agent_progress"]) as events:
            check_work(session.spawn(Spawn(task="x", label="work", objective="…")).result(timeout=60), workspace)
            assert {"text": "half way"} in [dict(event.data) for event in events.poll()]
        assert session.working_context.recent_files[0] == str(workspace / "out.txt")
        assert notes(session.transcript()) == ["[Subagent Result: work]"]
        assert repr(session) == "<Session agent:atlas:main>"


@pytest.mark.parametrize("fn", [sync_work, async_work])
def test_an_async_host_runs_sync_and_async_functions(fn: Callable[..., Any], workspace: Path) -> None:
    """The same names, awaited, on the host's own loop."""

    async def main() -> None:
        runners = {"default": FunctionRunner(fn), "answer": FunctionRunner(answer), "hang": FunctionRunner(hang)}
        async with AsyncRuntime(runners=runners) as runtime:
            session = await runtime.session(MAIN, workspace=workspace)
            handle = await session.spawn(Spawn(task="x"))
            result = await handle.result(timeout=60)
            check_work(result, workspace)
            assert await runtime.run(handle.run_id).result() == result
            stuck = await session.spawn(Spawn(task="y", runner="hang"))
            with pytest.raises(TimeoutError, match="it goes on"):
                await stuck.result(timeout=0.001)
            await session.steer(stuck.run_id, "hurry")
            assert [child.run_id for child in await session.children()] == [stuck.run_id]
            assert await session.wait([handle.run_id, stuck.run_id], first=True) == {handle.run_id: result}
            assert (await session.kill(stuck.run_id)).killed == (stuck.run_id,)
            assert await session.release(stuck.session_key) in {True, False}
            await session.close()

    asyncio.run(main())


def test_a_function_may_return_a_final(manual_clock: ManualClock) -> None:
    """With a failure it is as much of an answer as there is."""

    async def partly(packet: SpawnPacket, context: AsyncFunctionContext) -> Final:
        return Final("half", Failure(kind="provider", message="overloaded", retryable=True))

    with a_host(manual_clock, partly) as runtime:
        result = runtime.session(MAIN).spawn(Spawn(task="x")).result(timeout=30)
        assert (result.status, result.output) == ("partial", "half")
        assert result.failure == Failure(kind="provider", message="overloaded", retryable=True)


class Greeter:
    """An object whose call is a coroutine."""

    async def __call__(self, packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        return "hello"

    async def greet(self, packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        return "hello"


async def say(word: str, packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    return word


def say_now(word: str, packet: SpawnPacket, context: FunctionContext) -> str:
    return word


@pytest.mark.parametrize(
    "fn",
    [Greeter(), Greeter().greet, functools.partial(say, "hello"), functools.partial(say_now, "hello"),
     lambda packet, context: "hello"],
    ids=["object", "method", "partial", "sync partial", "lambda"],
)  # fmt: skip
def test_whatever_can_be_called_is_a_function(fn: Callable[..., Any], manual_clock: ManualClock) -> None:
    """Async or not is found out, not asked."""
    with a_host(manual_clock, FunctionRunner(fn)) as runtime:
        assert runtime.session(MAIN).spawn(Spawn(task="x")).result(timeout=30).output == "hello"


@pytest.mark.parametrize("value", [None, 42, b"bytes", ["list"]])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_function_that_returns_something_else_fails_and_is_told_what_to_return(
    value: object, is_async: bool, manual_clock: ManualClock
) -> None:
    """One sentence in the failure."""

    def give(packet: SpawnPacket, context: FunctionContext) -> Any:
        return value

    async def give_later(packet: SpawnPacket, context: AsyncFunctionContext) -> Any:
        return value

    with a_host(manual_clock, give_later if is_async else give) as runtime:
        result = runtime.session(MAIN).spawn(Spawn(task="x")).result(timeout=30)
        assert result.failure is not None
        kind = type(value).__name__
        assert result.failure.message == f"TypeError: the function returned {kind}: return a str or a Final"


ESCAPES = [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), BaseException("odd"), ValueError("plain")]


@pytest.mark.parametrize("error", ESCAPES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", ["sync", "async", "generator", "before"])
def test_whatever_a_runner_raises_fails_only_its_own_run(
    error: BaseException, kind: str, manual_clock: ManualClock
) -> None:
    """A neighbour that works goes on, and so does the runtime."""
    gate = manual_clock.gate()

    def raise_now(packet: SpawnPacket, context: FunctionContext) -> str:
        raise error

    async def raise_later(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        raise error

    class Raising:
        async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
            raise error
            yield

    class RaisingBefore:
        def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
            raise error

    async def wait(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        await gate
        return "undisturbed"

    raisers: dict[str, Any] = {
        "sync": raise_now,
        "async": raise_later,
        "generator": Raising(),
        "before": RaisingBefore(),
    }
    with a_host(manual_clock, raisers[kind], runners={"wait": wait}) as runtime:
        session = runtime.session(MAIN)
        neighbour = session.spawn(Spawn(task="x", runner="wait"))
        broken = session.spawn(Spawn(task="y")).result(timeout=30)
        assert broken.end_reason is EndReason.FAILED
        assert broken.failure is not None
        assert (broken.failure.kind, type(error).__name__ in broken.failure.message) == ("runner_crash", True)
        gate.open()
        assert neighbour.result(timeout=30).output == "undisturbed"


def test_a_sync_function_sees_that_it_is_over(manual_clock: ManualClock) -> None:
    """It cannot be stopped, but it can look; what it does afterwards counts for nothing."""
    gate = manual_clock.gate()
    seen: list[bool] = []
    done = threading.Event()

    def stubborn(packet: SpawnPacket, context: FunctionContext) -> str:
        seen.append(context.cancelled)
        gate.wait()
        seen.append(context.cancelled)
        context.touch("late.txt")
        context.usage(input_tokens=1_000)
        done.set()
        return "late"

    with a_host(manual_clock, stubborn) as runtime:
        session = runtime.session(MAIN)
        handle = session.spawn(Spawn(task="x"))
        gate.reached.get(timeout=30)
        session.kill(handle.run_id)
        assert runtime.abandoned_threads == 1
        gate.open()
        assert done.wait(30)
        manual_clock.run_until_idle()
        assert seen == [False, True]
        record = runtime.store.runs.get(handle.run_id)
        assert record is not None
        assert (record.usage.total_tokens, session.next_context()) == (0, "")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_function_handles_the_refusal_of_its_own_spawn(is_async: bool, manual_clock: ManualClock) -> None:
    """The exception carries the rejection."""

    def refused(packet: SpawnPacket, context: FunctionContext) -> str:
        with pytest.raises(SpawnRejected) as refusal:
            context.spawn(Spawn(task="y"))
        return refusal.value.rejection.reason

    async def refused_later(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        with pytest.raises(SpawnRejected) as refusal:
            await context.spawn(Spawn(task="y"))
        return refusal.value.rejection.reason

    fn = refused_later if is_async else refused
    with a_host(manual_clock, fn, config={"max_spawn_depth": 2}) as runtime:
        assert runtime.session(MAIN).spawn(Spawn(task="x")).result(timeout=30).output == "depth_exceeded"


def test_expected_outputs_are_looked_for_on_disk(manual_clock: ManualClock, workspace: Path) -> None:
    """Verified or missing; a name no file can have is missing, and keeps no run from its end."""

    async def write(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        (workspace / "made.txt").write_text("made", encoding="utf-8")
        return "done"

    with a_host(manual_clock, write) as runtime:
        session = runtime.session(MAIN, workspace=workspace)
        wanted = ("made.txt", "not-made.txt", "a" * 300, str(workspace / "notes.txt"))
        result = session.spawn(Spawn(task="x", expected_outputs=wanted)).result(timeout=30)
        assert result.verified_outputs == ("made.txt", str(workspace / "notes.txt"))
        assert result.missing_outputs == ("not-made.txt", "a" * 300)


# -- handles ------------------------------------------------------------------------------------------------------


def test_a_timeout_of_the_caller_leaves_the_run_alone(manual_clock: ManualClock) -> None:
    """It says so, and the result can be had later."""
    gate = manual_clock.gate()

    async def wait(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        await gate
        return "done"

    with a_host(manual_clock, wait) as runtime:
        handle = runtime.session(MAIN).spawn(Spawn(task="x"))
        for _ in range(2):
            with pytest.raises(TimeoutError, match=f"run {handle.run_id} has no result after 0 s; it goes on"):
                handle.result(timeout=0)
        assert handle.status == "running"
        assert repr(handle) == f"<RunHandle {handle.run_id}>"
        gate.open()
        assert handle.result(timeout=30) == handle.result() == runtime.run(handle.run_id).result(timeout=30)


def test_a_handle_on_a_run_of_this_and_of_an_earlier_host(manual_clock: ManualClock, tmp_path: Path) -> None:
    """Finished, still running, or interrupted by a crash: by its id alone."""
    store = tmp_path / "s.db"
    with a_host(manual_clock, hang, store=store) as runtime:
        session = runtime.session(MAIN)
        done = session.spawn(Spawn(task="x", runner="answer"))
        result = done.result(timeout=30)
        stuck = session.spawn(Spawn(task="y"))
        assert runtime.run(done.run_id).result(timeout=30) == result
        assert runtime.run(stuck.run_id).status == "running"
        manual_clock.run_until_idle()
        crashed = died(runtime, tmp_path)
    with a_host(later(), store=store) as runtime:
        assert runtime.run(done.run_id).result(timeout=30) == result
        assert runtime.run(stuck.run_id).result(timeout=30).end_reason is EndReason.KILLED
    with a_host(later(), store=crashed) as runtime:
        assert runtime.run(stuck.run_id).result(timeout=30).end_reason is EndReason.GHOST_SWEEP
        assert runtime.run(stuck.run_id).status == "failed"


def test_an_unknown_run_is_one_sentence(manual_clock: ManualClock) -> None:
    """With where to look."""
    with a_host(manual_clock) as runtime:
        with pytest.raises(
            UnknownRunError, match=r"^there is no run 'no-such': `runtime\.runs\(\)` lists those there are$"
        ):
            runtime.run("no-such")
        with pytest.raises(ValueError, match=r"run id '\.\./etc' is not allowed"):
            runtime.run("../etc")


# -- sessions -----------------------------------------------------------------------------------------------------


def test_the_same_key_is_the_same_session(manual_clock: ManualClock, workspace: Path) -> None:
    """Restored with its place: workspace, runner and agent need not be said again."""
    with a_host(manual_clock) as runtime:
        first = runtime.session(MAIN, workspace=workspace, runner="answer", agent_id="atlas")
        assert runtime.session(MAIN).ref == first.ref
        first.close()
        again = runtime.session(MAIN)
        place = again._actor.place
        assert (place.workspace_dir, place.cwd, place.runner, place.agent_id) == (
            str(workspace),
            str(workspace),
            "answer",
            "atlas",
        )
        again.close()
        with pytest.raises(ValueError, match="is of agent 'atlas', not 'other': use another key"):
            runtime.session(MAIN, agent_id="other")


def test_a_session_is_open_in_one_runtime_at_a_time(manual_clock: ManualClock, tmp_path: Path) -> None:
    """The second is told who holds it, and gets it once it is let go."""
    store = tmp_path / "s.db"
    with a_host(manual_clock, store=store) as first, a_host(manual_clock, store=store) as second:
        session = first.session(MAIN)
        with pytest.raises(SessionBusy, match="close it there first") as busy:
            second.session(MAIN)
        assert busy.value.holder == first._backstage.host
        session.close()
        assert second.session(MAIN).spawn(Spawn(task="x")).result(timeout=30).output == "done: x"


def test_without_a_store_nothing_is_left_behind(manual_clock: ManualClock) -> None:
    """A private temporary file, gone at exit."""
    with a_host(manual_clock) as runtime:
        runtime.session(MAIN).spawn(Spawn(task="x")).result(timeout=30)
        manual_clock.advance(3)
        folder = durable(runtime).path.parent
        assert folder.exists()
    assert not folder.exists()


def test_runs_are_listed_the_newest_first_by_any_of_their_marks(manual_clock: ManualClock) -> None:
    """Runner, status, session, time; page by page."""
    with a_host(manual_clock) as runtime:
        session = runtime.session(MAIN)
        ids = [session.spawn(Spawn(task="x", runner=name)).run_id for name in ("answer", "hang", "answer")]
        manual_clock.run_until_idle()
        assert [record.run_id for record in runtime.runs().items] == ids[::-1]
        assert [record.run_id for record in runtime.runs(status="running").items] == [ids[1]]
        assert [record.run_id for record in runtime.runs(runner="answer", session_key=MAIN).items] == [ids[2], ids[0]]
        page = runtime.runs(limit=2)
        assert [record.run_id for record in runtime.runs(limit=2, cursor=page.cursor).items] == [ids[0]]
