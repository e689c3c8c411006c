"""The whole road over real HTTP, byte by byte: what a parent and its sub-agent really send to their models."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from models.server import ModelServer, Say, Slow

from understudy.actors import AsyncRuntime
from understudy.actors.models import AnthropicModel, OpenAIModel
from understudy.actors.runners import ModelRunner
from understudy.protocol import RuntimeConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from models.server import Answer

    from understudy.actors.models._provider import ProviderModel

GOLDEN = Path(__file__).parent / "golden"
Dialect = Literal["openai", "anthropic"]
both = pytest.mark.parametrize("dialect", ["openai", "anthropic"])

NAMES = ("loader.py", "config.toml", "schema.py")
READS = [(f"read-{n}", "file_read", [json.dumps({"path": name})]) for n, name in enumerate(NAMES, 1)]


def spawning(**how: object) -> Say:
    arguments = {"task": "Read how config is loaded", "label": "config", "agent": "child", **how}
    return Say(["I delegate that."], [("spawn-1", "sessions_spawn", [json.dumps(arguments)])])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(f"# {name}\n")
    return folder


def model(dialect: Dialect, server: ModelServer) -> ProviderModel:
    if dialect == "openai":
        return OpenAIModel("m", api_key="sk-none", base_url=server.openai_url)
    return AnthropicModel("m", api_key="sk-none", base_url=server.anthropic_url)


class Wires:
    """What went to the parent's provider and to the child's, as it was sent."""

    def __init__(self, project: Path, run_ids: Sequence[str]) -> None:
        self._project = str(project)
        self._run_ids = run_ids
        self.parent: list[str] = []
        self.child: list[str] = []

    def add(self, to: list[str], server: ModelServer) -> None:
        to += [self._stable(asked.text) for asked in server.asked]

    def _stable(self, body: str) -> str:
        """Without what is another each time: the folder, the runs' names, and how long it took."""
        body = body.replace(self._project, "/project")
        for number, run_id in enumerate(self._run_ids, 1):
            body = body.replace(run_id, f"run-{number}")
        return re.sub(r"Runtime: \d+\.\d+s", "Runtime: 0.0s", body)

    def text(self) -> str:
        parts = [("parent", self.parent), ("child", self.child)]
        return "".join(f"=== {who} {n} ===\n{body}\n" for who, all_ in parts for n, body in enumerate(all_, 1))


def golden(name: str, now: str) -> str:
    """What is on file. A file that was deleted is written anew, for a person to look at."""
    file = GOLDEN / name
    if not file.exists():
        file.write_text(now, encoding="utf-8")
        pytest.fail(f"{name} was written: read it, and run again")
    return file.read_text(encoding="utf-8")


def converse(
    dialect: Dialect,
    project: Path,
    parent: Sequence[Answer],
    child: Sequence[Answer],
    *prompts: str,
    answered: asyncio.Event | None = None,
) -> Wires:
    """One conversation of a parent's; over when each script has been played to its end and all is quiet."""

    async def main() -> Wires:
        async with ModelServer(parent) as above, ModelServer(child) as below:
            models = model(dialect, above), model(dialect, below)
            runners = {"default": ModelRunner(models[0]), "child": ModelRunner(models[1])}
            config = RuntimeConfig(announce_debounce_ms=0)
            async with AsyncRuntime(runners=runners, config=config) as runtime:
                session = await runtime.session("agent:atlas:main", workspace=project)
                for prompt in prompts:
                    reply = await session.prompt(prompt)
                    assert reply.failure is None
                if answered is not None:
                    answered.set()
                await above.played.wait()  # also by whoever was woken
                runs = [run.run_id for run in runtime.runs().items]
            for each in models:
                await each.close()
            wires = Wires(project, runs)
            wires.add(wires.parent, above)
            wires.add(wires.child, below)
            return wires

    return asyncio.run(asyncio.wait_for(main(), 60))


def last_words(dialect: Dialect, body: str) -> str:
    """The last text of a request's last message."""
    content: Any = json.loads(body)["messages"][-1]["content"]
    text: str = content if dialect == "openai" else content[-1]["text"]
    return text


CONTEXT = "[working-context]\nproject_dir: /project\nrecent_files:\n" + "".join(
    f"  - /project/{name}\n" for name in reversed(NAMES)
)


@both
@pytest.mark.parametrize("wait", [True, False], ids=["waited", "background"])
def test_what_a_sub_agent_read_is_in_its_parents_next_request(dialect: Dialect, wait: bool, project: Path) -> None:
    """Three files, newest first; and every byte of the conversation is as in its golden file."""
    answered = asyncio.Event()
    reads = Say(["Reading."], READS)
    reading: Answer = reads
    parent = [spawning(wait=wait), Say(["It is layered."])]
    if not wait:
        # The child is held up until its parent has spoken: what wakes the parent comes after its turn.
        reading = Slow(reads, before=answered.wait)
        parent.insert(1, Say(["Started."]))
    child = [reading, Say(["Settings come from config.toml."])]
    wires = converse(dialect, project, parent, child, "How is config loaded?", answered=answered)
    assert last_words(dialect, wires.parent[-1]).strip() == CONTEXT.strip()
    assert "[working-context]" not in wires.parent[0]
    assert wires.text() == golden(f"wire_{dialect}_{'waited' if wait else 'background'}.txt", wires.text())


@both
def test_a_session_without_sub_agents_sends_nothing_of_it(dialect: Dialect, project: Path) -> None:
    """No working context and no note: what was said, and nothing besides."""
    wires = converse(dialect, project, [Say(["Hello."]), Say(["Well."])], [], "Hi", "How are you?")
    assert wires.child == []
    assert all("[working-context]" not in body and "Subagent" not in body for body in wires.parent)
    assert wires.text() == golden(f"wire_{dialect}_alone.txt", wires.text())
