from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from understudy.actors import ModelRunner, Runtime, SystemClock
from understudy.actors.testing import ScriptedModel
from understudy.actors.tools import FILE_TOOLS
from understudy.protocol import Spawn

if TYPE_CHECKING:
    from collections.abc import Collection

    from understudy.actors import Clock
    from understudy.actors.tools import Tool
    from understudy.protocol import SubAgentResult
    from understudy.protocol.model import ModelRequest

A_SERVER = str(Path(__file__).with_name("a_server.py"))
MAIN = "agent:atlas:main"


@dataclass
class Project:
    """A folder with a ``.mcp.json``, and children that work in it."""

    cwd: Path
    model: ScriptedModel = field(default_factory=lambda: ScriptedModel([]))

    def names(self, **servers: object) -> None:
        """Write the file."""
        (self.cwd / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))

    def stdio(self, **env: str) -> dict[str, Any]:
        """The entry of a real server, which writes down its own pid and its child's."""
        return {"command": sys.executable, "args": [A_SERVER], "env": {"PIDS": str(self.cwd / "pids"), **env}}

    def runtime(
        self,
        *script: Any,
        clock: Clock | None = None,
        mcp: bool | Collection[str] = True,
        tools: Collection[Tool] = FILE_TOOLS,
    ) -> Runtime:
        """A host whose children think by this script."""
        self.model = ScriptedModel(list(script))
        runner = ModelRunner(self.model, mcp=mcp, tools=tools)
        return Runtime(clock=clock or SystemClock(), runners={"default": runner})

    def child(
        self, *script: Any, mcp: bool | Collection[str] = True, tools: Collection[Tool] = FILE_TOOLS, **spawn: Any
    ) -> SubAgentResult:
        """What comes of one child."""
        with self.runtime(*script, mcp=mcp, tools=tools) as runtime:
            session = runtime.session(MAIN, workspace=self.cwd)
            return session.spawn(Spawn.model_validate({"task": "Do it", **spawn})).result(timeout=60)

    @property
    def brief(self) -> str:
        """The first thing the model was told."""
        return self.model.requests[0].turns[1].text

    @property
    def notices(self) -> list[str]:
        """What the model was told of servers that it cannot have."""
        return [line.removeprefix("│ ") for line in self.brief.splitlines() if line.startswith("│ ")]

    def answers(self) -> list[str]:
        """What its tools answered."""
        return [turn.text for turn in self.model.requests[-1].turns if turn.role == "tool"]

    def mcp_tools(self, request: int = 0) -> list[str]:
        """The names of the MCP tools that were on offer."""
        return [spec.name for spec in self.request(request).tools if spec.name.startswith("mcp__")]

    def request(self, number: int) -> ModelRequest:
        return self.model.requests[number]

    def pids(self) -> list[int]:
        return [int(pid) for pid in (self.cwd / "pids").read_text().split()]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    cwd = tmp_path / "project"
    cwd.mkdir()
    return Project(cwd)


@pytest.fixture
def ready(project: Project) -> Path:
    """A pipe with a name in the project: whoever reads it waits until a server has written to it."""
    pipe = project.cwd / "ready"
    os.mkfifo(pipe)
    return pipe
