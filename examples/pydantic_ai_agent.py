"""A Pydantic AI agent as a supervised sub-agent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_ai import Agent, RunContext, RunUsage
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from understudy.actors import FunctionRunner
from understudy.actors.runners import AsyncFunctionContext

if TYPE_CHECKING:
    from understudy.protocol import SpawnPacket


def an_agent(base_url: str) -> Agent[AsyncFunctionContext, str]:
    """Yours, as you have it already; here one with a tool that reads files, and says so."""
    model = OpenAIChatModel("any", provider=OpenAIProvider(base_url=base_url, api_key="none"))
    agent = Agent(model, deps_type=AsyncFunctionContext, instructions="Answer in one sentence.")

    @agent.tool
    async def read(context: RunContext[AsyncFunctionContext], path: str) -> str:
        """Read a file."""
        return await context.deps.read_file(Path(path))

    return agent


def as_runner(agent: Agent[AsyncFunctionContext, str]) -> FunctionRunner:
    """The wrapping: cancellation, deadline, budget and delivery are the runtime's from here on."""

    async def work(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        used = RunUsage()
        try:
            return (await agent.run(packet.task, deps=context, usage=used)).output
        finally:  # also what a failed run has consumed
            context.usage(input_tokens=used.input_tokens, output_tokens=used.output_tokens)

    return FunctionRunner(work)
