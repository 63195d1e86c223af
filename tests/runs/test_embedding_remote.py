"""The machine behind `RemoteGraph`: a user's graph here, the agent in a server."""

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command

from mendgraph.nodes.records import Protocol
from tests.doubles.scripted_server import ScriptedServer
from tests.runs.embedding import REPAIR, THREAD, saver, workspace
from tests.runs.playing import changed_files
from tests.runs.scenario import spoken
from tests.runs.scenarios_of_work import CALC, MENDED, TASK
from tests.runs.studio import Studio

pytestmark = pytest.mark.studio

ASKED: Any = {"messages": [HumanMessage(TASK)]}


def model() -> ScriptedServer:
    return ScriptedServer([spoken(reply, Protocol.NATIVE) for reply in REPAIR])


def test_an_agent_in_a_server_is_called_like_one_here(studio: Studio, tmp_path: Path) -> None:
    remote = RemoteGraph("mendgraph", sync_client=studio.client)
    with model() as server:
        result: Any = remote.invoke(ASKED, context=studio.context(workspace(tmp_path), server))
    assert (result["outcome"]["kind"], result["messages"][-1]["content"]) == ("FINISHED", "add now adds.")
    assert changed_files(tmp_path, CALC) == {"calc.py": MENDED}


def test_a_question_in_a_server_is_answered_here(studio: Studio, tmp_path: Path) -> None:
    remote = RemoteGraph("mendgraph", sync_client=studio.client)
    thread: Any = {"configurable": {"thread_id": studio.thread()["thread_id"]}}
    with model() as server:
        context = studio.context(workspace(tmp_path), server, {"mode": "ask"})
        parts = list(remote.stream(ASKED, thread, context=context, stream_mode="updates"))
        (question,) = next(part["__interrupt__"] for part in parts if "__interrupt__" in part)
        assert [call["tool"] for call in question["value"]["calls"]] == ["edit_file"]
        assert changed_files(tmp_path, CALC) == {}
        result: Any = remote.invoke(Command(resume="approve"), thread, context=context)
    assert result["outcome"]["kind"] == "FINISHED"
    assert changed_files(tmp_path, CALC) == {"calc.py": MENDED}


def test_an_agent_in_a_server_is_a_node_of_a_graph_here(studio: Studio, tmp_path: Path) -> None:
    """A node calls it, so that the context that it gets is the node's to say."""
    remote = RemoteGraph("mendgraph", sync_client=studio.client)

    def coder(state: MessagesState) -> Any:
        asked: Any = {"messages": state["messages"]}
        result: Any = remote.invoke(asked, context=studio.context(workspace(tmp_path), server))
        return {"messages": [("ai", result["outcome"]["message"])]}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("coder", coder)
    builder.add_edge(START, "coder")
    with model() as server:
        result = builder.compile(checkpointer=saver()).invoke(ASKED, THREAD)
    assert result["messages"][-1].text == "add now adds."
    assert changed_files(tmp_path, CALC) == {"calc.py": MENDED}
