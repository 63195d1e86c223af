"""What users of LangChain and LangGraph do with their packages, done with this one."""
