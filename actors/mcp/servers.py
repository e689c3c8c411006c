"""All MCP servers of one child: which it may have, their tools, and what is said about those it cannot have."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from understudy.actors.mcp.names import GROUP, is_mcp, tool_name
from understudy.actors.mcp.plans import PlanError, Plans, parse, read_file
from understudy.actors.tools.files import SERVERS_FILE
from understudy.actors.tools.outcome import ToolError, ToolOutcome
from understudy.actors.tools.tool import foreign_tool
from understudy.protocol.framing import frame

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from mcp_types import Tool as ListedTool

    from understudy.actors.mcp.connection import Connection
    from understudy.actors.runners.contract import RunContext
    from understudy.actors.tools.tool import Tool
    from understudy.protocol import SpawnPacket
    from understudy.protocol.model import JsonObject

CALL_MS = 300_000
"""The most one call may take."""
MOST_TOOLS = 100
"""Of one server: each is described to the model in every call."""
MAX_DESCRIPTION = 4_000
MAX_SCHEMA = 20_000


def servers_of(packet: SpawnPacket, context: RunContext, *, allowed: bool | Collection[str]) -> Servers | None:
    """The servers a child may have; None, after a single look at its folder, when there is nothing to do or say."""
    named = [group for group in packet.tool_groups or () if is_mcp(group)]
    if packet.tool_groups is not None and not named:
        return None
    present = allowed is not False and context.backstage.glances.exists(f"{packet.cwd}/{SERVERS_FILE}")
    return Servers(packet, context, allowed, named, present=present) if present or named else None


class Servers:
    """Started together, ended together."""

    def __init__(
        self,
        packet: SpawnPacket,
        context: RunContext,
        allowed: bool | Collection[str],
        named: list[str],
        *,
        present: bool,
    ) -> None:
        self._packet = packet
        self._context = context
        self._allowed = allowed
        self._named = named
        self._present = present
        self._connections: list[Connection] = []
        self._notices: list[str] = []

    async def start(self, *, taken: set[str]) -> list[Tool]:
        """Bring up all that the child may have, for tools of other names than ``taken``; the rest is a notice."""
        try:
            plans = await self._plans()
        except PlanError as error:
            self._notices.append(f"No MCP server was started, because of {SERVERS_FILE}: {error}.")
            return []
        for name, reason in plans.broken:
            self._lacking(name, reason)
        self._miss(plans)
        if not plans.servers:
            return []
        try:
            from understudy.actors.mcp.connection import Connection  # noqa: PLC0415 - the SDK is an extra, and large
        except ImportError:
            self._notices.append("No MCP server was started: the host has not installed understudy[mcp].")
            return []
        clock = self._context.backstage.clock
        self._connections = [Connection(plan, self._packet.cwd, clock) for plan in plans.servers]
        listed = await asyncio.gather(*(each.start() for each in self._connections), return_exceptions=True)
        found: list[Tool] = []
        for connection, tools in zip(self._connections, listed, strict=True):
            if isinstance(tools, ToolError):
                self._lacking(connection.plan.name, str(tools))
            elif isinstance(tools, BaseException):
                raise tools
            else:
                found += self._taken_over(connection, tools, taken)
        return found

    def notice(self) -> str:
        """The end of the brief: what the model is told of servers that are not there; empty when all are."""
        if not self._notices:
            return ""
        # Names and reasons are made of what strangers wrote.
        return "\n\n## MCP servers\nSome tools are missing; do without them and say so if it matters.\n" + frame(
            "\n".join(self._notices)
        )

    def cut(self) -> None:
        """End all at once, without waiting."""
        for connection in self._connections:
            connection.cut()

    async def close(self) -> None:
        """End all, and see them gone."""
        await asyncio.gather(*(connection.close() for connection in self._connections))

    async def _plans(self) -> Plans:
        if self._allowed is False:
            raise PlanError("the host has switched MCP servers off")
        if not self._present:
            raise PlanError("there is no such file in the working directory")
        data = await self._context.blocking(lambda: read_file(self._packet.cwd))
        return parse(data, self._packet.env, self._wants)

    def _wants(self, name: str, given: str) -> bool:
        if not isinstance(self._allowed, bool) and given not in self._allowed:
            return False
        groups = self._packet.tool_groups
        return groups is None or GROUP in groups or f"{GROUP}:{name}" in groups

    def _miss(self, plans: Plans) -> None:
        """Say which servers were asked for by name and are not to be had."""
        had = {plan.name for plan in plans.servers} | {name for name, _ in plans.broken}
        for group in self._named:
            name = group.removeprefix(f"{GROUP}:")
            if group != GROUP and name not in had:
                self._lacking(name, f"{SERVERS_FILE} does not name it, or the host does not allow it")

    def _lacking(self, name: str, reason: str) -> None:
        self._notices.append(f"{name} is not available: {reason}.")

    def _taken_over(self, connection: Connection, listed: list[ListedTool], taken: set[str]) -> Iterator[Tool]:
        left_out = max(len(listed) - MOST_TOOLS, 0)
        for each in listed[:MOST_TOOLS]:
            name = tool_name(connection.plan.name, each.name, taken)
            if name in taken or not _usable(each.input_schema):
                left_out += 1
                continue
            taken.add(name)
            yield _tool(connection, each, name)
        if left_out:
            self._notices.append(f"{connection.plan.name} has {left_out} more tools: too many, too large, or wrong.")


def _usable(schema: Mapping[str, object]) -> bool:
    """Whether a model can be shown it: a provider refuses the whole request for one schema that is no object's."""
    return (
        schema.get("type") == "object"
        and isinstance(schema.get("properties", {}), dict)
        and len(json.dumps(schema)) <= MAX_SCHEMA
    )


def _tool(connection: Connection, listed: ListedTool, name: str) -> Tool:
    changes = listed.annotations is not None and listed.annotations.read_only_hint is False

    async def call(arguments: JsonObject) -> ToolOutcome:
        return await connection.call(listed.name, arguments)

    return foreign_tool(
        call,
        name=name,
        description=(listed.description or listed.title or listed.name)[:MAX_DESCRIPTION],
        parameters={"properties": {}, **listed.input_schema},
        group=f"{GROUP}:{connection.plan.name}",
        mode="write" if changes else "read",
        timeout_ms=CALL_MS,
    )
