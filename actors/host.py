"""Which process this is, and whether another one still lives."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy.persistence import HostRecord

# Fields of /proc/PID/stat after the command's closing parenthesis; the start time is the 22nd of all.
_START_TIME = 19


def incarnation() -> str:
    """A name for this process that no other ever has. Its first part tells which processes can be looked up."""
    return f"{_place()}-{os.urandom(5).hex()}"


def process_started(pid: int) -> int:
    """When a process began, in the kernel's own ticks; 0 where that cannot be known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[_START_TIME])


def surely_dead(host: HostRecord) -> bool:
    """Whether a host that did not sign off is gone beyond doubt: same place, and no such process any more.

    Elsewhere (another machine, another container, a system without /proc) only its silence tells.
    """
    if not host.host.startswith(f"{_place()}-") or not host.process_started:
        return False
    return process_started(host.pid) != host.process_started


def _place() -> str:
    """Where pids mean the same: this boot of this machine, in this namespace of processes."""
    parts = [platform.node()]
    for file in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            parts.append(str(Path(file).readlink()) if file.endswith("pid") else Path(file).read_text(encoding="ascii"))
        except OSError:
            parts.append("")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:4]
