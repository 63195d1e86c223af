"""User graphs around the machine: what the tests of embedding have in common."""

from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph import AgentContext, serializer
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import Use, message_of, use
from tests.scenarios.sample_repair import CALC, DONE, EDIT, READ, TASK
from tests.vocabulary import JsonMap, Protocol
from tests.workspace_files import write_files

REPAIR = (use(READ), use(EDIT), DONE)
LINES = tuple(message_of(reply, Protocol.NATIVE) for reply in REPAIR)
THREAD: Any = {"configurable": {"thread_id": "parent"}}
ASKED: Any = {"messages": [HumanMessage(TASK)]}


def native_model(*replies: Use | Say) -> ScriptedModel:
    """A model with these replies, in native calls."""
    return ScriptedModel([message_of(reply, Protocol.NATIVE) for reply in replies])


def workspace(folder: Path) -> Path:
    """A workspace with the bug; it is created if necessary."""
    folder.mkdir(exist_ok=True)
    write_files(folder, CALC)
    return folder


def context(folder: Path, **more: Any) -> AgentContext:
    """A run whose only calls are the model's."""
    return AgentContext(workspace=str(workspace(folder)), evidence=False, read_ahead=False, **more)


def saver(*types: type) -> InMemorySaver:
    """A parent's checkpointer that may load our types, and these of the parent."""
    return InMemorySaver(serde=serializer(types=types))


def last(result: JsonMap) -> str:
    """What the agent said at the end."""
    message = result["messages"][-1]
    assert isinstance(message, AIMessage)
    return message.text
