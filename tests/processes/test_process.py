"""A process of ours: what it gets, what it says, and that nothing below it outlives its end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from _proc import alive, children, known

from understudy.actors import SystemClock
from understudy.actors.processes import Death, Process, Proof, child_environment, killing, launch
from understudy.actors.processes.killing import end_tree
from understudy.actors.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

T = TypeVar("T")


async def shell(command: str, cwd: Path, **options: Any) -> Process:
    """A shell with this command."""
    options.setdefault("clock", SystemClock())
    return await launch(["/bin/sh", "-c", command], cwd=str(cwd), env=child_environment(), **options)


async def said(process: Process, longest: int = 1_000) -> list[bytes]:
    """Its whole output."""
    return [line async for line in process.lines(longest=longest)]


async def pids_in(file: Path, count: int) -> list[int]:
    """So many numbers, once they are written."""
    while len(found := numbers(file)) < count:
        await asyncio.sleep(0)
    return found


def numbers(file: Path) -> list[int]:
    """Those that are in it by now."""
    return [int(number) for number in file.read_text().split()] if file.exists() else []


def descriptors() -> set[str]:
    """Those this process has open."""
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names, not paths


def ended(work: Callable[[], Awaitable[T]]) -> T:
    """Run on a loop of its own, and see that it left neither descriptors nor children behind."""

    async def main() -> T:
        before, below = descriptors(), children(os.getpid())
        result = await work()
        assert descriptors() <= before
        assert children(os.getpid()) <= below
        return result

    return asyncio.run(main())


def test_it_gets_what_was_spelled_out_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Input, folder with PWD, variables; of the host's own environment only what the allow-list says."""
    monkeypatch.setenv("CANARY_KEY", "of the host")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    words = b"x" * 300_000

    async def work() -> tuple[list[bytes], list[bytes]]:
        env = child_environment({"GIVEN": "a=b"}, allow=["LC_*"])
        process = await launch(["/usr/bin/env"], cwd=str(tmp_path), env=env, clock=SystemClock())
        seen = await said(process)
        await process.stop(0)
        process = await shell("pwd; wc -c", tmp_path, stdin=words)
        heard = await said(process)
        await process.stop(0)
        return seen, heard

    seen, heard = ended(work)
    assert sorted(seen) == [b"GIVEN=a=b", b"LC_ALL=C.UTF-8", f"PWD={tmp_path}".encode()]
    assert heard == [os.fsencode(tmp_path), b"300000"]


def test_lines_are_cut_where_they_are_too_long(tmp_path: Path) -> None:
    """Memory is bounded, and what is missing is counted; an unfinished last line is one."""

    async def work() -> list[bytes]:
        process = await shell("head -c 200000 /dev/zero | tr '\\0' x; echo; echo; printf end", tmp_path)
        try:
            return await said(process, longest=10)
        finally:
            await process.stop(0)

    assert ended(work) == ["xxxxxxxxxx [… 199990 bytes omitted …]".encode(), b"", b"end"]


def test_the_last_words_on_stderr_are_kept_and_the_exit_code(tmp_path: Path) -> None:
    """However much was said before them."""

    async def work() -> tuple[int, str]:
        process = await shell("head -c 500000 /dev/zero | tr '\\0' x >&2; echo why >&2; exit 7", tmp_path)
        try:
            return await process.wait(), process.stderr_tail
        finally:
            await process.stop(0)

    code, tail = ended(work)
    assert code == 7
    assert tail.endswith("xwhy\n")
    assert len(tail) == 4096


@pytest.mark.parametrize(
    ("argv", "cwd", "words"),
    [
        (["/no/such"], "/", "[Errno 2] No such file or directory: '/no/such'"),
        (["true"], "/no/folder", "[Errno 2] No such file or directory: '/no/folder'"),
        (["/etc/passwd"], "/", "[Errno 13] Permission denied: '/etc/passwd'"),
    ],
)
def test_what_cannot_be_started_says_why(argv: list[str], cwd: str, words: str) -> None:
    """As any process does, and leaves nothing behind."""

    async def work() -> None:
        await launch(argv, cwd=cwd, env={}, clock=SystemClock())

    with pytest.raises(OSError) as caught:  # noqa: PT011 - its words are compared
        ended(work)
    assert str(caught.value) == words


BORN_LATE = (
    "trap \"setsid sh -c 'trap : TERM; echo \\$\\$ >>pids; while :; do sleep 600; done' & exit\" TERM; "
    "echo $$ >>pids; while :; do sleep 600 & wait; done"
)
OWN_SESSION = "setsid sh -c 'trap \"\" TERM; echo $$ >>pids; sleep 600' & echo $$ >>pids; wait"
# The command, how many tell their pids, how long they are given, and which signals that takes.
TREES: dict[str, tuple[str, int, float, set[str]]] = {
    "asked": ("sleep 600 & echo $$ $! >pids; wait", 2, 60, {"TERM"}),
    "deaf": ("trap '' TERM; sleep 600 & echo $$ $! >pids; wait", 2, 0.1, {"KILL"}),
    "own session": (OWN_SESSION, 2, 0.1, {"TERM", "KILL"}),
    "orphan": ("(setsid sh -c 'echo $$ >>pids; exec sleep 600' &); echo $$ >>pids", 2, 60, {"TERM", "none"}),
    "born late": (BORN_LATE, 1, 0.3, {"TERM", "KILL", "none"}),
}


@pytest.mark.parametrize("kind", TREES)
def test_a_whole_tree_is_dead_when_stop_returns(kind: str, tmp_path: Path) -> None:
    """Those that ignore TERM, that moved to another session, lost their parent, or came during the grace."""
    command, count, grace, signals = TREES[kind]

    async def work() -> tuple[list[int], Proof]:
        process = await shell(command, tmp_path)
        await pids_in(tmp_path / "pids", count)
        proof = await process.stop(grace)
        pids = numbers(tmp_path / "pids")
        assert [pid for pid in pids if known(pid)] == []
        assert process.pid in {death.pid for death in proof.dead}
        return pids, proof

    pids, proof = ended(work)
    assert proof.survivors == ()
    assert set(pids) <= {death.pid for death in proof.dead}
    assert {death.signal for death in proof.dead} <= signals
    assert all(death.started for death in proof.dead)


def test_output_held_open_by_others_is_not_waited_for(tmp_path: Path) -> None:
    """A grandchild in its own session has the pipe; the process's own words are all there."""

    async def work() -> list[bytes]:
        process = await shell("setsid sleep 600 & echo done", tmp_path)
        lines = await said(process)
        assert await process.wait() == 0
        proof = await process.stop(0)
        assert "KILL" in {death.signal for death in proof.dead}
        return lines

    assert ended(work) == [b"done"]


def test_stopping_twice_and_after_the_exit_is_one_stop(tmp_path: Path) -> None:
    """Everybody who asks gets the same proof."""

    async def work() -> list[Proof]:
        process = await shell("exit 0", tmp_path)
        await process.wait()
        return [*await asyncio.gather(process.stop(5), process.stop(0)), await process.stop(1)]

    first, *others = ended(work)
    assert others == [first, first]
    assert {death.signal for death in first.dead} == {"none"}


def test_a_stop_goes_on_when_its_caller_is_cancelled(tmp_path: Path) -> None:
    """It is the killing that must not be interrupted."""

    async def work() -> Proof:
        process = await shell("trap '' TERM; echo $$ >pids; while :; do sleep 600; done", tmp_path)
        await pids_in(tmp_path / "pids", 1)
        impatient = asyncio.ensure_future(process.stop(0.1))
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        assert await process.wait() == -signal.SIGKILL
        return await process.stop(600)

    assert ended(work).survivors == ()


def test_the_grace_passes_on_the_injected_clock(tmp_path: Path) -> None:
    """A process that ignores TERM lives exactly as long as the clock says."""

    async def work() -> set[str]:
        clock = ManualClock()
        process = await shell("trap 'echo heard >heard' TERM; echo $$ >pids; while :; do sleep 0.01; done", tmp_path,
                              clock=clock)  # fmt: skip
        (pid,) = await pids_in(tmp_path / "pids", 1)
        stopping = asyncio.ensure_future(process.stop(86_400))
        while not (tmp_path / "heard").exists():
            await asyncio.sleep(0)
        await clock.advance_async(86_399)
        assert alive(pid)
        await clock.advance_async(1)
        proof = await stopping
        assert not alive(pid)
        return {death.signal for death in proof.dead if death.pid == pid}

    assert ended(work) == {"KILL"}


def test_a_warden_that_is_killed_takes_its_process_with_it(tmp_path: Path) -> None:
    """And the host ends what is left in the session itself."""

    async def work() -> Proof:
        below = children(os.getpid())
        process = await shell("sleep 600 & echo $$ $! >pids; wait", tmp_path)
        (warden,) = children(os.getpid()) - below
        pids = await pids_in(tmp_path / "pids", 2)
        os.kill(warden, signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
        proof = await process.stop(5)
        assert not any(map(alive, pids))
        return proof

    assert ended(work).survivors == ()


def test_it_starts_with_a_clean_slate(tmp_path: Path) -> None:
    """It has a session of its own, every signal's default, and no descriptor but its three."""
    program = (
        "import os, signal\n"
        "ours = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
        "print(os.getsid(0) == os.getpid(), ours, os.listdir('/dev/fd'))\n"
    )

    async def work() -> list[bytes]:
        argv = [sys.executable, "-I", "-S", "-c", program]
        process = await launch(argv, cwd="/", env={}, clock=SystemClock())
        try:
            return await said(process)
        finally:
            await process.stop(0)

    assert ended(work) == [b"True True ['0', '1', '2', '3']"]  # 3 is the listing itself


def test_many_at_once_need_no_threads_and_no_small_orders(tmp_path: Path) -> None:
    """The event loop hears of every exit; an order longer than a socket holds gets there."""
    long = "x" * 100_000

    async def one(number: int) -> list[bytes]:
        env = {f"LONG_{part}": long for part in range(4)}
        argv = ["/bin/sh", "-c", "echo $0 ${#1} ${#LONG_3}", str(number), long]
        process = await launch(argv, cwd=str(tmp_path), env=env, clock=SystemClock())
        try:
            return await said(process)
        finally:
            await process.stop(0)

    async def work() -> list[list[bytes]]:
        before = threading.active_count()
        heard = await asyncio.gather(*map(one, range(6)))
        assert threading.active_count() == before
        return heard

    assert ended(work) == [[f"{number} 100000 100000".encode()] for number in range(6)]


def test_a_survivor_is_named_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it was given no time to die; where the kernel does not let a process go it is the same."""
    monkeypatch.setattr(killing, "CONFIRM_SECONDS", 0.0)

    async def work() -> tuple[int, list[int]]:
        process = await shell("exec sleep 600", tmp_path)
        _, survivors = end_tree(process.pid, process.pid, lambda _seconds: False)
        await process.stop(0)
        return process.pid, [pid for pid, _ in survivors]

    pid, survivors = ended(work)
    assert survivors == [pid]
    assert str(Proof((Death(1, 2, "TERM"),), (Death(3, 4, "KILL"),))) == "dead: 1@2 TERM; alive: 3@4 KILL"


@pytest.mark.parametrize("leader", [-1, 0, 1])
def test_nobody_else_s_group_is_ever_signalled(leader: int) -> None:
    """0 would be the caller's own group, and -1 and 1 everybody's."""
    with pytest.raises(ValueError, match="is not the leader of a group of ours"):
        end_tree(os.getpid(), leader, lambda _seconds: False)
