"""Our parts in the agents of LangChain, LangGraph and deepagents, with the real packages."""
