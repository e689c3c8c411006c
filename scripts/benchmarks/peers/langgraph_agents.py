"""LangGraph: both are its prebuilt agents, the child called inside a tool of its parent's."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


class _Instant(BaseChatModel):
    """Calls ``delegate`` so many times at once, then says it is done; with none, it is done at once."""

    calls: int = 0

    @property
    def _llm_type(self) -> str:
        return "instant"

    def bind_tools(self, *_: Any, **_options: Any) -> _Instant:
        return self

    def _generate(self, messages: list[Any], *_: Any, **_options: Any) -> ChatResult:
        calls = 0 if messages[-1].type == "tool" else self.calls
        wanted = [{"name": "delegate", "args": {"task": "say done"}, "id": f"c{number}"} for number in range(calls)]
        message = AIMessage("", tool_calls=wanted) if wanted else AIMessage("done")
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(self, messages: list[Any], *_: Any, **_options: Any) -> ChatResult:
        return self._generate(messages)  # the base would use a thread


@tool
def look(path: str) -> str:
    """Look at a file."""
    return path


def _asked(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def delegation(children: int) -> Callable[[], Awaitable[None]]:
    """One parent that gives a task to so many children at once."""
    child = create_agent(_Instant(), tools=[look], system_prompt="Do the task.")

    @tool
    async def delegate(task: str) -> str:
        """Give a task to a sub-agent."""
        return (await child.ainvoke(_asked(task)))["messages"][-1].content

    parent = create_agent(_Instant(calls=children), tools=[delegate], system_prompt="Delegate.")

    async def run() -> None:
        messages = (await parent.ainvoke(_asked("go")))["messages"]
        answers = [message.content for message in messages if message.type == "tool"]
        assert messages[-1].content == "done"
        assert answers == ["done"] * children

    return run


@asynccontextmanager
async def durable(children: int, database: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """So many children at once, run by the host: each step is in the database before the next begins."""
    threads = itertools.count()
    async with AsyncSqliteSaver.from_conn_string(database) as saver:
        child = create_agent(_Instant(), tools=[look], system_prompt="Do the task.", checkpointer=saver)

        async def one() -> None:
            thread = {"configurable": {"thread_id": f"t{next(threads)}"}}
            answer = await child.ainvoke(_asked("say done"), thread, durability="sync")
            assert answer["messages"][-1].content == "done"

        async def run() -> None:
            await asyncio.gather(*(one() for _ in range(children)))

        yield run
