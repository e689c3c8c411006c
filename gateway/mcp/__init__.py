"""MCP: what was said, and sub-agents, as tools for other people's agents. Behind the extra ``mcp``."""

try:
    import mcp  # noqa: F401 - only whether it is there
except ModuleNotFoundError as missing:
    raise ImportError(f'there is no {missing.name}: run `pip install "understudy[mcp]"`') from None

from understudy.gateway.mcp.mounted import Mounted
from understudy.gateway.mcp.tools import MCP_TOOLS

__all__ = ["MCP_TOOLS", "Mounted"]
