"""Children that do what agents do, good and bad; how long each step takes is the simulation's business."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Protocol

from understudy.actors.errors import SessionClosedError
from understudy.actors.models.errors import ProviderError
from understudy.actors.runners import ModelRunner
from understudy.actors.tools import tool
from understudy.protocol import Budget, Failure, Spawn, SpawnRejected, Usage
from understudy.protocol.model import TextDelta, ToolCall, Turn, UsageReport
from understudy.protocol.runner import (
    Asking,
    Final,
    Keepalive,
    Noted,
    Said,
    SessionIdentified,
    ToolEnded,
    ToolStarted,
    Touched,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from random import Random

    from understudy.actors.runners import RunContext, Runner
    from understudy.actors.tools import Tool
    from understudy.protocol import SpawnPacket
    from understudy.protocol.model import ModelEvent, ModelRequest
    from understudy.protocol.runner import RunnerEvent

RUNNERS = ("player", "model")
LONG = "It is long. " * 60
"""More than the smallest limit of a result, so that it is condensed."""


class World(Protocol):
    """What a child needs of the simulation."""

    chance: Random
    calm: bool
    """Nothing new is begun any more: what there is comes to its end."""
    staying: int
    """Children that ignore being cancelled."""

    def breath(self, who: str) -> asyncio.Future[None]:
        """Settled when the simulation lets this one go on."""

    def forever(self) -> asyncio.Future[None]:
        """Never settled."""

    def next_label(self) -> str:
        """A name nobody has yet."""


def some_spawn(world: World, *, runner: str | None = None) -> Spawn:
    """Any spawn."""
    chance = world.chance
    label = world.next_label()
    return Spawn(
        task=f"do {label}",
        label=label,
        runner=runner or chance.choices(RUNNERS, [4, 1])[0],
        timeout_ms=chance.choice([None, None, 1_000, 5_000, 20_000]),
        idle_timeout_ms=chance.choice([None, None, None, 4_000]),
        first_token_timeout_ms=chance.choice([None, None, None, 3_000]),
        max_steps=chance.choice([None, None, 2]),
        budget=chance.choice([None, None, None, Budget(tokens=120)]),
        cleanup=chance.choice(["delete", "keep"]),
        restart=chance.choice(["fail", "resume"]),
        announce=chance.choice([None, True]),
        idempotency_key=chance.choice([None, None, f"key of {label}"]),
    )


class Player:
    """A runner that takes a few steps of any kind, and comes to some end, or to none."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        world, chance = self._world, self._world.chance
        for number in range(chance.randrange(4)):
            await world.breath(packet.label)
            if world.calm:
                break
            async for event in self._step(packet, context, number):
                yield event
        await world.breath(packet.label)
        end = chance.choices(["done", "empty", "fails", "raises", "exits", "hangs", "stays"], [9, 1, 1, 2, 1, 2, 2])[0]
        if world.calm:
            end = "done"
        if end == "raises":
            raise ValueError("as it happens")
        if end == "exits":
            raise SystemExit(3)
        if end == "hangs":
            await world.forever()
        if end == "stays":
            await self._stay(packet, context)
        if end == "fails":
            yield Final("half of it", Failure(kind="provider", message="it could not", retryable=True))
        else:
            yield Final({"empty": " "}.get(end) or chance.choice([f"{packet.label} is done", LONG]))

    async def _step(self, packet: SpawnPacket, context: RunContext, number: int) -> AsyncIterator[RunnerEvent]:
        world, chance = self._world, self._world.chance
        step = chance.choice(["say", "use", "touch", "tool", "ask", "little", "block", "steered", "spawn", "spawn"])
        if step == "say":
            yield TextDelta(f"{packet.label} says")
            await world.breath(packet.label)
            yield Said(Turn("assistant", f"{packet.label} says {number}"))
        elif step == "use":
            yield UsageReport(Usage(input_tokens=chance.randrange(60), output_tokens=5, cost_usd=0.25))
        elif step == "touch":
            yield Touched(f"{chance.choice('abcdef')}.txt", chance.choice(["read", "write"]))
            yield Touched("/etc/passwd", "read")
        elif step == "tool":
            yield ToolStarted(f"{number}", "work", chance.choice([None, 2_000]))
            await world.breath(packet.label)
            yield ToolEnded(f"{number}")
        elif step == "ask":
            yield Asking("asked")
            await world.breath(packet.label)
            yield Asking("answered")
        elif step == "little":
            yield chance.choice([Keepalive(), Noted("on it"), SessionIdentified(f"conversation {number}")])
        elif step == "block":
            await context.blocking(lambda: None)
        elif step == "steered":
            for told in context.steered():
                yield Noted(told)
        else:
            await self._delegate(packet, context)

    async def _delegate(self, packet: SpawnPacket, context: RunContext) -> None:
        try:
            below = await context.spawn(some_spawn(self._world))
        except (SpawnRejected, SessionClosedError):
            return
        if not isinstance(below, str) and self._world.chance.random() < 0.6:
            await self._world.breath(packet.label)
            await below.settled

    async def _stay(self, packet: SpawnPacket, context: RunContext) -> None:
        """Ignore being cancelled, and speak when it is too late."""
        self._world.staying += 1
        for _ in range(self._world.chance.randrange(1, 4)):
            try:
                await self._world.forever()
            except asyncio.CancelledError:
                context.emit(Noted("still here"))
                context.emit(UsageReport(Usage(input_tokens=1_000_000)))
        self._world.staying -= 1
        await self._world.breath(packet.label)


class SomeModel:
    """A model that says or calls whatever comes to its mind.

    One that is a host's own never hangs: the runtime sets no limit to what its host asks for.
    """

    def __init__(self, world: World, *, hangs: bool) -> None:
        self._world = world
        self._hangs = hangs

    async def complete(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        chance = self._world.chance
        await self._world.breath("model")
        yield UsageReport(Usage(input_tokens=10, output_tokens=chance.randrange(10), cost_usd=0.125))
        mood = (
            "says"
            if self._world.calm
            else chance.choices(["says", "calls", "fails", "nothing", "breaks", "hangs"], [10, 8, 1, 1, 1, 1])[0]
        )
        if mood == "hangs" and self._hangs:
            await self._world.forever()
        if mood == "fails":
            raise ProviderError("not now", kind=chance.choice(["server", "rate_limit", "auth"]))
        if mood == "calls" and request.tools:
            yield TextDelta(chance.choice(["", "Let me see. "]))
            for number in range(chance.randrange(1, 3)):
                yield self._call(request, f"c{len(request.turns)}-{number}")
        elif mood != "nothing":
            yield TextDelta(chance.choice(["That is it.", LONG]))
            if mood == "breaks":
                raise ProviderError("in the middle", kind="server")

    def _call(self, request: ModelRequest, call_id: str) -> ToolCall:
        world, chance = self._world, self._world.chance
        names = {spec.name for spec in request.tools}
        known = re.findall(r"as run (\S+)\.", "\n".join(turn.text for turn in request.turns))
        wanted = chance.choice(["work", "work", "spawn", "wait for", "spawn", "kill", "list", "none such"])
        if wanted in {"kill", "wait for"} and known and "subagents" in names:
            run_id = chance.choice(known)
            if wanted == "kill":
                return ToolCall(call_id, "sessions_kill", {"run_id": run_id})
            return ToolCall(call_id, "subagents", {"action": "wait", "run_ids": [run_id]})
        if wanted == "spawn" and "sessions_spawn" in names:
            label = world.next_label()
            return ToolCall(
                call_id,
                "sessions_spawn",
                {
                    "task": f"do {label}",
                    "label": label,
                    "agent": chance.choices(RUNNERS, [4, 1])[0],
                    "wait": chance.random() < 0.5,
                    "keep": chance.random() < 0.3,
                },
            )
        if wanted == "list" and "subagents" in names:
            return ToolCall(call_id, "subagents", {"action": "list"})
        return ToolCall(call_id, "nonsense" if wanted == "none such" else "work", {"path": "work.txt"})


def _work(world: World) -> Tool:
    @tool(paths=("path",))
    async def work(path: str) -> str:
        """Do something that takes its time."""
        await world.breath("work")
        if world.chance.random() < 0.2:
            raise OSError("it did not work")
        return f"worked on {path}"

    return work


def runners(world: World) -> dict[str, Runner]:
    """All kinds there are."""
    tools = [_work(world)]
    return {
        "player": Player(world),
        "model": ModelRunner(SomeModel(world, hangs=True), tools=tools, mcp=False),
        "mind": ModelRunner(SomeModel(world, hangs=False), tools=tools, mcp=False),
    }
