"""OpenAI Agents SDK: the child is an agent, given to its parent with ``as_tool``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


def _said(text: str) -> ResponseOutputMessage:
    content = ResponseOutputText(text=text, type="output_text", annotations=[])
    return ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[content])


def _call(number: int) -> ResponseFunctionToolCall:
    arguments = json.dumps({"input": "say done"})
    return ResponseFunctionToolCall(
        id=f"f{number}", call_id=f"c{number}", type="function_call", name="delegate", arguments=arguments
    )


class _Instant(Model):
    """Calls ``delegate`` so many times at once, then says it is done; with none, it is done at once."""

    def __init__(self, calls: int = 0) -> None:
        self._calls = calls

    async def get_response(
        self,
        system_instructions: str | None,  # noqa: ARG002
        input: str | list[Any],  # noqa: A002 - the SDK's name
        *_: Any,
        **_options: Any,
    ) -> ModelResponse:
        first = isinstance(input, str) or len(input) == 1
        output = [_call(number) for number in range(self._calls)] if first and self._calls else [_said("done")]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **_options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


@function_tool
def look(path: str) -> str:
    """Look at a file."""
    return path


def delegation(children: int) -> Callable[[], Awaitable[None]]:
    """One parent that gives a task to so many children at once."""
    child = Agent(name="child", instructions="Do the task.", model=_Instant(), tools=[look])
    delegate = child.as_tool(tool_name="delegate", tool_description="Give a task to a sub-agent.")
    parent = Agent(name="parent", instructions="Delegate.", model=_Instant(children), tools=[delegate])

    async def run() -> None:
        result = await Runner.run(parent, "go")
        answers = [item for item in result.new_items if item.type == "tool_call_output_item"]
        assert result.final_output == "done"
        assert [item.output for item in answers] == ["done"] * children

    return run
