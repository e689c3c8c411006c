"""A shell, for hosts that decide to give one: it is confined to nothing, so no toolbox has it by itself."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from understudy.actors.processes import child_environment
from understudy.actors.tools._process import run_process
from understudy.actors.tools.context import ToolContext  # noqa: TC001 - read at run time by @tool
from understudy.actors.tools.outcome import ToolError, ToolOutcome
from understudy.actors.tools.tool import tool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from understudy.actors.tools.tool import Tool

MAX_OUTPUT = 48 * 1024
_MAX_TIMEOUT_MS = 600_000
_NO_ENV: Mapping[str, str] = MappingProxyType({})

Words = Annotated[list[str], Field(min_length=1)]
Line = Annotated[str, Field(min_length=1)]


def shell_tool(*, env: Mapping[str, str] = _NO_ENV, timeout_ms: int = 60_000, approval: bool = False) -> Tool:
    """A ``shell`` tool that runs commands in the child's cwd, with ``env`` added to the few variables passed on.

    ``timeout_ms`` is what a command gets, and the most it can ask for.

    Example:
        >>> from understudy.actors.tools import FILE_TOOLS, Toolbox
        >>> Toolbox(*FILE_TOOLS, shell_tool(approval=True)).groups
        ('files:read', 'files:write', 'search', 'shell')
    """
    if not 1 <= timeout_ms <= _MAX_TIMEOUT_MS:
        raise ValueError(f"timeout_ms = {timeout_ms} is not allowed: use 1 to {_MAX_TIMEOUT_MS}")
    added = dict(env)

    @tool(group="shell", paths=(), approval=approval)
    async def shell(
        command: Annotated[Line | Words, Field(description="A line for sh -c, or a list: program and arguments.")],
        context: ToolContext,
        timeout: Annotated[int, Field(ge=1, description="Milliseconds until it is killed.")] = timeout_ms,
    ) -> ToolOutcome:
        """Run a command in the working directory; answers its output and exit code. No input, no terminal."""
        if timeout > timeout_ms:
            raise ToolError(f"timeout = {timeout} is not allowed: use 1 to {timeout_ms}")
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else command
        try:
            finished = await run_process(
                argv,
                clock=context.clock,
                seconds=timeout / 1000,
                max_output=MAX_OUTPUT,
                env=child_environment(added),
                cwd=context.cwd,
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL among the arguments
            reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            raise ToolError(f"{argv[0][:200]!r} could not be started: {reason}") from None
        output = finished.output.decode("utf-8", "replace")
        if finished.code is None:
            return ToolOutcome(f"{output}\n[killed after {timeout} ms]".lstrip("\n"), is_error=True)
        if finished.code:
            return ToolOutcome(f"{output}\n[exit code {finished.code}]".lstrip("\n"), is_error=True)
        return ToolOutcome(output or "[no output]")

    return shell
