"""Children that do what the test says, when it says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from understudy.protocol import Spawn, SpawnRejected
from understudy.protocol.runner import Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from understudy.actors.runners import RunContext
    from understudy.actors.testing import Gate, ManualClock
    from understudy.protocol import SpawnPacket
    from understudy.protocol.runner import RunnerEvent

Order: TypeAlias = "RunnerEvent | Spawn | Exception"
"""Tell this; spawn this; fail like this."""


@dataclass
class Strings:
    """What one run is to do next, and where it waits to be told."""

    gate: Gate
    orders: list[Order] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Why spawns of it were refused."""


class Puppets:
    """A runner whose runs wait for orders. One for each life of a host."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._strings: dict[str, Strings] = {}

    async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        strings = self._strings[packet.run_id] = Strings(self._clock.gate())
        while True:
            await strings.gate
            strings.gate = self._clock.gate()
            orders, strings.orders = strings.orders, []
            for order in orders:
                if isinstance(order, Exception):
                    raise order
                if isinstance(order, Spawn):
                    try:
                        await context.spawn(order)
                    except SpawnRejected as refused:
                        strings.refused.append(refused.rejection.reason)
                else:
                    yield order

    def tell(self, run_id: str, *orders: Order) -> None:
        """Have a run do this; `run_until_idle` sees it done."""
        strings = self._strings[run_id]
        strings.orders += orders
        strings.gate.open()

    def refused(self, run_id: str) -> list[str]:
        """Why spawns of this run were refused."""
        return self._strings[run_id].refused

    def begun(self, run_id: str) -> bool:
        """Whether it works, or has worked."""
        return run_id in self._strings


def finish(output: str = "done") -> Final:
    """The last order."""
    return Final(output)
