"""What a handler raises stays with its actor; what the host does to itself gets through."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pykka
import pytest

from understudy.actors import ActorExited, AsyncRuntime, HandlerEscapedError, LoopActor, Runtime
from understudy.actors.testing import ManualClock, Probe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ESCAPES = [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, BaseException]


class HostActor(pykka.ThreadingActor):
    def on_receive(self, message: Any) -> Any:
        return message


class Raiser(LoopActor):
    def on_receive(self, message: Any) -> Any:
        raise message


class AsyncRaiser(LoopActor):
    async def on_receive(self, message: Any) -> Any:
        await asyncio.sleep(0)
        raise message


class Echo(LoopActor):
    async def on_receive(self, message: Any) -> Any:
        return message


@pytest.fixture
def host_actor() -> Iterator[pykka.ActorRef[HostActor]]:
    ref = HostActor.start()
    yield ref
    ref.stop()


@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize("raiser", [Raiser, AsyncRaiser])
@pytest.mark.parametrize("asked", [True, False])
def test_a_handler_that_raises_beyond_exception_disturbs_nobody_else(
    escape: type[BaseException],
    raiser: type[LoopActor],
    asked: bool,
    runtime: Runtime,
    host_actor: pykka.ActorRef[HostActor],
) -> None:
    """Its actor leaves as failed, its asker gets an ordinary error, and everybody else lives on."""
    probe = Probe(runtime)
    neighbour = runtime.start_actor(Echo)
    broken = runtime.start_actor(raiser, parent=probe.ref)
    if asked:
        with pytest.raises(HandlerEscapedError, match=escape.__name__):
            broken.ask(escape())
    else:
        broken.tell(escape())
    exited = probe.expect(ActorExited)
    assert (exited.cause, type(exited.error)) == ("failed", escape)
    assert neighbour.ask("alive") == "alive"
    assert host_actor.ask("alive") == "alive"


@pytest.mark.parametrize("hook", ["on_start", "on_stop", "on_failure"])
@pytest.mark.parametrize("is_async", [True, False])
def test_a_hook_that_raises_system_exit_ends_its_own_actor_only(hook: str, is_async: bool, runtime: Runtime) -> None:
    """Hooks are handlers: contained, and the parent is told once."""

    def fail(*_: Any) -> None:
        raise SystemExit(hook)

    async def fail_later(*_: Any) -> None:
        raise SystemExit(hook)

    actor_class = type("Hooked", (Raiser,), {hook: fail_later if is_async else fail})
    probe = Probe(runtime)
    ref: pykka.ActorRef[Any] = runtime.start_actor(actor_class, parent=probe.ref)
    if hook == "on_stop":
        ref.stop()
    elif hook == "on_failure":
        ref.tell(ValueError("broken"))
    probe.expect(ActorExited)
    assert runtime.start_actor(Echo).ask("alive") == "alive"
    assert len(probe.messages) == 1


def test_an_ordinary_error_goes_to_the_asker_and_the_actor_lives_on(runtime: Runtime) -> None:
    """As in pykka."""
    ref = runtime.start_actor(AsyncRaiser)
    for _ in range(2):
        with pytest.raises(ValueError, match="mine"):
            ref.ask(ValueError("mine"))


def test_cancelling_the_hosts_main_task_goes_through_and_stops_our_actors() -> None:
    """The host's cancellation is not swallowed, even with a handler under way."""

    class Waiter(LoopActor):
        async def on_receive(self, _message: Any) -> None:
            await asyncio.Event().wait()

    refs: list[pykka.ActorRef[Any]] = []

    async def host() -> None:
        async with AsyncRuntime(clock=ManualClock()) as runtime:
            refs.append(runtime.start_actor(Waiter))
            refs[0].tell("wait")
            await asyncio.Event().wait()

    async def main() -> str:
        task = asyncio.create_task(host())
        while not refs:
            await asyncio.sleep(0)
        task.cancel()
        try:
            await asyncio.wait_for(task, 60)
        except asyncio.CancelledError:
            return "cancelled"
        return "swallowed"

    assert asyncio.run(main()) == "cancelled"
    assert not refs[0].is_alive()


def test_a_host_that_leaves_its_loop_without_closing_the_runtime_is_not_held_up() -> None:
    """asyncio.run() cancels what is left, and who asks an actor of a closed loop is told that it is dead."""
    exits: list[ActorExited] = []

    class Parent(LoopActor):
        def on_receive(self, message: ActorExited) -> None:
            exits.append(message)

    class Waiter(LoopActor):
        async def on_receive(self, _message: Any) -> None:
            await asyncio.Event().wait()

    async def main() -> pykka.ActorRef[Any]:
        runtime = await AsyncRuntime().__aenter__()
        idle = runtime.start_actor(Waiter)
        waiting = runtime.start_actor(Waiter, parent=runtime.start_actor(Parent))
        waiting.tell("wait")
        for _ in range(5):
            await asyncio.sleep(0)
        return idle

    idle = asyncio.run(main())
    assert [exited.cause for exited in exits] == ["cancelled"]
    with pytest.raises(pykka.ActorDeadError):
        idle.ask("anybody there?", timeout=30)
    assert pykka.ActorRegistry.get_all() == []


CTRL_C = """
    import asyncio, signal, sys, threading
    from understudy.actors import AsyncRuntime, LoopActor

    class Busy(LoopActor):
        def on_receive(self, message):
            signal.raise_signal(signal.SIGINT)      # a person presses Ctrl-C while this handler runs
            return "finished"

    class AsyncBusy(LoopActor):
        async def on_receive(self, message):
            await asyncio.sleep(0)
            signal.raise_signal(signal.SIGINT)
            return "finished"

    async def main():
        async with AsyncRuntime() as runtime:
            await runtime.start_actor({actor}).ask("go", block=False)
            await asyncio.Event().wait()

    try:
        {run}
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.parametrize("actor", ["Busy", "AsyncBusy"])
@pytest.mark.parametrize(
    "run", ["asyncio.run(main())", "asyncio.new_event_loop().run_until_complete(main())"], ids=["run", "bare-loop"]
)
def test_ctrl_c_reaches_the_host_even_inside_a_handler(run: str, actor: str, tmp_path: Path) -> None:
    """With asyncio.run() it cancels the main task; on a bare loop it is a KeyboardInterrupt out of our handler."""
    program = tmp_path / "host.py"
    program.write_text(textwrap.dedent(CTRL_C).format(run=run, actor=actor))
    host = subprocess.run(
        [sys.executable, "-W", "ignore", str(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert host.stdout == "interrupted\n", host.stderr


def test_ctrl_c_ends_a_sync_host(tmp_path: Path) -> None:
    """The runtime's thread does not keep a host from leaving on Ctrl-C."""
    program = tmp_path / "host.py"
    program.write_text(
        textwrap.dedent("""
        import threading
        from understudy.actors import Runtime
        try:
            with Runtime():
                print("ready", flush=True)
                threading.Event().wait()
        except KeyboardInterrupt:
            print("interrupted")
        """)
    )
    host = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    assert host.stdout.readline() == "ready\n"
    host.send_signal(signal.SIGINT)
    assert host.communicate(timeout=60)[0] == "interrupted\n"
