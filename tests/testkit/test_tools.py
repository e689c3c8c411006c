"""Probe, ScriptedModel, Gate and CrashPoint do what their docstrings say."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from understudy.actors import Runtime
from understudy.actors.testing import (
    CrashPoint,
    CrashPointError,
    Probe,
    ScriptedModel,
    ScriptedRunner,
    ScriptExhaustedError,
)
from understudy.protocol import EndReason, Spawn, Usage
from understudy.protocol.model import ModelRequest, TextDelta, ToolCall, Turn, UsageReport
from understudy.protocol.runner import Final, Said, Touched

if TYPE_CHECKING:
    from pathlib import Path

    from understudy.actors.runners import RunContext
    from understudy.actors.testing import ManualClock
    from understudy.actors.testing.scripted_runner import RunnerStep
    from understudy.protocol import SpawnPacket
    from understudy.protocol.model import ModelEvent

REQUEST = ModelRequest(turns=(Turn("user", "hello"),))


def ask(model: ScriptedModel) -> list[ModelEvent]:
    async def collect() -> list[ModelEvent]:
        return [event async for event in model.complete(REQUEST)]

    return asyncio.run(collect())


def test_a_probe_hands_out_messages_by_kind_in_order(runtime: Runtime) -> None:
    """What is not asked for waits; what does not come fails with what did."""
    probe = Probe(runtime)
    for message in (1, "a", 2, "b"):
        probe.ref.tell(message)
    assert [probe.expect(str), probe.expect(int), probe.expect(str), probe.expect(int)] == ["a", 1, "b", 2]
    with pytest.raises(AssertionError, match=r"no float came; all that did: \[1, 'a', 2, 'b'\]"):
        probe.expect(float, timeout=0)


def test_a_scripted_model_answers_entry_by_entry_and_remembers_what_was_asked() -> None:
    """Text, tool calls, several steps in one answer, an error; and no answer that was not written."""
    call = ToolCall("1", "file_read", {"path": "a.py"})
    model = ScriptedModel([[call, "reading"], ValueError("overloaded"), "done"], usage=Usage(input_tokens=3))
    report = UsageReport(Usage(input_tokens=3))
    assert ask(model) == [call, TextDelta("reading"), report]
    with pytest.raises(ValueError, match="overloaded"):
        ask(model)
    assert ask(model) == [TextDelta("done"), report]
    with pytest.raises(ScriptExhaustedError, match="the script has 3 answers, this is request 4"):
        ask(model)
    assert model.requests == [REQUEST] * 4


def test_a_scripted_model_can_hang_until_its_gate_opens(manual_clock: ManualClock) -> None:
    """A model that has said something and then nothing more."""
    gate = manual_clock.gate()

    async def watch() -> list[str]:
        seen = []
        async for event in ScriptedModel([["a", gate, "b"]]).complete(REQUEST):
            if isinstance(event, TextDelta):
                seen.append(event.text)
                gate.open()
        return seen

    assert asyncio.run(watch()) == ["a", "b"]


def test_a_scripted_runner_tells_waits_calls_and_fails_as_it_is_written(
    manual_clock: ManualClock, tmp_path: Path
) -> None:
    """Every run goes through the script from its beginning; a step may be decided when its turn comes."""
    gate = manual_clock.gate()

    def decide(packet: SpawnPacket, _context: RunContext) -> RunnerStep | None:
        return ValueError("not this one") if packet.task == "second" else None

    runner = ScriptedRunner([Touched("a.py"), gate, Said(Turn("assistant", "half")), decide, Final("whole")])
    with Runtime(clock=manual_clock, runners={"default": runner}) as runtime:
        session = runtime.session("agent:atlas:main", workspace=tmp_path)
        handles = [session.spawn(Spawn(task=task)) for task in ("first", "second")]
        manual_clock.run_until_idle()
        assert [child.steps for child in session.children()] == [0, 0]
        gate.open()
        whole, broken = [handle.result(timeout=30) for handle in handles]
        assert (whole.end_reason, whole.output, [file.path for file in whole.recent_files]) == (
            EndReason.COMPLETED,
            "whole",
            [str(tmp_path / "a.py")],
        )
        assert (broken.end_reason, broken.output, broken.partial) == (EndReason.FAILED, "half", True)
        assert [packet.task for packet in runner.packets] == ["first", "second"]


def test_a_crash_point_strikes_once_at_its_own_point_and_hit() -> None:
    """Other points and other hits pass."""
    strike = CrashPoint("terminal.after", hit=2, error=OSError("disk on fire"))
    strike("terminal.before")
    strike("terminal.after")
    with pytest.raises(OSError, match="disk on fire"):
        strike("terminal.after")
    strike("terminal.after")
    assert (strike.seen, strike.reached.is_set()) == (3, True)
    with pytest.raises(CrashPointError, match=r"struck at merge\.before"):
        CrashPoint("merge.before")("merge.before")


def test_a_delaying_crash_point_holds_the_commit_until_released() -> None:
    """So that a test can look at the world in between."""
    strike = CrashPoint("accept.before", "delay")
    committed = threading.Event()

    def commit() -> None:
        strike("accept.before")
        committed.set()

    thread = threading.Thread(target=commit)
    thread.start()
    assert strike.reached.wait(30)
    assert not committed.is_set()
    strike.release()
    thread.join(30)
    assert committed.is_set()


def test_a_killing_crash_point_ends_the_process_as_kill_9_does() -> None:
    """No atexit, no finally, no flush."""
    program = (
        "from understudy.actors.testing import CrashPoint\n"
        "try:\n    CrashPoint('merge.after', 'kill')('merge.after')\nfinally:\n    print('cleaned up', flush=True)\n"
    )
    victim = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert (victim.returncode, victim.stdout) == (-9, b"")
