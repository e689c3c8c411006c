"""A parent model with a tool of yours, and a sub-agent it sends to read for it. Runs without a key.

The two models say what is written down here, so that this runs anywhere. With a real one nothing else changes:

    pip install 'understudy[openai]'
    from understudy.actors.models import OpenAIModel
    model = OpenAIModel("gpt-5")  # or base_url=… for an endpoint of your own
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from understudy.actors import ModelRunner, Runtime, tool
from understudy.actors.testing import ScriptedModel
from understudy.actors.tools import FILE_TOOLS
from understudy.protocol.model import ToolCall

LEADER = ScriptedModel(
    [
        ToolCall("1", "ticket", {"number": 7}),
        ToolCall("2", "sessions_spawn", {"task": "How is the config loaded?", "agent": "reader", "wait": True}),
        "Ticket 7 is about loader.py: it reads the config with tomllib, which raises on a missing file.",
    ]
)
READER = ScriptedModel([ToolCall("1", "file_read", {"path": "loader.py"}), "loader.py reads it with tomllib."])


@tool(group="tickets")
def ticket(number: int) -> str:
    """The text of a ticket."""
    return {7: "Atlas does not start without a config.toml"}.get(number, f"there is no ticket {number}")


def main(workspace: Path) -> None:
    """One prompt: the parent's model uses the tool, delegates, waits for the answer, and replies."""
    (workspace / "loader.py").write_text("import tomllib\nCONFIG = tomllib.load(open('config.toml', 'rb'))\n")
    runners = {
        "default": ModelRunner(LEADER, tools=[*FILE_TOOLS, ticket], system="You lead a small team."),
        "reader": ModelRunner(READER),  # with the built-in file tools, confined to the workspace
    }
    with Runtime(runners=runners) as runtime:
        session = runtime.session("agent:atlas:main", workspace=workspace)
        print("parent:", session.prompt("What is ticket 7 about?").output)
        for run in runtime.runs().items:
            print("its sub-agent:", runtime.run(run.run_id).result().output)
        print("files the parent now knows:", [Path(path).name for path in session.working_context.recent_files])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder).resolve())
