"""Write the stored file of today's version, once, before a migration is added: it is never written again.

Usage: python tests/persistence/stored/write.py
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import Given

from understudy.persistence import Store
from understudy.persistence.migrations import MIGRATIONS
from understudy.persistence.operations import CompactHistory, SaveCheckpoint, SetObjective
from understudy.protocol import EndReason


def write(path: Path) -> None:
    """Run 1 was merged, run 2 waits for delivery, run 3 is running; what they said was compacted."""
    given = Given()
    with Store.open(path, wall_ms=lambda: 0) as store:
        store.transaction(given.opened(), *given.until("merge", 1), given.merge(1)).result()
        store.transaction(*given.until("terminal", 2), given.finish(2, EndReason.KILLED)).result()
        store.transaction(*given.until("terminal", 3)).result()
        store.transaction(
            SetObjective(given.parent, "Ship it"),
            CompactHistory(given.parent, 9_000, "what was said", kept=0),
            SaveCheckpoint(given.parent, 9_000, "a digest", constraints=("be kind",)),
        ).result()
    with closing(sqlite3.connect(path)) as file:
        file.execute("VACUUM")


if __name__ == "__main__":
    target = Path(__file__).with_name(f"v{len(MIGRATIONS)}.db")
    if target.exists():
        sys.exit(f"{target.name} is there: what a version wrote is not written again")
    write(target)
