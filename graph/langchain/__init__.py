"""Any chat model of LangChain as the model of a run."""
