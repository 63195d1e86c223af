"""`mendgraph mcp`: the MCP servers of the settings."""
