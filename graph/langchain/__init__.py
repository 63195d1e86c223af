"""Any chat model of LangChain as the model of a run, and parts of the machine as middleware for other agents."""
