"""A pydantic-ai `Agent` with one tool, as in its documentation."""

import asyncio
from typing import Any

# The environment of this contestant has these packages.
from pydantic_ai import Agent, UsageLimits  # type: ignore[import-not-found]
from pydantic_ai.models.openai import OpenAIChatModel  # type: ignore[import-not-found]
from pydantic_ai.providers.openai import OpenAIProvider  # type: ignore[import-not-found]

from benchmarks.overhead import job as jobs
from benchmarks.overhead.job import KEY, MODEL, TASK, Job

UNLIMITED: Any = UsageLimits(request_limit=None)


class PydanticAgent:
    """The agent."""

    def run(self, job: Job) -> None:
        """Run the job."""
        if job.stream:
            asyncio.run(_stream(_agent(job)))
        else:
            _agent(job).run_sync(TASK, usage_limits=UNLIMITED)

    async def arun(self, job: Job) -> None:
        """Run the job `count` times concurrently."""
        agent = _agent(job)
        if job.stream:
            runs = [_stream(agent) for _ in range(job.count)]
        else:
            runs = [agent.run(TASK, usage_limits=UNLIMITED) for _ in range(job.count)]

        await asyncio.gather(*runs)


def load() -> PydanticAgent:
    """Return the agent."""
    return PydanticAgent()


def _agent(job: Job) -> Any:
    def read_file(path: str) -> str:
        """Read a text file."""
        return jobs.read_file(job.folder, path)

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=job.url, api_key=KEY))
    return Agent(model, tools=[read_file])


async def _stream(agent: Any) -> None:
    async with agent.run_stream_events(TASK, usage_limits=UNLIMITED) as events:
        async for _ in events:
            pass
