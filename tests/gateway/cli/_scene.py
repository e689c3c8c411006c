"""Fixtures for the command line's tests to import: a folder of their own, a database with something in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from _program import STEERING, worker
from _stage import MAIN, a_host

from understudy.actors.testing import ManualClock
from understudy.protocol import Spawn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from understudy.actors import Runtime


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own, whatever the environment says."""
    monkeypatch.chdir(tmp_path)
    for name in ("UNDERSTUDY_DB", "UNDERSTUDY_SESSION", "CLAUDE_CODE_SESSION_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(name="host")
def a_host_at_work(tmp_path: Path) -> Iterator[Runtime]:
    """A running host on agents.db: one child has completed, one has a child of its own, one still works."""
    (tmp_path / "notes.txt").write_text("a note\n")
    runners = {"worker": worker, "grandchild": worker}
    with a_host(ManualClock(), store=tmp_path / "agents.db", runners=runners) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        for label, runner in (("reader", "worker"), ("[red]boss[/red]", "delegate")):
            session.spawn(Spawn(task=f"do it {STEERING}", label=label, runner=runner)).result(timeout=60)
        session.spawn(Spawn(task="wait", label="waiter", runner="hang"))
        yield runtime
