"""Pydantic AI: the child is run inside a tool of its parent's and shares its usage, as agent delegation there does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# Their usual limit is fifty requests a run, delegated ones included.
UNLIMITED = UsageLimits(request_limit=None)


def _instant(calls: int = 0) -> FunctionModel:
    """Calls ``delegate`` so many times at once, then says it is done; with none, it is done at once."""

    async def answer(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        if calls and len(messages) == 1:
            task = {"task": "say done"}
            return ModelResponse([ToolCallPart("delegate", task, tool_call_id=f"c{n}") for n in range(calls)])
        return ModelResponse([TextPart("done")])

    return FunctionModel(answer)


def look(path: str) -> str:
    """Look at a file."""
    return path


def delegation(children: int) -> Callable[[], Awaitable[None]]:
    """One parent that gives a task to so many children at once."""
    child = Agent(_instant(), instructions="Do the task.", tools=[look])
    parent = Agent(_instant(children), instructions="Delegate.")

    @parent.tool
    async def delegate(context: RunContext[None], task: str) -> str:
        """Give a task to a sub-agent."""
        return (await child.run(task, usage=context.usage, usage_limits=UNLIMITED)).output

    async def run() -> None:
        result = await parent.run("go", usage_limits=UNLIMITED)
        parts = [part for message in result.all_messages() for part in message.parts]
        answers = [part.content for part in parts if isinstance(part, ToolReturnPart)]
        assert result.output == "done"
        assert answers == ["done"] * children

    return run
