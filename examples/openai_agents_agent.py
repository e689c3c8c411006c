"""An agent of the OpenAI Agents SDK as a supervised sub-agent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agents import (
    Agent,
    ModelResponse,
    OpenAIChatCompletionsModel,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI

from understudy.actors import FunctionRunner
from understudy.actors.runners import AsyncFunctionContext

if TYPE_CHECKING:
    from understudy.protocol import SpawnPacket


def an_agent(base_url: str) -> Agent[AsyncFunctionContext]:
    """Yours, as you have it already; here one with a tool that reads files, and says so."""

    @function_tool
    async def read(context: RunContextWrapper[AsyncFunctionContext], path: str) -> str:
        """Read a file."""
        return await context.context.read_file(Path(path))

    model = OpenAIChatCompletionsModel("any", AsyncOpenAI(base_url=base_url, api_key="none"))
    return Agent(name="reader", instructions="Answer in one sentence.", model=model, tools=[read])


class Bill(RunHooks[AsyncFunctionContext]):
    """Hands over what each model call has used, so that budgets hold while it runs."""

    async def on_llm_end(
        self,
        context: RunContextWrapper[AsyncFunctionContext],
        agent: Agent[AsyncFunctionContext],  # noqa: ARG002 - the SDK's signature
        response: ModelResponse,
    ) -> None:
        """One call is done."""
        used = response.usage
        context.context.usage(input_tokens=used.input_tokens, output_tokens=used.output_tokens)


def as_runner(agent: Agent[AsyncFunctionContext]) -> FunctionRunner:
    """The wrapping: cancellation, deadline, budget and delivery are the runtime's from here on."""

    async def work(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        quiet = RunConfig(tracing_disabled=True)
        result = await Runner.run(agent, packet.task, context=context, hooks=Bill(), run_config=quiet)
        return str(result.final_output)

    return FunctionRunner(work)
