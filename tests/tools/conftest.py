from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pytest

from understudy.actors import SystemClock
from understudy.actors._kernel.pool import BlockingPool
from understudy.actors.testing import ManualClock
from understudy.actors.tools import FILE_TOOLS, Tool, Toolbox, ToolContext, ToolOutcome

if TYPE_CHECKING:
    from pathlib import Path

    from understudy.protocol.model import JsonValue

Call: TypeAlias = Callable[..., ToolOutcome]


@dataclass
class Roots:
    """A cwd and a workspace, and beside them what no tool may reach."""

    cwd: Path
    workspace: Path
    outside: Path
    """A folder with a file ``secret`` that says TOP SECRET."""


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    made = Roots(tmp_path / "cwd", tmp_path / "workspace", tmp_path / "outside")
    for folder in (made.cwd, made.workspace, made.outside):
        folder.mkdir()
    (made.outside / "secret").write_text("TOP SECRET")
    return made


@pytest.fixture
def call(roots: Roots) -> Call:
    """``call(tool or name, **arguments)``: run a tool as the loop does, on a real pool."""
    box = Toolbox(*FILE_TOOLS)

    def run(tool: Tool | str, **arguments: JsonValue) -> ToolOutcome:
        async def main() -> ToolOutcome:
            clock = SystemClock()
            pool = BlockingPool(asyncio.get_running_loop(), clock, limit=2)
            try:
                context = ToolContext(str(roots.cwd), str(roots.workspace), clock, pool.run)
                if isinstance(tool, str):
                    return await box.call(tool, arguments, context)
                return await tool.call(arguments, context)
            finally:
                pool.close()

        return asyncio.run(main())

    return run


@pytest.fixture
def stopped_clock() -> ManualClock:
    return ManualClock()
