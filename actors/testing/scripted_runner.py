"""A runner that does what the test wrote down."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from understudy.actors.testing.gate import Gate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from understudy.actors.runners import RunContext
    from understudy.protocol import SpawnPacket
    from understudy.protocol.runner import RunnerEvent

RunnerStep: TypeAlias = "RunnerEvent | Gate | Exception | Callable[[SpawnPacket, RunContext], RunnerStep | None]"
"""Tell this; wait at this gate; fail like this; or do what this says, called when its turn comes."""


class ScriptedRunner:
    """Goes through the script from its beginning, once for every run; remembers every packet.

    Example:
        >>> from understudy.protocol.runner import Final, Touched
        >>> runner = ScriptedRunner([Touched("a.py"), Final("read one file")])
    """

    def __init__(self, script: Sequence[RunnerStep]) -> None:
        self._script = tuple(script)
        self.packets: list[SpawnPacket] = []
        """What it was given, in order."""

    async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        """Work through the script."""
        self.packets.append(packet)
        for written in self._script:
            step: RunnerStep | None = written
            while callable(step):
                step = step(packet, context)
            if isinstance(step, Exception):
                raise step
            if isinstance(step, Gate):
                await step
            elif step is not None:
                yield step
