"""Other people's agents as sub-agents, each against the scripted model server: a tool round trip, then a kill."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests" / "models")]
# Nobody is told that these ran.
os.environ |= {"LANGSMITH_TRACING": "false", "OPENAI_AGENTS_DISABLE_TRACING": "1", "OTEL_SDK_DISABLED": "true"}
for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
    del os.environ[name]

import langgraph_graph  # noqa: E402 - found on the path made above, with telemetry off
import openai_agents_agent  # noqa: E402
import pydantic_ai_agent  # noqa: E402
from server import USAGE, ModelServer, Say, Silence  # noqa: E402

from understudy.actors import AsyncRuntime, FunctionRunner  # noqa: E402
from understudy.protocol import EndReason, Spawn  # noqa: E402

MAKERS = {
    "Pydantic AI": lambda url: pydantic_ai_agent.as_runner(pydantic_ai_agent.an_agent(url)),
    "OpenAI Agents SDK": lambda url: openai_agents_agent.as_runner(openai_agents_agent.an_agent(url)),
    "LangGraph": lambda url: langgraph_graph.as_runner(langgraph_graph.a_graph(url)),
}
SCRIPT = [Say(calls=[("1", "read", ['{"path": "notes.txt"}'])]), Say(["The notes say hello."]), Silence()]


async def play(name: str, workspace: Path) -> None:
    """One agent: it reads a file and answers; a second one is killed while its model is silent."""
    async with ModelServer(SCRIPT) as server:
        runner: FunctionRunner = MAKERS[name](server.openai_url)
        async with AsyncRuntime(runners={"default": runner}) as runtime:
            session = await runtime.session("agent:examples:main", workspace=workspace)
            result = await (await session.spawn(Spawn(task="What do the notes say?"))).result(timeout=60)
            assert (result.end_reason, result.output) == (EndReason.COMPLETED, "The notes say hello."), result
            assert [Path(file.path).name for file in result.recent_files] == ["notes.txt"], result.recent_files
            used = result.usage
            assert (used.input_tokens, used.output_tokens) == (2 * USAGE["input"], 2 * USAGE["output"]), used
            assert "hello" in str(server.asked[1].body["messages"]), "the tool's result did not reach the model"

            handle = await session.spawn(Spawn(task="Wait for ever"))
            await asyncio.wait_for(server.reached.wait(), 60)
            await session.kill(handle.run_id)
            assert (await handle.result(timeout=60)).end_reason is EndReason.KILLED
            await asyncio.wait_for(server.disconnected.wait(), 60)
    print(f"{name}: answered, {used.total_tokens} tokens, notes.txt handed over; killed in mid-call")


async def main() -> None:
    """All of them, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "notes.txt").write_text("hello\n", encoding="utf-8")
        for name in MAKERS:
            await play(name, Path(folder))


if __name__ == "__main__":
    asyncio.run(main())
