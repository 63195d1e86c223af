"""AgentDojo's suites, on mendgraph and on `create_agent`."""
