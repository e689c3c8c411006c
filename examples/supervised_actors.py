"""Actors that hang, crash and exit, and a parent that hears of each end exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

from understudy.actors import ActorExited, LoopActor, Runtime
from understudy.actors.clock import within
from understudy.actors.testing import ManualClock, Probe


class Worker(LoopActor):
    """Does what it is told, for better or worse."""

    registered = False

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    async def on_receive(self, message: Any) -> Any:
        """Answer, break, exit or hang."""
        if message == "crash":
            raise ValueError("the worker broke")
        if message == "exit":
            raise SystemExit(1)
        if message == "hang":
            await within(self._clock, 3600, asyncio.Event().wait())
        return f"done: {message}"


def main() -> None:
    """Start four workers on one event loop and see each of them out."""
    clock = ManualClock()
    with Runtime(clock=clock) as runtime:
        parent = Probe(runtime)
        workers = {
            name: runtime.start_actor(Worker, clock, parent=parent.ref)
            for name in ("well-behaved", "crashing", "exiting", "hanging")
        }
        names = {ref.actor_urn: name for name, ref in workers.items()}
        print("asked the well-behaved one:", workers["well-behaved"].ask("read three files"))
        workers["crashing"].tell("crash")
        workers["exiting"].tell("exit")
        workers["hanging"].tell("hang")
        for _ in range(2):
            report(names, parent.expect(ActorExited))
        print("an hour passes on the manual clock")
        clock.advance(3600)
        report(names, parent.expect(ActorExited))
        workers["well-behaved"].stop()
        report(names, parent.expect(ActorExited))


def report(names: dict[str, str], exited: ActorExited) -> None:
    """One line an end."""
    print(f"the {names[exited.urn]} one left: {exited.cause}" + (f" ({exited.error!r})" if exited.error else ""))


if __name__ == "__main__":
    import logging

    logging.disable()  # the tracebacks of the two that break on purpose
    main()
