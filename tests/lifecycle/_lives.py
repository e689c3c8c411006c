"""One store through several lives of its hosts."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from understudy.actors import Runtime
from understudy.actors.testing import ManualClock
from understudy.protocol import RuntimeConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from understudy.actors.runners import Runner
    from understudy.actors.testing import CrashPoint


class Lives:
    """One database through the lives and deaths of its hosts; time goes on between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self._count = 0

    @property
    def database(self) -> Path:
        return self.folder / f"life-{self._count}" / "agents.db"

    @contextmanager
    def host(
        self,
        runner: Runner,
        *,
        others: dict[str, Runner] | None = None,
        config: dict[str, Any] | None = None,
        hook: CrashPoint | None = None,
    ) -> Iterator[Runtime]:
        """A host that lives as long as the block, on what the last one left."""
        self.database.parent.mkdir(exist_ok=True)
        with Runtime(
            self.database,
            clock=self.clock,
            runners={"default": runner, **(others or {})},
            config=RuntimeConfig(**(config or {})),
            commit_hook=hook,
        ) as runtime:
            yield runtime

    def crash(self) -> None:
        """The host is gone now, with all that was not committed: what follows works on a copy of this moment."""
        left = self.database
        now, self.clock = self.clock.monotonic(), ManualClock()
        self.clock.advance(now)
        self._count += 1
        self.database.parent.mkdir()
        source, copy = sqlite3.connect(left), sqlite3.connect(self.database)
        source.backup(copy)
        # Another process has that pid by now, if any has.
        copy.execute("UPDATE hosts SET process_started = process_started + 1")
        copy.commit()
        source.close()
        copy.close()
