"""What users of LangChain and LangGraph do with those packages, done with this one."""
