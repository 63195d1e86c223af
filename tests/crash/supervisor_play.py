"""Two agents under a supervisor, in a process of its own that is killed and goes on."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph_supervisor import create_supervisor

from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.state import serializer
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE
from mendgraph.nodes.records import ModelReply, Protocol
from tests.crash.children_play import plain_context
from tests.doubles.call_model import CallModel
from tests.doubles.replies import Say
from tests.doubles.scripted_model import reply_of
from tests.doubles.tool_use import message_of, use

AGENTS: Final = ("first", "second")
MOST_CALLS: Final = 5
"""Of each agent, which makes three."""
BEFORE: Final = {"a.txt": "a\n", "b.txt": "b\n"}
AFTER: Final = {"a.txt": "A\n", "b.txt": "B\n", "first.txt": "made\n", "second.txt": "made\n"}

EDITS: Final = {"first": ("a.txt", "a", "A"), "second": ("b.txt", "b", "B")}
THREAD: Final[Any] = {"configurable": {"thread_id": "play"}}


class Worker(CallModel):
    """An agent's model: edits a file, makes another, and says so. What others said it reads as text, not as results."""

    blocks: ClassVar[bool] = True

    def __init__(self, name: str, marks: str) -> None:
        path, old, new = EDITS[name]
        self._name, self._marks = name, marks
        self._lines = (
            use(("edit_file", {"path": path, "old_str": old, "new_str": new})),
            use(("write_file", {"path": f"{name}.txt", "content": "made\n"})),
            Say("Changed."),
        )

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply:
        """Leave a mark in a file, whatever becomes of the process, and say what comes next."""
        with Path(self._marks).open("a", encoding="utf-8") as marks:
            marks.write(f"{self._name}\n")
        done = sum(each["role"] == "tool" for each in call.prompt.messages)
        line = message_of(self._lines[done], Protocol.NATIVE)
        on_text(line.text)
        return reply_of(line, done + 1, call)


class Chief(FakeListChatModel):
    """Hands over to the first agent, then to the second, then says that all is done."""

    responses: list[str] = []  # noqa: RUF012 - a field of pydantic's

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        """Take the tools for handing over."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        names = [each.name for each in messages if isinstance(each, ToolMessage)]
        left = [agent for agent in AGENTS if f"transfer_to_{agent}" not in names]
        call = [{"name": f"transfer_to_{left[0]}", "args": {}, "id": f"to_{left[0]}"}] if left else []
        said = AIMessage("" if left else "All done.", tool_calls=call)
        return ChatResult(generations=[ChatGeneration(message=said)])


def supervisor(place: dict[str, str], saver: SqliteSaver) -> Any:
    """The graph, with a checkpointer of its own."""

    def agent(name: str) -> Any:
        context = plain_context(place, max_calls_per_turn=MOST_CALLS)
        return build_graph(model=Worker(name, place["marks"]), context=context, name=name)

    agents: Any = [agent(name) for name in AGENTS]
    return create_supervisor(agents, model=Chief()).compile(checkpointer=saver)


def begin(place: dict[str, str]) -> dict[str, Any]:
    """The conversation, from its first word, or from where it was cut off."""
    os.environ[DATA_DIR_VARIABLE] = place["data"]
    with SqliteSaver.from_conn_string(place["graph"]) as saver:
        saver.serde = serializer()
        graph = supervisor(place, saver)
        begun = bool(graph.get_state(THREAD).values)
        ended = graph.invoke(None if begun else {"messages": [HumanMessage("Change both files.")]}, THREAD)
        return {"answer": ended["messages"][-1].text, "said": [each.name for each in ended["messages"]]}
