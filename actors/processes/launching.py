"""The one way to start a process: below a warden, in a session of its own, with an environment that was spelled out."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.actors.processes.pipes import Feed
from understudy.actors.processes.process import Process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from understudy.actors.clock import Clock

ORPHAN_GRACE = 2.0
"""Seconds between TERM and KILL where the host is gone and cannot say."""

# -I -S: nothing of the host's environment or site-packages, which it needs as little as the time they take.
_WARDEN = (sys.executable, "-I", "-S", "-W", "ignore", str(Path(__file__).with_name("warden.py")))


async def launch(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    clock: Clock,
    stdin: bytes | int | None = None,
    merge_stderr: bool = False,
    pass_fds: Sequence[int] = (),
) -> Process:
    """Start ``argv`` in ``cwd``; raises OSError where that cannot be, ValueError where no program could be told so.

    ``env`` is all it gets (see `child_environment`), and PWD, which is ``cwd``. ``stdin`` is its whole input, or a
    descriptor it reads from, which stays the caller's; without it there is none. With ``merge_stderr`` both streams
    come as its output. ``pass_fds`` stay open in it under the same numbers. Whoever calls this calls `Process.stop` in
    the end; when this call itself is cancelled nothing is left.
    """
    order = _order(argv, cwd, {**env, "PWD": cwd})
    process = _below_a_warden(stdin, merge_stderr, pass_fds, clock)
    try:
        await process.order(order)
    except BaseException:
        process.abandon()
        raise
    try:
        refusal = await process.begun()
    except BaseException:
        await process.stop(0)
        raise
    if refusal is not None:
        await process.stop(0)
        number, what = refusal
        if what == "warden":
            raise OSError(f"{argv[0]!r} could not be started: its warden died")
        raise OSError(number, os.strerror(number), cwd if what == "cwd" else argv[0])
    return process


def _order(argv: Sequence[str], cwd: str, env: Mapping[str, str]) -> bytes:
    """What the warden is told: cwd, grace, number of words, the words, the variables; each ends where a NUL is."""
    if any("=" in name or not name for name in env):
        raise ValueError("illegal environment variable name")
    entries = [cwd, str(ORPHAN_GRACE), str(len(argv)), *argv, *(f"{name}={value}" for name, value in env.items())]
    if any("\0" in entry for entry in entries):
        raise ValueError("embedded null byte")
    return b"\0".join(map(os.fsencode, entries))


def _below_a_warden(stdin: bytes | int | None, merge_stderr: bool, pass_fds: Sequence[int], clock: Clock) -> Process:
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    errors, complaining = (None, writing) if merge_stderr else os.pipe()
    listening, feeding = os.pipe() if isinstance(stdin, bytes) and stdin else (subprocess.DEVNULL, None)
    mine = [number for number in (reading, errors, feeding) if number is not None]
    try:
        started = subprocess.Popen(  # noqa: S603 - our own program
            [*_WARDEN, str(theirs.fileno()), str(os.getpid())],
            stdin=stdin if isinstance(stdin, int) else listening,
            stdout=writing,
            stderr=complaining,
            pass_fds=(theirs.fileno(), *pass_fds),
            env={},
            cwd="/",
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        for number in mine:
            os.close(number)
        raise
    finally:
        theirs.close()
        for number in {writing, complaining, listening} - {subprocess.DEVNULL}:
            os.close(number)
    feed = Feed(feeding, stdin) if feeding is not None and isinstance(stdin, bytes) else None
    return Process(started, ours, stdout=reading, stderr=errors, feed=feed, clock=clock)
