"""MCP: what was said, and sub-agents, as tools for other people's agents. Behind the extra ``mcp``."""

try:
    import mcp  # noqa: F401 - only whether it is there
except ModuleNotFoundError as missing:
    raise ImportError(f'there is no {missing.name}: run `pip install "understudy[mcp]"`') from None
