"""The kill protocol: how a process and everything below it is ended, by its warden or, without one, by the host.

It needs next to no imports, because the warden is started with every process and must be there in milliseconds.
"""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Mark = tuple[int, int]
    """A process for certain: its pid and when it began, in the kernel's ticks: a later owner of the pid began later."""

CONFIRM_SECONDS = 2.0
"""How long death is waited for after SIGKILL: a process that the kernel does not let go is reported, not waited for."""

_LOOK_SECONDS = 0.02

# Fields of /proc/PID/stat after the command's closing parenthesis.
_STATE, _PARENT, _GROUP, _SESSION, _THREADS, _STARTED = 0, 1, 2, 3, 17, 19


def end_tree(root: int, leader: int, waits: Callable[[float], bool]) -> tuple[dict[Mark, str], list[Mark]]:
    """End all processes below ``root`` and all of ``leader``'s group; gives the signal each needed, and who survived.

    ``waits`` passes so many seconds of the grace, or fewer, and answers whether there is more of it.
    """
    if leader <= 1:
        # 0 would mean the caller's own group, 1 everybody: never, whatever went wrong before.
        raise ValueError(f"{leader} is not the leader of a group of ours")
    needed: dict[Mark, str] = {}

    def alive() -> dict[Mark, int]:
        found = below(root, leader)
        for mark in found:
            needed.setdefault(mark, "none")  # those born late are recorded too
        return found

    left = alive()
    if left and waits(0.0):
        _signal_group(leader, left, signal.SIGTERM, needed)
        while (left := alive()) and waits(_LOOK_SECONDS):
            if leader not in left.values():
                # Nobody is left to end these: they sit in sessions of their own.
                _signal_each([mark for mark in left if needed[mark] == "none"], signal.SIGTERM, needed)
    give_up = time.monotonic() + CONFIRM_SECONDS
    while left and time.monotonic() < give_up:
        _signal_group(leader, left, signal.SIGKILL, needed)
        _signal_each(list(left), signal.SIGKILL, needed)
        time.sleep(0.002)
        left = alive()
    return needed, list(left)


def below(root: int, leader: int) -> dict[Mark, int]:
    """The living processes below ``root`` and in ``leader``'s group or session, each with its group."""
    children: dict[int, list[tuple[Mark, int]]] = {}
    found: dict[Mark, int] = {}
    for mark, parent, group, session in _living():
        children.setdefault(parent, []).append((mark, group))
        if leader in {mark[0], group, session}:
            found[mark] = group
    todo = [root, *(pid for pid, _ in found)]
    while todo:
        for mark, group in children.pop(todo.pop(), ()):
            found[mark] = group
            todo.append(mark[0])
    if not found and not os.path.isdir("/proc/self"):  # noqa: PTH112 - pathlib is too much to import here
        found = _group_without_proc(leader)
    return found


def started(pid: int) -> int:
    """When a living process began, in the kernel's own ticks; 0 where there is none."""
    return next((mark[1] for mark, *_ in _living([str(pid)])), 0)


def _living(names: list[str] | None = None) -> Iterator[tuple[Mark, int, int, int]]:
    try:
        listed = os.listdir("/proc") if names is None else names  # noqa: PTH208 - likewise
    except OSError:
        return
    for name in listed:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - likewise
                stat = file.read()
        except OSError:  # it ended while we looked
            continue
        fields = stat[stat.rindex(b")") + 2 :].split()
        # A zombie is dead, unless it is only the first of several threads.
        if fields[_STATE] not in {b"Z", b"X"} or int(fields[_THREADS]) > 1:
            mark = int(name), int(fields[_STARTED])
            yield mark, int(fields[_PARENT]), int(fields[_GROUP]), int(fields[_SESSION])


def _group_without_proc(leader: int) -> dict[Mark, int]:
    try:
        os.killpg(leader, 0)
    except OSError:
        return {}
    return {(leader, 0): leader}


def _signal_group(leader: int, members: dict[Mark, int], number: signal.Signals, needed: dict[Mark, str]) -> None:
    # At once, so that nobody is born in between. While it has a member no other group can have its number.
    if leader not in members.values():
        return
    try:
        os.killpg(leader, number)
    except OSError:
        return
    for mark, group in members.items():
        if group == leader:
            needed[mark] = number.name[3:]


def _signal_each(marks: list[Mark], number: signal.Signals, needed: dict[Mark, str]) -> None:
    for mark in marks:
        pid, began = mark
        try:
            # Held by its descriptor and then compared, so that the signal cannot reach a later owner of the pid.
            process = os.pidfd_open(pid)
        except (AttributeError, OSError):  # not Linux, or gone
            continue
        try:
            if started(pid) == began:
                signal.pidfd_send_signal(process, number)
                needed[mark] = number.name[3:]
        except OSError:  # gone, or not ours to signal: then it is found among the survivors
            pass
        finally:
            os.close(process)
