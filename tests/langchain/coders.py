"""Agents of LangChain and deepagents that work on files, on a scripted endpoint."""

import json
import warnings
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.doubles.scripted_server import Calls, ScriptedServer
from tests.langchain.agents import event_loop

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the libraries of deepagents, at their import
    from deepagents import create_deep_agent
    from deepagents.backends import FilesystemBackend, LocalShellBackend

__all__ = [
    "THREAD",
    "FilesystemBackend",
    "LocalShellBackend",
    "coder",
    "deep_coder",
    "reply_with_calls",
    "run_turn",
    "sent_text",
]

THREAD: RunnableConfig = {"configurable": {"thread_id": "1"}, "recursion_limit": 60}


def coder(server: ScriptedServer, root: Path, *middleware: Any, **more: Any) -> Any:
    """An agent of `create_agent` with its own tools, which open any file."""

    @tool
    def read_file(path: str) -> str:
        """Read a file."""
        return (root / path).read_text(encoding="utf-8")

    @tool
    def save(edits: list[dict[str, str]]) -> str:
        """Write files, each with a filePath and a text."""
        for edit in edits:
            (root / edit["filePath"]).write_text(edit["text"], encoding="utf-8")
        return "saved"

    return create_agent(_chat(server), [read_file, save], middleware=list(middleware), **more)


def deep_coder(server: ScriptedServer, backend: Any, *middleware: Any, **more: Any) -> Any:
    """An agent of `create_deep_agent` with the tools of its backend."""
    return create_deep_agent(model=_chat(server), backend=backend, middleware=list(middleware), **more)


def _chat(server: ScriptedServer) -> ChatOpenAI:
    key = SecretStr("a-key-of-nobody")
    return ChatOpenAI(model="scripted", base_url=server.base_url, api_key=key, max_retries=0)


def reply_with_calls(*calls: tuple[str, dict[str, Any]]) -> Calls:
    """A reply with these calls."""
    return Calls([(name, json.dumps(arguments)) for name, arguments in calls])


def run_turn(agent: Any, request: str, loop: bool = False) -> dict[str, Any]:
    """One turn, in an event loop or not; the final state."""
    turn_input = {"messages": [{"role": "user", "content": request}]}
    state: dict[str, Any] = (
        event_loop().run(agent.ainvoke(turn_input, THREAD)) if loop else agent.invoke(turn_input, THREAD)
    )
    return state


def sent_text(server: ScriptedServer) -> str:
    """All text that the model was sent."""
    return json.dumps([request["messages"] for request in server.requests])
