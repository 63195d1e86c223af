"""HTTP and MCP servers, behind an allow-list of hosts."""
