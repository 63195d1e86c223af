"""MCP servers: what a connection executes, how a server is started and bounded, and how long it lives."""
