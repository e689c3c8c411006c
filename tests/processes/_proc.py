"""Looking at processes from outside."""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def alive(pid: int) -> bool:
    """Whether it runs: a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def known(pid: int) -> bool:
    """Whether the kernel has it, if only as a zombie that nobody reaped."""
    return Path(f"/proc/{pid}").exists()


def children(parent: int) -> set[int]:
    """The processes directly below ``parent``, dead ones that nobody reaped included."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.add(int(entry.name))
    return found


def see_gone(pids: Iterable[int]) -> None:
    """Return when all are gone; the kernel tells, and pytest's own timeout is the limit."""
    for pid in pids:
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if alive(pid):
                select.select([process], [], [])
        finally:
            os.close(process)
