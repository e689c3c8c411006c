"""MCP servers as tools of a model child: read from its folder, started with it, ended with it."""
