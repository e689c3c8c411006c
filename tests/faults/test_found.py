"""What the seeds of the simulation have found: each history once more, by hand."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import TYPE_CHECKING, Any

import pytest
from _lives import Lives
from _stage import MAIN, a_host, hang

from understudy.actors import AsyncRuntime, FunctionRunner, Runtime
from understudy.actors.runners import ModelRunner
from understudy.actors.testing import CrashPoint, ManualClock, ScriptedModel, ScriptedRunner
from understudy.actors.tools import tool
from understudy.persistence.operations import HostStopped
from understudy.protocol import Spawn
from understudy.protocol.model import ToolCall
from understudy.protocol.runner import Final

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

WAIT = 30


def test_a_child_is_ended_while_a_result_waits_for_its_tools(manual_clock: ManualClock, tmp_path: Path) -> None:
    """The result was told already and is not merged yet: whoever takes it in waits for it, and stops nobody else."""
    never = manual_clock.gate()

    @tool
    async def strike() -> str:
        """Take for ever."""
        await never
        return "struck"

    delegate = ToolCall("d", "sessions_spawn", {"task": "look", "label": "looker", "agent": "below"})
    child = ModelRunner(ScriptedModel([[delegate, ToolCall("s", "strike", {})], "never"]), tools=[strike])
    below = ModelRunner(ScriptedModel(["found it"]))
    with a_host(manual_clock, child, runners={"below": below}) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        handle = session.spawn(Spawn(task="work", label="worker"))
        manual_clock.run_until_idle()
        session.kill(handle.run_id)
        assert handle.result(timeout=WAIT).end_reason == "killed"
        manual_clock.run_until_idle()
        assert runtime.store.runs.unfinished() == []
        assert runtime.store.outbox.undelivered() == []


@pytest.fixture
def lives(tmp_path: Path) -> Lives:
    return Lives(tmp_path)


def lost(runtime: Runtime | AsyncRuntime) -> list[tuple[str, str | None]]:
    """How all runs ended."""
    assert runtime.store.runs.unfinished() == []
    assert runtime.store.outbox.undelivered() == []
    runs = runtime.runs().items
    return sorted((run.label, run.facts.failure and run.facts.failure.kind) for run in runs)


def left_by_a_dead_host(lives: Lives) -> None:
    """Two runs in the middle of their work."""
    with lives.host(ScriptedRunner([lives.clock.gate()])) as runtime:
        session = runtime.session(MAIN, workspace=lives.folder)
        for label in "ab":
            session.spawn(Spawn(task="work", label=label))
        lives.clock.run_until_idle()
        lives.crash()
