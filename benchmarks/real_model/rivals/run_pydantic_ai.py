"""A pydantic-ai `Agent` with four file tools, as in its documentation."""

from pathlib import Path
from typing import Any

from benchmarks.real_model.rivals import adapter


def load() -> adapter.Rival:
    """Import pydantic-ai and return the function that runs a request."""
    # The environment of this rival has these packages.
    from pydantic_ai import Agent, UsageLimits  # type: ignore[import-not-found]
    from pydantic_ai.models.openai import OpenAIChatModel  # type: ignore[import-not-found]
    from pydantic_ai.providers.openai import OpenAIProvider  # type: ignore[import-not-found]

    def work(message: dict[str, Any]) -> str:
        provider = OpenAIProvider(base_url=message["base_url"], api_key=adapter.KEY)
        agent = Agent(
            OpenAIChatModel(message["model"], provider=provider),
            instructions=adapter.INSTRUCTIONS,
            tools=adapter.workspace_tools(Path(message["workspace"])),
            model_settings={"temperature": 0.0, "max_tokens": adapter.OUTPUT_TOKENS},
        )
        limits = UsageLimits(request_limit=adapter.MODEL_CALLS)
        return str(agent.run_sync(message["request"], usage_limits=limits).output)

    return work


if __name__ == "__main__":
    adapter.serve(load)
