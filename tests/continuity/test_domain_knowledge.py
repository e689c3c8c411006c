"""What a parent's system prompt marks as knowledge of the domain, every child of it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from _stage import MAIN

from understudy.actors import FunctionRunner, ModelRunner, Runtime
from understudy.actors.testing import ManualClock, ScriptedModel
from understudy.protocol import Spawn
from understudy.protocol.domain_knowledge import marked_knowledge

if TYPE_CHECKING:
    from understudy.actors.runners import AsyncFunctionContext, Runner
    from understudy.protocol import SpawnPacket

SYSTEM = """\
You work for Atlas.

## Domain Knowledge

- Settings are layered.
- The loader is new,
  and slow.

Releases are on Fridays,
except in July.

### Names
- Atlas is a team.

# Rules
- Be brief.
"""
KNOWN = (
    "Settings are layered.",
    "The loader is new,\n  and slow.",
    "Releases are on Fridays,\nexcept in July.",
    "Atlas is a team.",
)


async def tell_known(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    return " | ".join(packet.domain_knowledge)


@pytest.mark.parametrize(
    ("system", "items"),
    [
        (None, ()),
        ("", ()),
        ("No section here. Domain Knowledge", ()),
        (SYSTEM, KNOWN),
        ("## domain knowledge ##\n* one\n+ two", ("one", "two")),
        ("### Domain Knowledge\none\n### Next\ntwo", ("one",)),
        ("### Domain Knowledge\none\n#### Below\ntwo\n## Above\nthree", ("one", "two")),
        ("## Domain Knowledge\n```sh\n# no heading\n- no item\n```\n## Next", ("```sh\n# no heading\n- no item\n```",)),
        ("```\n## Domain Knowledge\n- quoted\n```", ()),
        ("## Domain Knowledge\n- one\n## Other\n- no\n## Domain Knowledge\n- two", ("one", "two")),
        ("## Domain Knowledge\n\n \n", ()),
    ],
)
def test_the_section_is_read_item_by_item(system: str | None, items: tuple[str, ...]) -> None:
    """Up to the next heading of the same or a higher level; what stands in a code block is no heading."""
    assert marked_knowledge(system) == items


def test_a_child_gets_the_callers_list_and_the_parents_section(manual_clock: ManualClock) -> None:
    """The caller's first, nothing twice."""
    runners: dict[str, Runner] = {
        "default": ModelRunner(ScriptedModel([]), system=SYSTEM),
        "child": FunctionRunner(tell_known),
    }
    with Runtime(":memory:", clock=manual_clock, runners=runners) as runtime:
        spawn = Spawn(task="x", runner="child", domain_knowledge=("Mine.", KNOWN[3]))
        told = runtime.session(MAIN).spawn(spawn).result(timeout=30).output
    assert told == " | ".join(("Mine.", KNOWN[3], *KNOWN[:3]))


def test_a_host_may_bring_its_own_extractor(manual_clock: ManualClock) -> None:
    """Which sees the system prompt and says what counts."""
    parent = ModelRunner(ScriptedModel([]), system="KNOW: water is wet", domain_knowledge=lambda said: [str(said)[6:]])
    with Runtime(
        ":memory:", clock=manual_clock, runners={"default": parent, "child": FunctionRunner(tell_known)}
    ) as runtime:
        told = runtime.session(MAIN).spawn(Spawn(task="x", runner="child")).result(timeout=30).output
    assert told == "water is wet"


def test_a_child_with_the_same_system_prompt_is_not_told_twice(manual_clock: ManualClock) -> None:
    """One with another is told once, in its brief."""
    same, other = ScriptedModel(["done"]), ScriptedModel(["done"])
    runners = {"default": ModelRunner(same, system=SYSTEM), "other": ModelRunner(other)}
    with Runtime(":memory:", clock=manual_clock, runners=runners) as runtime:
        session = runtime.session(MAIN)
        for name in runners:
            session.spawn(Spawn(task="x", runner=name)).result(timeout=30)
    for model in (same, other):
        whole = "\n".join(turn.text for turn in model.requests[0].turns)
        assert all(whole.count(item) == 1 for item in KNOWN)
