"""A host process that is killed: prints each commit it saw acknowledged. See test_faults.py.

Usage: struck_host.py DATABASE POINT, or struck_host.py DATABASE traffic
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, cast

from conftest import Doorstop, Given

from understudy.actors.testing import CrashPoint
from understudy.persistence import Store

if TYPE_CHECKING:
    from understudy.persistence._commit import Point
    from understudy.protocol.commit_points import CommitPoint


def acknowledged(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def struck(database: str, at: CommitPoint) -> None:
    """Runs 1, 2 and 3 come to the point in one group; the process is gone when the first of them is there."""
    given, doorstop = Given(), Doorstop()
    point = cast("Point", at.split(".")[0])
    store = Store.open(database, wall_ms=lambda: 0, commit_hook=doorstop)
    doorstop.then = CrashPoint(at, "kill")
    doorstop.hold(store)
    made = [store.transaction(*given.until(point, number)) for number in (1, 2, 3)]
    doorstop.release()
    for commit in made:
        commit.result()
    acknowledged("made")
    for commit in [store.transaction(*given.at(point, number), point=point) for number in (1, 2, 3)]:
        commit.result()
        acknowledged("struck")


def traffic(database: str) -> None:
    """Four threads take run after run from accept to merge, until somebody ends this."""
    given, numbers = Given(), iter(range(1, sys.maxsize))
    store = Store.open(database, wall_ms=lambda: 0)
    store.transaction(given.opened()).result()

    def live() -> None:
        for number in numbers:
            store.transaction(*given.accept(number), given.start(number), point="accept").result()
            acknowledged(f"accept {number}")
            store.transaction(given.finish(number), point="terminal").result()
            acknowledged(f"terminal {number}")
            store.transaction(given.merge(number), point="merge").result()
            acknowledged(f"merge {number}")

    for _ in range(4):
        threading.Thread(target=live).start()


if __name__ == "__main__":
    if sys.argv[2] == "traffic":
        traffic(sys.argv[1])
    else:
        struck(sys.argv[1], cast("CommitPoint", sys.argv[2]))
