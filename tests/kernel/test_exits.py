"""Every way out of an actor is reported to its parent, exactly once."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from understudy.actors import ActorExited, LoopActor, Runtime
from understudy.actors.testing import Gate, ManualClock, Probe

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable

    import pykka

    from understudy.actors._kernel.exits import ExitCause


class Child(LoopActor):
    """Does what it is told; remembers the hooks that ran."""

    registered = False

    def __init__(self, hooks: list[str]) -> None:
        super().__init__()
        self.hooks = hooks

    async def on_receive(self, message: Any) -> Any:
        if isinstance(message, BaseException):
            raise message
        if message == "stop yourself":
            self.stop()
        if isinstance(message, Gate):
            await message
        if message == "ignore cancellation":
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    self.hooks.append("ignored")

    def on_stop(self) -> None:
        self.hooks.append("on_stop")

    def on_failure(self, *_: Any) -> None:
        self.hooks.append("on_failure")


class BadStart(Child):
    def on_start(self) -> None:
        raise ValueError("cannot start")


def cancel(runtime: Runtime, ref: pykka.ActorRef[Any]) -> None:
    actor = ref._actor_weakref()
    assert actor is not None
    runtime._kernel.cancel(actor)


def stop(runtime: Runtime, ref: pykka.ActorRef[Any]) -> None:
    """Run the kernel's whole stop protocol, while the clock moves by itself."""

    async def run() -> None:
        actor = ref._actor_weakref()
        assert actor is not None
        with runtime.clock.unattended():
            await runtime._kernel.stop(actor, grace=5)

    asyncio.run_coroutine_threadsafe(run(), runtime._kernel.asyncio_loop).result(60)


def cancel_at_work(runtime: Runtime, ref: pykka.ActorRef[Any]) -> None:
    gate = Gate(runtime.clock)
    ref.tell(gate)
    gate.reached.get(timeout=30)
    cancel(runtime, ref)


def stop_and_cancel_at_once(runtime: Runtime, ref: pykka.ActorRef[Any]) -> None:
    """In one turn of the loop, so that neither comes first by chance: the cancel wins, it does not wait in a queue."""

    async def both() -> None:
        ref.stop(block=False)
        cancel(runtime, ref)

    asyncio.run_coroutine_threadsafe(both(), runtime._kernel.asyncio_loop).result(60)


def stop_while_it_waits(runtime: Runtime, ref: pykka.ActorRef[Any]) -> None:
    ref.tell(Gate(runtime.clock))
    stop(runtime, ref)


def stop_while_it_ignores(runtime: Runtime, ref: pykka.ActorRef[Any]) -> None:
    ref.tell("ignore cancellation")
    stop(runtime, ref)


WAYS_OUT: dict[str, tuple[Callable[[Runtime, pykka.ActorRef[Any]], object], ExitCause, list[str]]] = {
    "asked to stop": (lambda _, ref: ref.stop(), "stopped", ["on_stop"]),
    "stops itself": (lambda _, ref: ref.tell("stop yourself"), "stopped", ["on_stop"]),
    "breaks on a tell": (lambda _, ref: ref.tell(ValueError()), "failed", ["on_failure"]),
    "breaks beyond Exception": (lambda _, ref: ref.tell(SystemExit()), "failed", ["on_failure"]),
    "cancelled while idle": (cancel, "cancelled", ["on_failure"]),
    "cancelled at work": (cancel_at_work, "cancelled", ["on_failure"]),
    "stopped, idle": (stop, "stopped", ["on_stop"]),
    "stopped, would not finish": (stop_while_it_waits, "cancelled", ["on_failure"]),
    "stopped, would not even be cancelled": (stop_while_it_ignores, "abandoned", ["ignored"]),
    "stopped and cancelled at once": (stop_and_cancel_at_once, "cancelled", ["on_failure"]),
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_every_way_out_tells_the_parent_exactly_once(way: str, runtime: Runtime, manual_clock: ManualClock) -> None:
    """The cause is the right one, the right hook ran, and there is no second word."""
    leave, cause, hooks_expected = WAYS_OUT[way]
    probe, hooks = Probe(runtime), list[str]()
    ref = runtime.start_actor(Child, hooks, parent=probe.ref)
    manual_clock.run_until_idle()
    leave(runtime, ref)
    manual_clock.run_until_idle()
    assert [(m.urn, m.cause) for m in probe.messages if isinstance(m, ActorExited)] == [(ref.actor_urn, cause)]
    assert hooks == hooks_expected
    assert not ref.is_alive()


def test_a_failing_start_tells_the_parent(runtime: Runtime, manual_clock: ManualClock) -> None:
    """Pykka calls no hook at all then."""
    probe = Probe(runtime)
    runtime.start_actor(BadStart, [], parent=probe.ref)
    exited = probe.expect(ActorExited)
    manual_clock.run_until_idle()
    assert (exited.cause, str(exited.error), len(probe.messages)) == ("failed", "cannot start", 1)


def test_cancelled_before_it_began_it_never_begins(runtime: Runtime, manual_clock: ManualClock) -> None:
    """on_start does not run for an actor that is cancelled in the same turn of the loop."""
    probe, hooks = Probe(runtime), list[str]()

    class Starter(Child):
        def on_start(self) -> None:
            hooks.append("on_start")

    async def start_and_cancel() -> None:
        await asyncio.sleep(0)
        ref = runtime.start_actor(Starter, hooks, parent=probe.ref)
        cancel(runtime, ref)

    asyncio.run_coroutine_threadsafe(start_and_cancel(), runtime._kernel.asyncio_loop).result(30)
    manual_clock.run_until_idle()
    assert [m.cause for m in probe.messages if isinstance(m, ActorExited)] == ["cancelled"]
    assert "on_start" not in hooks


def test_an_exit_nobody_hears_is_a_dead_letter(runtime: Runtime, manual_clock: ManualClock) -> None:
    """A child that outlives its parent still has its last word recorded."""
    probe = Probe(runtime)
    ref = runtime.start_actor(Child, [], parent=probe.ref)
    probe.ref.stop()
    ref.stop()
    manual_clock.run_until_idle()
    (letter,) = runtime.dead_letters()
    assert "ActorExited" in letter.payload
    assert letter.reason == "the parent has stopped"


def test_what_an_abandoned_handler_says_later_is_fenced_off(runtime: Runtime, manual_clock: ManualClock) -> None:
    """Its asker has had an answer when it was abandoned; the late one goes nowhere and breaks nothing."""
    gate = manual_clock.gate()

    class Stubborn(LoopActor):
        async def on_receive(self, _message: Any) -> str:
            while not gate._opened.settled():
                try:
                    await gate
                except asyncio.CancelledError:
                    continue
            return "too late"

    probe = Probe(runtime)
    ref = runtime.start_actor(Stubborn, parent=probe.ref)
    asked = ref.ask("go", block=False)
    stop(runtime, ref)
    with pytest.raises(Exception, match="would not stop and was abandoned"):
        asked.get(timeout=30)
    gate.open()
    manual_clock.run_until_idle()
    assert len(probe.messages) == 1


def test_an_actor_that_left_is_freed(runtime: Runtime, manual_clock: ManualClock) -> None:
    """Neither the mailbox nor the loop keeps it."""
    ref = runtime.start_actor(Child, [])
    actor: weakref.ref[Any] = ref._actor_weakref
    ref.stop()
    manual_clock.run_until_idle()
    gc.collect()
    assert actor() is None
    assert all(other.actor_urn != ref.actor_urn for other in runtime._kernel._actors)
