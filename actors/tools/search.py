"""The built-in grep: a regular expression over the files below cwd and workspace, bounded in every direction."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field

from understudy.actors.tools import _grep_program
from understudy.actors.tools._confine import place
from understudy.actors.tools._process import run_process
from understudy.actors.tools.context import ToolContext  # noqa: TC001 - read at run time by @tool
from understudy.actors.tools.files import PathArgument  # noqa: TC001 - likewise
from understudy.actors.tools.outcome import ToolError
from understudy.actors.tools.tool import tool

MAX_MATCHES = 200
MAX_LINE = 300
MAX_FILE = 50 * 1024 * 1024
SECONDS = 15.0
"""How long one search may take; what was found until then is still told."""

_MAX_OUTPUT = MAX_MATCHES * (MAX_LINE * 4 + 300)


@tool(group="search", paths=())
async def grep(
    pattern: Annotated[str, Field(min_length=1, max_length=1000, description="Python regular expression.")],
    context: ToolContext,
    path: PathArgument = ".",
    glob: Annotated[str | None, Field(description="Only files whose name matches, such as *.py.")] = None,
    ignore_case: bool = False,
) -> str:
    """Search files for a pattern; answers file:line:text. Binary files and hidden folders are passed over."""
    descriptor = await context.blocking(lambda: _open(context, path))
    order: _grep_program.Order = {
        "descriptor": descriptor,
        "shown": path,
        "pattern": pattern,
        "ignore_case": ignore_case,
        "glob": glob,
        "max_matches": MAX_MATCHES,
        "max_line": MAX_LINE,
        "max_file": MAX_FILE,
    }
    try:
        finished = await run_process(
            # -I -S: nothing of the host's environment or site-packages; the program needs neither.
            [sys.executable, "-I", "-S", "-W", "ignore", str(Path(_grep_program.__file__)), json.dumps(order)],
            clock=context.clock,
            seconds=SECONDS,
            max_output=_MAX_OUTPUT,
            env={},
            pass_fds=(descriptor,),
        )
    finally:
        os.close(descriptor)
    text = finished.output.decode("utf-8", "replace").rstrip("\n")
    if finished.code is None:
        found = f"{text}\n" if text else ""
        raise ToolError(
            f"{found}the search was stopped after {SECONDS:g} seconds: simplify the pattern or narrow the path"
        )
    if finished.code != 0:
        raise ToolError(f"the search failed: {text.splitlines()[-1] if text else f'exit code {finished.code}'}")
    return text


def _open(context: ToolContext, path: str) -> int:
    with place(context, path) as found:
        seen = found.status()
        if seen is not None and stat.S_ISDIR(seen.st_mode):
            return found.open_folder()
        return found.open_file()
