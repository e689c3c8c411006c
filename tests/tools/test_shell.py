"""The shell tool: opt-in, with few variables, bounded output, and no survivors."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
from _proc import see_gone

from understudy.actors.processes import Process
from understudy.actors.tools import ToolContext, ToolOutcome, shell_tool
from understudy.actors.tools._process import _Output
from understudy.actors.tools.shell import MAX_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path
    from typing import Any

    from understudy.actors.testing import ManualClock

    from .conftest import Call, Roots


def test_a_line_and_a_list_run_in_the_working_directory(call: Call, roots: Roots) -> None:
    """Both streams, the exit code, no input."""
    shell = shell_tool()
    assert call(shell, command="pwd; echo oops >&2; cat") == ToolOutcome(f"{roots.cwd}\noops\n")
    assert call(shell, command=["printf", "%s", "$HOME; é"]) == ToolOutcome("$HOME; é")
    assert call(shell, command="echo x; exit 3") == ToolOutcome("x\n\n[exit code 3]", is_error=True)
    assert call(shell, command="true") == ToolOutcome("[no output]")
    assert call(shell, command=["/no/such/program"]) == ToolOutcome(
        "'/no/such/program' could not be started: No such file or directory", is_error=True
    )
    assert call(shell, command=["echo", "a\0b"]).text == "'echo' could not be started: embedded null byte"


def test_a_command_sees_few_variables_of_the_host(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys live in the others; what the host adds is added."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-host")
    monkeypatch.setenv("LANG", "C.UTF-8")
    seen = call(shell_tool(env={"PROJECT": "demo"}), command=["env"]).text
    assert "sk-host" not in seen
    assert "PROJECT=demo" in seen.splitlines()
    assert "LANG=C.UTF-8" in seen.splitlines()


def test_a_flood_of_output_is_bounded(call: Call) -> None:
    """Beginning and end survive, and what lies between is counted."""
    text = call(shell_tool(), command="echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo last").text
    assert text.startswith("first\nx")
    assert text.endswith("xlast\n")
    assert f"\n[… {3_000_000 + 11 - MAX_OUTPUT} bytes omitted …]\n" in text


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_the_head_and_tail_of_a_stream_are_exact_however_it_arrives(size: int) -> None:
    """In pieces of any size."""
    data = bytes(range(100))
    output = _Output(10)
    for at in range(0, 100, size):
        output.take(data[at : at + size])
    assert output.parts() == (data[:6], data[-4:])
    assert output.omitted == 90


def test_the_host_bounds_how_long_a_command_may_ask_for(call: Call) -> None:
    """Its timeout is the default and the most."""
    assert call(shell_tool(timeout_ms=1000), command="true", timeout=1001).text == (
        "timeout = 1001 is not allowed: use 1 to 1000"
    )
    with pytest.raises(ValueError, match="timeout_ms = 0 is not allowed: use 1 to 600000"):
        shell_tool(timeout_ms=0)


TREE = "echo $$ >pids; sh -c 'echo $$ >>pids; sleep 600 & echo $! >>pids; echo >ready; wait' & wait"


def with_tree(
    roots: Roots, clock: ManualClock, end: Callable[[asyncio.Future[ToolOutcome]], Coroutine[Any, Any, None]]
) -> ToolOutcome | BaseException:
    """Start a tree of three processes, end it, and see that all are gone."""

    async def refuse(_function: object) -> Any:
        raise AssertionError

    async def main() -> ToolOutcome | BaseException:
        context = ToolContext(str(roots.cwd), str(roots.workspace), clock, refuse)
        running = asyncio.ensure_future(shell_tool().call({"command": TREE}, context))
        while not (roots.cwd / "ready").exists():
            await asyncio.sleep(0)
        await end(running)
        (outcome,) = await asyncio.gather(running, return_exceptions=True)
        pids = [int(line) for line in (roots.cwd / "pids").read_text().split()]
        assert len(pids) == 3
        await asyncio.to_thread(see_gone, pids)
        return outcome

    return asyncio.run(main())


def test_a_timeout_kills_the_whole_tree(roots: Roots, stopped_clock: ManualClock) -> None:
    """A grandchild too."""

    async def end(_running: asyncio.Future[ToolOutcome]) -> None:
        await stopped_clock.advance_async(60)

    assert with_tree(roots, stopped_clock, end) == ToolOutcome("[killed after 60000 ms]", is_error=True)


def test_cancellation_kills_the_whole_tree(roots: Roots, stopped_clock: ManualClock) -> None:
    """A killed run leaves nothing running."""

    async def end(running: asyncio.Future[ToolOutcome]) -> None:
        running.cancel()

    assert isinstance(with_tree(roots, stopped_clock, end), asyncio.CancelledError)


def test_cancellation_while_it_starts_kills_the_whole_tree(
    roots: Roots, stopped_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may be there, with children, before the host hears so: on a busy machine it often is."""
    release = asyncio.Event()
    begun = Process.begun

    async def begin_slowly(process: Process) -> tuple[int, str] | None:
        refusal = await begun(process)
        await release.wait()
        return refusal

    monkeypatch.setattr(Process, "begun", begin_slowly)

    async def end(running: asyncio.Future[ToolOutcome]) -> None:
        running.cancel()
        await stopped_clock.run_until_idle_async()
        release.set()

    assert isinstance(with_tree(roots, stopped_clock, end), asyncio.CancelledError)


def test_what_a_command_leaves_in_the_background_ends_with_it(call: Call, roots: Roots) -> None:
    """It would hold the pipe, and the call, for ten minutes."""
    assert call(shell_tool(), command="sleep 600 & echo $! >pid; echo done") == ToolOutcome("done\n")
    pid = int((roots.cwd / "pid").read_text())
    see_gone([pid])


def test_it_carries_what_the_host_decided() -> None:
    """Group, approval; and its paths are nobody's guess."""
    assert (shell_tool(approval=True).approval, shell_tool().group, shell_tool().paths) == (True, "shell", ())


def test_no_stray_descriptor_reaches_a_command(call: Call, tmp_path: Path) -> None:
    """The store's file, say."""
    with (tmp_path / "store").open("w") as held:
        os.set_inheritable(held.fileno(), True)  # noqa: FBT003
        assert str(tmp_path / "store") not in call(shell_tool(), command="ls -l /proc/self/fd").text
