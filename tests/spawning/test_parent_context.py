"""What a child touched is before its parent at the next call, whatever became of the child."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _stage import MAIN, a_host, delegate, died, later

from understudy.protocol import EndReason, RecentFile, Spawn

if TYPE_CHECKING:
    from understudy.actors import Session
    from understudy.actors.runners import AsyncFunctionContext, FunctionContext
    from understudy.actors.testing import ManualClock
    from understudy.protocol import SpawnPacket

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("a.py", "b.py", "c.py")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with three files."""
    folder = Path(os.path.realpath(tmp_path)) / "project"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(name, encoding="utf-8")
    return folder


async def touch_all(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    """Reads two files and edits a third."""
    for name in NAMES[:2]:
        await context.read_file(name)
    context.touch(NAMES[2], "edit")
    return "read them"


async def touch_and_hang(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    """Gets that far, and no further."""
    await touch_all(packet, context)
    await asyncio.get_running_loop().create_future()
    return "never"


def expected(project: Path, *names: str) -> str:
    """The block, last touched on top."""
    return "\n".join(
        ["[working-context]", f"project_dir: {project}", "recent_files:", *(f"  - {project / name}" for name in names)]
    )


# -- Must hold, line 1 --------------------------------------------------------------------------------------------


def test_three_touched_files_are_in_the_parents_next_context_the_last_on_top(
    manual_clock: ManualClock, project: Path
) -> None:
    """Exactly these lines, and the same as a value."""
    with a_host(manual_clock, touch_all) as runtime:
        session = runtime.session(MAIN, workspace=project)
        assert session.next_context() == ""
        result = session.spawn(Spawn(task="x")).result(timeout=30)
        assert session.next_context() == expected(project, "c.py", "b.py", "a.py")
        assert session.working_context.recent_files == tuple(str(project / name) for name in reversed(NAMES))
        assert [(Path(file.path).name, file.provenance) for file in result.recent_files] == [
            ("a.py", "read"),
            ("b.py", "read"),
            ("c.py", "changed"),
        ]


def test_also_after_a_restart(manual_clock: ManualClock, project: Path, tmp_path: Path) -> None:
    """Whether the host stopped in order or died."""
    store = tmp_path / "s.db"
    with a_host(manual_clock, touch_all, store=store) as runtime:
        session = runtime.session(MAIN, workspace=project)
        session.spawn(Spawn(task="x")).result(timeout=30)
        crashed = died(runtime, tmp_path)
    for survivor in (store, crashed):
        with a_host(later(), store=survivor) as runtime:
            assert runtime.session(MAIN).next_context() == expected(project, "c.py", "b.py", "a.py")


def test_also_when_the_host_dies_while_the_child_works(
    manual_clock: ManualClock, project: Path, tmp_path: Path
) -> None:
    """The receipts are recorded as they come, so that a run nobody could end hands them over."""
    with a_host(manual_clock, touch_and_hang) as runtime:
        handle = runtime.session(MAIN, workspace=project).spawn(Spawn(task="x"))
        manual_clock.run_until_idle()
        crashed = died(runtime, tmp_path)
    with a_host(later(), store=crashed) as runtime:
        session = runtime.session(MAIN)
        result = runtime.run(handle.run_id).result(timeout=30)
        assert result.end_reason is EndReason.GHOST_SWEEP
        assert session.next_context() == expected(project, "c.py", "b.py", "a.py")


def test_also_through_a_grandchild(manual_clock: ManualClock, project: Path) -> None:
    """What the grandchild touched, the child touched: in its result and in the parent's context."""
    with a_host(manual_clock, delegate, runners={"grandchild": touch_all}) as runtime:
        session = runtime.session(MAIN, workspace=project)
        result = session.spawn(Spawn(task="x")).result(timeout=30)
        assert [Path(file.path).name for file in result.recent_files] == list(NAMES)
        assert session.next_context() == expected(project, "c.py", "b.py", "a.py")


def test_also_through_a_grandchild_that_outlives_the_child(manual_clock: ManualClock, project: Path) -> None:
    """Its result goes to the nearest session that is still there."""
    gate = manual_clock.gate()

    async def leave(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        await context.spawn(Spawn(task="y", runner="grandchild"))
        return "it works on"

    async def wait_and_touch(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        await gate
        return await touch_all(packet, context)

    with a_host(manual_clock, leave, runners={"grandchild": wait_and_touch}) as runtime:
        session = runtime.session(MAIN, workspace=project)
        assert session.spawn(Spawn(task="x")).result(timeout=30).recent_files == ()
        assert session.next_context() == ""
        gate.open()
        manual_clock.run_until_idle()
        assert session.next_context() == expected(project, "c.py", "b.py", "a.py")


@pytest.mark.parametrize("end", ["kill", "timeout", "crash", "close"])
@pytest.mark.parametrize("nested", [False, True])
def test_also_when_the_child_ends_half_way(
    end: str, nested: bool, manual_clock: ManualClock, project: Path, tmp_path: Path
) -> None:
    """Killed, timed out, crashed, or stopped with its session; itself or by its grandchild."""
    gate = manual_clock.gate()

    async def touch_and_crash(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        await touch_all(packet, context)
        await gate
        raise RuntimeError("half-way")

    worker = touch_and_crash if end == "crash" else touch_and_hang
    default = delegate if nested else worker
    with a_host(manual_clock, default, store=tmp_path / "s.db", runners={"grandchild": worker}) as runtime:
        session = runtime.session(MAIN, workspace=project)
        handle = session.spawn(Spawn(task="x", timeout_ms=10_000))
        manual_clock.run_until_idle()
        if end == "kill":
            session.kill(handle.run_id)
        elif end == "timeout":
            manual_clock.advance(10)
        elif end == "crash":
            gate.open()
        else:
            session.close()
            session = runtime.session(MAIN)
        result = handle.result(timeout=30)
        assert result.end_reason is not EndReason.COMPLETED or (nested and end == "crash")
        assert [Path(file.path).name for file in result.recent_files] == list(NAMES)
        assert session.next_context() == expected(project, "c.py", "b.py", "a.py")


# -- golden files -------------------------------------------------------------------------------------------------


def context_of(session: Session, project: Path) -> str:
    return session.next_context().replace(str(project), "/project")


def test_a_session_without_sub_agents_has_the_context_it_always_had(manual_clock: ManualClock, project: Path) -> None:
    """Nothing: not a heading, not a blank line."""
    with a_host(manual_clock) as runtime:
        session = runtime.session(MAIN, workspace=project)
        assert context_of(session, project) == (GOLDEN / "without_sub_agents.txt").read_text(encoding="utf-8")
        assert session.transcript() == []


def test_a_session_with_sub_agents_has_the_context_of_the_golden_file(manual_clock: ManualClock, project: Path) -> None:
    """Three children one after the other, a file touched twice, more files than are kept."""

    async def touch_named(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        for name in packet.task.split():
            context.touch(name)
        return "done"

    with a_host(manual_clock, touch_named, config={"recent_files_max": 4}) as runtime:
        session = runtime.session(MAIN, workspace=project)
        for task in ("one two three", "src/four one", "five"):
            session.spawn(Spawn(task=task)).result(timeout=30)
        assert context_of(session, project) == (GOLDEN / "with_sub_agents.txt").read_text(encoding="utf-8").rstrip("\n")


# -- what counts as touched ---------------------------------------------------------------------------------------


def touched(
    clock: ManualClock, project: Path, *receipts: tuple[str, bool], cwd: Path | None = None
) -> tuple[list[str], int]:
    """The files of a child that handed in these receipts (path, ok), and how many were dropped."""

    async def hand_in(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        for path, ok in receipts:
            context.touch(path, "read", ok=ok)
        return "done"

    with a_host(clock, hand_in) as runtime:
        session = runtime.session(MAIN, workspace=project, cwd=cwd)
        result = session.spawn(Spawn(task="x")).result(timeout=30)
        files = [file.path for file in result.recent_files]
        assert session.working_context.recent_files == tuple(reversed(files))
        return files, result.dropped_files


def test_files_outside_the_roots_are_dropped_and_counted(manual_clock: ManualClock, project: Path) -> None:
    """By name, by dots and by a link; a neighbour whose name begins alike is outside too."""
    neighbour = project.with_name("project-2")
    neighbour.mkdir()
    (neighbour / "x").touch()
    (project / "out").symlink_to(neighbour)
    outside = ["/etc/hosts", "../secret", str(neighbour / "x"), "out/x"]
    assert touched(manual_clock, project, ("a.py", True), *((path, True) for path in outside)) == (
        [str(project / "a.py")],
        4,
    )


def test_both_cwd_and_workspace_are_roots(manual_clock: ManualClock, project: Path) -> None:
    """Relative paths are relative to cwd."""
    cwd = project.with_name("elsewhere")
    cwd.mkdir()
    files, dropped = touched(manual_clock, project, ("x", True), (str(project / "a.py"), True), cwd=cwd)
    assert (files, dropped) == ([str(cwd / "x"), str(project / "a.py")], 0)


def test_failed_receipts_do_not_count(manual_clock: ManualClock, project: Path) -> None:
    """A file that could not be read was not touched, and not dropped either."""
    assert touched(manual_clock, project, ("a.py", False), ("b.py", True), ("/etc/hosts", False)) == (
        [str(project / "b.py")],
        0,
    )


def test_links_are_followed_to_the_one_file_they_mean(manual_clock: ManualClock, project: Path) -> None:
    """The same file by two names is one entry, at its last touch."""
    (project / "alias.py").symlink_to("a.py")
    (project / "again").symlink_to(project)
    receipts = [("alias.py", True), ("b.py", True), ("again/./a.py", True)]
    assert touched(manual_clock, project, *receipts) == ([str(project / "b.py"), str(project / "a.py")], 0)


@pytest.mark.parametrize("path", ["caf\udce9", "two\nlines", "a\0b", "", "  ", "line\u2028separator"])
def test_a_name_that_cannot_stand_on_one_line_is_dropped_and_the_run_ends_well(
    path: str, manual_clock: ManualClock, project: Path
) -> None:
    """Such files exist; they must neither forge a line of the context nor keep a run from its result."""
    assert touched(manual_clock, project, (path, True), ("a.py", True)) == ([str(project / "a.py")], 1)


def test_a_name_that_only_its_target_spoils_is_dropped_too(manual_clock: ManualClock, project: Path) -> None:
    """What is shown is where the link leads."""
    (project / "two\nlines").touch()
    (project / "fine").symlink_to("two\nlines")
    assert touched(manual_clock, project, ("fine", True)) == ([], 1)


def test_changed_stays_changed_and_moves_to_the_last_touch(manual_clock: ManualClock, project: Path) -> None:
    """Reading back what was written is not a reason to call it read; sync functions tell it alike."""

    def write_then_read(packet: SpawnPacket, context: FunctionContext) -> str:
        context.touch("a.py", "write")
        context.touch("b.py")
        return context.read_file("a.py")

    with a_host(manual_clock, write_then_read) as runtime:
        result = runtime.session(MAIN, workspace=project).spawn(Spawn(task="x")).result(timeout=30)
        assert result.recent_files == (
            RecentFile(path=str(project / "b.py"), provenance="read"),
            RecentFile(path=str(project / "a.py"), provenance="changed"),
        )


def test_several_results_at_once_all_end_in_the_context(manual_clock: ManualClock, project: Path) -> None:
    """None of them builds on a context in which another is missing."""
    gate = manual_clock.gate()

    async def touch_its_own(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        await gate
        context.touch(packet.task)
        return "done"

    with a_host(manual_clock, touch_its_own, config={"max_children_per_agent": 20, "recent_files_max": 20}) as runtime:
        session = runtime.session(MAIN, workspace=project)
        handles = [session.spawn(Spawn(task=f"file-{number}")) for number in range(20)]
        gate.open()
        for handle in handles:
            handle.result(timeout=30)
        assert len(session.working_context.recent_files) == 20
        stored = runtime.store.sessions.working_context(MAIN)
        assert stored is not None
        assert stored.recent_files == session.working_context.recent_files
