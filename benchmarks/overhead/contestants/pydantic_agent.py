"""A pydantic-ai `Agent` with one tool, as its documentation shows it."""

import asyncio
from typing import Any

# They are in an environment of their own.
from pydantic_ai import Agent, UsageLimits  # type: ignore[import-not-found]
from pydantic_ai.models.openai import OpenAIChatModel  # type: ignore[import-not-found]
from pydantic_ai.providers.openai import OpenAIProvider  # type: ignore[import-not-found]

from benchmarks.overhead import job as jobs
from benchmarks.overhead.job import KEY, MODEL, TASK, Job

UNLIMITED: Any = UsageLimits(request_limit=None)


class PydanticAgent:
    """The agent."""

    def run(self, job: Job) -> None:
        """Do the job."""
        if job.stream:
            asyncio.run(_streamed(_agent(job)))
        else:
            _agent(job).run_sync(TASK, usage_limits=UNLIMITED)

    async def arun(self, job: Job) -> None:
        """Do it several times at once."""
        agent = _agent(job)
        ways = (_streamed(agent) if job.stream else agent.run(TASK, usage_limits=UNLIMITED) for _ in range(job.count))
        await asyncio.gather(*ways)


def load() -> PydanticAgent:
    """The agent."""
    return PydanticAgent()


def _agent(job: Job) -> Any:
    def read_file(path: str) -> str:
        """Read a text file."""
        return jobs.read_file(job.folder, path)

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=job.url, api_key=KEY))
    return Agent(model, tools=[read_file])


async def _streamed(agent: Any) -> None:
    async with agent.run_stream_events(TASK, usage_limits=UNLIMITED) as events:
        async for _ in events:
            pass
