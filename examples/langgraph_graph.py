"""A LangGraph graph as a supervised sub-agent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig  # noqa: TC002 - read at run time by @tool
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from understudy.actors import FunctionRunner

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

    from understudy.actors.runners import AsyncFunctionContext
    from understudy.protocol import SpawnPacket

    Graph = CompiledStateGraph[MessagesState, None, MessagesState, MessagesState]


def a_graph(base_url: str) -> Graph:
    """Yours, as you have it already; here a model and a tool that reads files, and says so."""

    @tool
    async def read(path: str, config: RunnableConfig) -> str:
        """Read a file."""
        text: str = await config["configurable"]["context"].read_file(Path(path))
        return text

    model = ChatOpenAI(model="any", base_url=base_url, api_key=lambda: "none").bind_tools([read])

    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode([read]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    return graph.compile()


def as_runner(graph: Graph) -> FunctionRunner:
    """The wrapping: cancellation, deadline, budget and delivery are the runtime's from here on."""

    async def work(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        answer = ""
        asked: Any = {"messages": [("user", packet.task)]}
        async for step in graph.astream(asked, {"configurable": {"context": context}}, stream_mode="updates"):
            for message in step.get("think", {}).get("messages", ()):
                answer = message.text if isinstance(message, AIMessage) else answer
                if used := message.usage_metadata:
                    context.usage(input_tokens=used["input_tokens"], output_tokens=used["output_tokens"])
        return answer

    return FunctionRunner(work)
