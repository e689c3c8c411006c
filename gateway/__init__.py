"""How others reach in: command line, HTTP, MCP and harness hooks."""
