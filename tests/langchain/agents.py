"""Agents of LangChain and deepagents on a scripted endpoint, as their users make them."""

import asyncio
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.doubles.scripted_server import ScriptedServer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the libraries of deepagents, at their import
    from deepagents import create_deep_agent

THREAD: RunnableConfig = {"configurable": {"thread_id": "1"}, "recursion_limit": 40}

sync_and_async = pytest.mark.parametrize("loop", [False, True], ids=["sync", "async"])


@cache
def event_loop() -> asyncio.Runner:
    """One event loop for all turns, as in an application: langchain-openai shares its connections between instances."""
    return asyncio.Runner()


def chat(server: ScriptedServer, **settings: Any) -> ChatOpenAI:
    """The user's chat model."""
    key = SecretStr("a-key-of-nobody")
    return ChatOpenAI(model="scripted", base_url=server.base_url, api_key=key, max_retries=0, **settings)


def look(path: str) -> str:
    """Look at a file."""
    return f"{path} has three lines."


def agent(server: ScriptedServer, *middleware: Any, tools: Sequence[Any] = (look,), **more: Any) -> Any:
    """An agent of `create_agent`."""
    return create_agent(chat(server), list(tools), middleware=list(middleware), **more)


def deep_agent(server: ScriptedServer, *middleware: Any, **more: Any) -> Any:
    """An agent of `create_deep_agent`."""
    return create_deep_agent(model=chat(server), middleware=list(middleware), **more)


def ask(agent_graph: Any, loop: bool = False, config: RunnableConfig = THREAD) -> list[BaseMessage]:
    """One turn; all messages of the thread."""
    turn_input = {"messages": [{"role": "user", "content": "Look at the files."}]}
    result = (
        event_loop().run(agent_graph.ainvoke(turn_input, config)) if loop else agent_graph.invoke(turn_input, config)
    )
    messages: list[BaseMessage] = result["messages"]
    return messages
