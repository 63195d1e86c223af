"""LangChain's `create_agent` with one tool, and deepagents on a folder, as in their documentation."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver

from benchmarks.overhead import job as jobs
from benchmarks.overhead.job import KEY, MODEL, MOST_STEPS, TASK, Job

CONFIG: Any = {"recursion_limit": MOST_STEPS, "configurable": {"thread_id": "t"}}
REQUEST: Any = {"messages": [{"role": "user", "content": TASK}]}
PROFILE: Any = {"max_input_tokens": 10_000_000}
"""A window so large that deepagents does not summarize: a summary would shorten its requests."""

Build = Callable[[Job, Any], Any]


class LangchainAgent:
    """A compiled graph of LangChain or deepagents."""

    def __init__(self, build: Build) -> None:
        self._build = build

    def run(self, job: Job) -> None:
        """Run the job. With a saver, each step is on the disk before the next step begins."""
        if not job.stored:
            _run(self._build(job, None), job)
            return

        database = str(Path(job.keep, "checkpoints.sqlite"))
        with closing(sqlite3.connect(database, check_same_thread=False)) as connection:
            _run(self._build(job, SqliteSaver(connection)), job, durability="sync")

    async def arun(self, job: Job) -> None:
        """Run the job `count` times concurrently."""
        agent = self._build(job, None)
        runs = [jobs.drain(agent, job, REQUEST, CONFIG) for _ in range(job.count)]
        await asyncio.gather(*runs)


def load_create_agent() -> LangchainAgent:
    """Return `create_agent`."""
    return LangchainAgent(_create_agent)


def load_deepagents() -> LangchainAgent:
    """Return `create_deep_agent` with its default tools."""
    from deepagents import create_deep_agent
    from deepagents.backends import FilesystemBackend

    def build(job: Job, saver: Any) -> Any:
        backend = FilesystemBackend(root_dir=job.folder, virtual_mode=True)
        return create_deep_agent(_model(job, profile=PROFILE), backend=backend, checkpointer=saver)

    return LangchainAgent(build)


def _create_agent(job: Job, saver: Any) -> Any:
    @tool
    def read_file(path: str) -> str:
        """Read a text file."""
        return jobs.read_file(job.folder, path)

    return create_agent(_model(job), tools=[read_file], checkpointer=saver)


def _model(job: Job, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model=MODEL, base_url=job.url, api_key=lambda: KEY, **options)


def _run(agent: Any, job: Job, **options: Any) -> None:
    if not job.stream:
        agent.invoke(REQUEST, CONFIG, **options)
        return

    for _ in agent.stream(REQUEST, CONFIG, stream_mode="messages", **options):
        pass
