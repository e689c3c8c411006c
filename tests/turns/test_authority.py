"""Authority never grows: no child has a tool that its parent lacks, and none loses a person's approval on the way."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from understudy.actors import Runtime
from understudy.actors.runners import FunctionRunner, ModelRunner
from understudy.actors.testing import ManualClock, ScriptedModel
from understudy.actors.tools import Toolbox, tool
from understudy.protocol import RuntimeConfig, Spawn, SpawnRejected
from understudy.protocol.authority import Authority, narrowed
from understudy.protocol.model import TextDelta, ToolCall

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from understudy.actors.runners import AsyncFunctionContext
    from understudy.actors.tools import Tool
    from understudy.protocol import SpawnPacket
    from understudy.protocol.model import ModelEvent, ModelRequest

MAIN = "agent:atlas:main"
GROUPS = ("files:read", "files:write", "net", "shell")
NAMES = ("look", "store", "fetch", "wipe", "post")
AGENTS = ("a", "b", "c", "d")


def a_tool(name: str, group: str, *, approval: bool) -> Tool:
    @tool(name=name, group=group, paths=(), approval=approval)
    def work() -> str:
        """Work."""
        return name

    return work


@dataclass
class Chain:
    """Models that each look at what they have, try every tool, and delegate once more; depth first."""

    chance: random.Random
    boxes: list[dict[str, bool]] = field(default_factory=list)
    """What each agent could run, from the top: tool, and whether a person was asked first."""

    async def complete(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        names = [spec.name for spec in request.tools]
        done = [turn for turn in request.turns if turn.role == "assistant"]
        own = [name for name in names if name in NAMES]
        if not done:
            self.boxes.append(dict.fromkeys(own, False))
            for name in own:
                yield ToolCall(f"{len(self.boxes)}-{name}", name, {})
            if not own:
                yield TextDelta("on")
        elif len(done) == 1 and "sessions_spawn" in names:
            arguments: dict[str, object] = {"task": "x", "agent": self.chance.choice(AGENTS), "wait": True}
            if self.chance.random() < 0.6:
                picked = [group for group in (*GROUPS, "files", "subagents") if self.chance.random() < 0.6]
                arguments["tool_groups"] = picked or ["files"]
            yield ToolCall(f"{len(self.boxes)}-spawn", "sessions_spawn", arguments)  # type: ignore[arg-type]
        else:
            yield TextDelta("done")

    def approve(self, call: ToolCall) -> bool:
        self.boxes[int(call.id.split("-")[0]) - 1][call.name] = True
        return True


def boxes_of(seed: int) -> list[dict[str, bool]]:
    """What the agents of one generated chain could run, from the top down."""
    chance = random.Random(seed)
    chain = Chain(chance)

    def runner() -> ModelRunner:
        tools = [
            a_tool(name, chance.choice(GROUPS), approval=chance.random() < 0.3)
            for name in NAMES
            if chance.random() < 0.7
        ]
        return ModelRunner(chain, tools=tools, approve=chain.approve)

    async def between(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        """A function has no tools of its own; it hands down what it was given."""
        try:
            spawned = await context.spawn(Spawn(task="x", runner=chance.choice(AGENTS[:3])))
        except SpawnRejected:
            return "refused"
        return (await spawned.result()).output

    runners = {name: runner() for name in AGENTS[:3]} | {"d": FunctionRunner(between)}
    config = RuntimeConfig(max_spawn_depth=5)
    with Runtime(":memory:", clock=ManualClock(), runners=runners, config=config) as runtime:
        runtime.session(MAIN, runner="a").prompt("Go")
    return chain.boxes


def grown(boxes: list[dict[str, bool]]) -> list[str]:
    """Tools that a child has and its parent lacks, or may use without the person its parent must ask."""
    return [
        name
        for above, below in itertools.pairwise(boxes)
        for name, asked in below.items()
        if name not in above or (above[name] and not asked)
    ]


@pytest.mark.parametrize("seed", range(60))
def test_no_child_has_what_its_parent_lacks(seed: int) -> None:
    """Generated runners, groups, approvals and depths: the tools and the freedom to use them only shrink."""
    boxes = boxes_of(seed)
    assert boxes
    assert grown(boxes) == []


def test_the_search_finds_what_it_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bound taken away the same chains break the rule."""
    monkeypatch.setattr(Toolbox, "bounded", lambda self, authority: self)
    assert sum(bool(grown(boxes_of(seed))) for seed in range(60)) > 10


def test_a_host_spawns_with_the_hosts_authority() -> None:
    """The session's own model has few tools; the host may still give a child all that its runner has."""
    model = ScriptedModel(["done"])
    runners = {
        "default": ModelRunner(ScriptedModel([]), tools=[]),
        "worker": ModelRunner(model, tools=[a_tool("wipe", "shell", approval=False)]),
    }
    with Runtime(":memory:", clock=ManualClock(), runners=runners) as runtime:
        runtime.session(MAIN).spawn(Spawn(task="x", runner="worker")).result(timeout=30)
    assert "wipe" in [spec.name for spec in model.requests[0].tools]


def test_an_unknown_tool_group_is_refused_before_anything_begins() -> None:
    """With the nearest one there is, and without a trace."""
    with Runtime(":memory:", clock=ManualClock(), runners={"default": ModelRunner(ScriptedModel([]))}) as runtime:
        session = runtime.session(MAIN)
        with pytest.raises(SpawnRejected, match=r"no tool group 'file'.*'files:read'") as refused:
            session.spawn(Spawn(task="x", tool_groups=("file",)))
        assert refused.value.rejection.reason == "not_allowed"
        assert not runtime.runs().items


def test_a_child_without_the_tools_to_spawn_is_told_that_it_is_a_leaf() -> None:
    """What its prompt promises, its tools keep."""
    model = ScriptedModel(["done"])
    with Runtime(":memory:", clock=ManualClock(), runners={"default": ModelRunner(model)}) as runtime:
        runtime.session(MAIN).spawn(Spawn(task="x", tool_groups=("files",))).result(timeout=30)
    assert "You are a leaf" in model.requests[0].turns[0].text


@pytest.mark.parametrize(
    ("asked", "parents", "kept"),
    [
        (None, None, None),
        (None, ("files",), ("files",)),
        (("files",), None, ("files",)),
        (("files:read",), ("files",), ("files:read",)),
        (("files",), ("files:read",), ("files:read",)),
        (("shell",), ("files",), ()),
        (("filesystem",), ("files",), ()),
    ],
)
def test_groups_only_narrow(
    asked: tuple[str, ...] | None, parents: tuple[str, ...] | None, kept: tuple[str, ...] | None
) -> None:
    """Asking for more than the parent has gives the parent's part of it."""
    assert narrowed(asked, parents) == kept


def test_approval_is_kept_on_the_way_down() -> None:
    """A tool that a person must approve for the parent is one that a person must approve for the child."""
    box = Toolbox(a_tool("wipe", "shell", approval=False)).bounded(Authority(("wipe",), ("wipe",)))
    assert [tool.approval for tool in box.tools] == [True]


def test_a_yes_for_the_parent_is_no_yes_for_its_child() -> None:
    """Each call is asked for by itself: who approved the parent's is asked about the child's, and may say no."""
    asked: list[str] = []

    def once(call: ToolCall) -> bool:
        asked.append(call.id)
        return len(asked) == 1

    wipe = a_tool("wipe", "shell", approval=True)
    child = ScriptedModel([ToolCall("child", "wipe", {}), "done"])
    parent = ScriptedModel(
        [
            ToolCall("parent", "wipe", {}),
            ToolCall("s", "sessions_spawn", {"task": "x", "agent": "child", "wait": True}),
            "done",
        ]
    )
    runners = {
        "default": ModelRunner(parent, tools=[wipe], approve=once),
        "child": ModelRunner(child, tools=[wipe], approve=once),
    }
    with Runtime(":memory:", clock=ManualClock(), runners=runners) as runtime:
        runtime.session(MAIN).prompt("Go")
    assert asked == ["parent", "child"]
    assert "did not approve" in next(turn.text for turn in child.requests[1].turns if turn.role == "tool")


def test_the_idle_clock_stands_still_while_a_person_is_asked() -> None:
    """However long the person takes, silence is not the child's."""
    clock = ManualClock()
    gate = clock.gate()

    async def person(_call: ToolCall) -> bool:
        await gate
        return True

    model = ScriptedModel([ToolCall("1", "wipe", {}), "done"])
    runner = ModelRunner(model, tools=[a_tool("wipe", "shell", approval=True)], approve=person)
    with Runtime(clock=clock, runners={"default": runner}) as runtime:
        handle = runtime.session(MAIN).spawn(Spawn(task="x", idle_timeout_ms=1_000, timeout_ms=500_000))
        clock.advance(300)
        gate.open()
        assert handle.result(timeout=30).output == "done"
