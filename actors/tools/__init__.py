"""What an agent can do: tools from typed functions, in groups that only narrow, and the built-in ones."""

from understudy.actors.tools.builtin import FILE_TOOLS
from understudy.actors.tools.context import ToolContext
from understudy.actors.tools.files import file_edit, file_read, file_write, list_files
from understudy.actors.tools.outcome import ToolError, ToolOutcome
from understudy.actors.tools.search import grep
from understudy.actors.tools.shell import shell_tool
from understudy.actors.tools.tool import Tool, tool
from understudy.actors.tools.toolbox import Toolbox, ToolGroupError

__all__ = [
    "FILE_TOOLS",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolGroupError",
    "ToolOutcome",
    "Toolbox",
    "file_edit",
    "file_read",
    "file_write",
    "grep",
    "list_files",
    "shell_tool",
    "tool",
]
