"""LangChain's `create_agent` with four file tools, as in its documentation."""

from pathlib import Path
from typing import Any

from benchmarks.real_model.rivals import adapter


def load() -> adapter.Rival:
    """Import LangChain and return the function that runs a request."""
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    def work(message: dict[str, Any]) -> str:
        model = ChatOpenAI(
            model=message["model"],
            base_url=message["base_url"],
            api_key=lambda: adapter.KEY,
            temperature=0,
            max_completion_tokens=adapter.OUTPUT_TOKENS,
        )
        tools = [tool(function) for function in adapter.workspace_tools(Path(message["workspace"]))]
        agent = create_agent(model, tools=tools, system_prompt=adapter.INSTRUCTIONS)
        messages: Any = {"messages": [{"role": "user", "content": message["request"]}]}
        state = agent.invoke(messages, {"recursion_limit": 4 * adapter.MODEL_CALLS})
        return str(state["messages"][-1].text)

    return work


if __name__ == "__main__":
    adapter.serve(load)
