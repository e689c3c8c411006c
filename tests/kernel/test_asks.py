"""Every ask is answered, whatever becomes of the actor."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pykka
import pytest

from understudy.actors import AsyncRuntime, LoopActor, Runtime


class Echo(LoopActor):
    def on_receive(self, message: Any) -> Any:
        return message


class AsyncEcho(LoopActor):
    async def on_receive(self, message: Any) -> Any:
        return message


class Asker(LoopActor):
    """Blocks for another actor's answer, which on the loop would be a deadlock."""

    def on_receive(self, message: pykka.ActorRef[Any]) -> Any:
        return message.ask("hello")


class Relay(LoopActor):
    async def on_receive(self, message: pykka.ActorRef[Any]) -> Any:
        return await message.ask("hello", block=False)


@pytest.mark.parametrize("actor_class", [Echo, AsyncEcho])
def test_none_of_2400_asks_racing_stop_is_left_unanswered(actor_class: type[LoopActor]) -> None:
    """Four threads ask while another stops the actor: each ask gets its answer or ActorDeadError."""
    order = random.Random(2400)
    outcomes = {"answered": 0, "dead": 0}
    with Runtime() as runtime:
        for _ in range(100):
            ref = runtime.start_actor(actor_class)
            futures: list[pykka.Future[Any]] = []
            line = threading.Barrier(5)
            stop_after = order.randrange(6)

            def ask(
                ref: pykka.ActorRef[Any] = ref,
                futures: list[pykka.Future[Any]] = futures,
                line: threading.Barrier = line,
            ) -> None:
                line.wait()
                for number in range(6):
                    futures.append(ref.ask(number, block=False))  # noqa: PERF401 - each ask races on its own

            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            line.wait()
            while len(futures) < stop_after:
                pass
            ref.stop(block=False)
            for thread in threads:
                thread.join()
            for future in futures:
                try:
                    future.get(timeout=30)
                    outcomes["answered"] += 1
                except pykka.ActorDeadError:
                    outcomes["dead"] += 1
    assert sum(outcomes.values()) == 2400


def test_a_blocking_ask_on_the_loop_raises_at_once_with_the_fix() -> None:
    """It would deadlock; instead it says to await."""
    with Runtime() as runtime:
        with pytest.raises(RuntimeError, match=r"use `await ref\.ask\(message, block=False\)`"):
            runtime.start_actor(Asker).ask(runtime.start_actor(Echo))
        assert runtime.start_actor(Relay).ask(runtime.start_actor(Echo)) == "hello"


def test_a_future_is_awaitable_from_a_loop_that_is_not_the_actors() -> None:
    """A host's own asyncio code awaits answers of a threaded runtime, stop() and map() included."""

    async def host(ref: pykka.ActorRef[Any]) -> list[Any]:
        asked = ref.ask("hello", block=False)
        return [await asked, await asked.map(str.upper), await ref.stop(block=False)]

    with Runtime() as runtime:
        assert asyncio.run(host(runtime.start_actor(AsyncEcho))) == ["hello", "HELLO", True]


def test_the_host_loop_runs_the_actors_of_an_async_runtime() -> None:
    """AsyncRuntime makes no thread for actors: the only one is the writer of the store."""

    async def host() -> tuple[Any, int]:
        before = threading.active_count()
        async with AsyncRuntime() as runtime:
            answer = await runtime.start_actor(AsyncEcho).ask("hello", block=False)
            return answer, threading.active_count() - before

    assert asyncio.run(host()) == ("hello", 1)


def test_what_is_left_in_a_mailbox_becomes_dead_letters_with_the_reason() -> None:
    """Pykka drops told messages of a stopped actor silently; we do not."""
    with Runtime() as runtime:
        held = threading.Event()

        class Held(LoopActor):
            def on_receive(self, _message: Any) -> None:
                held.wait(30)
                self.stop()

        ref = runtime.start_actor(Held)
        ref.tell("first")
        ref.stop(block=False)
        ref.tell("second")
        late = ref.ask("third", block=False)
        held.set()
        with pytest.raises(pykka.ActorDeadError, match="stopped before handling"):
            late.get(timeout=30)
        ref.actor_stopped.wait(30)
        letters = runtime.dead_letters()
        assert ["second" in newer.payload or "third" in newer.payload for newer in letters] == [True, True]
        assert {letter.reason for letter in letters} == {"the actor stopped before handling the message"}


def test_an_actor_lives_though_nobody_holds_its_ref() -> None:
    """Pykka's refs are weak: the mailbox keeps the actor until it stops."""
    with Runtime() as runtime:
        answers: list[pykka.Future[Any]] = [runtime.start_actor(AsyncEcho).ask(n, block=False) for n in range(50)]
        assert [answer.get(timeout=30) for answer in answers] == list(range(50))


def test_a_closed_runtime_refuses_to_start_actors() -> None:
    """It says so instead of starting something that would never run."""
    with Runtime() as runtime:
        pass
    with pytest.raises(RuntimeError, match="cannot start Echo: the runtime is closed"):
        runtime.start_actor(Echo)


def test_a_runtime_stops_what_it_started_and_nothing_else() -> None:
    """The host's own pykka actors, and another runtime's, go on; pykka's registry holds none of ours after."""

    class HostActor(pykka.ThreadingActor):
        def on_receive(self, message: Any) -> Any:
            return message

    own = HostActor.start()
    try:
        with Runtime() as other:
            neighbour = other.start_actor(Echo)
            with Runtime() as runtime:
                ours = runtime.start_actor(Echo)
                assert ours in pykka.ActorRegistry.get_all()
            assert not ours.is_alive()
            assert own.ask("still here") == "still here"
            assert neighbour.ask("still here") == "still here"
        assert pykka.ActorRegistry.get_all() == [own]
    finally:
        own.stop()
