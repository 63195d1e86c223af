"""A session of turns, and what it returns."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.serializer import ScrubbingSerializer, serializer
from mendgraph.graph.runs.events import Asked, StepDone, Text
from mendgraph.graph.runs.run import Session
from mendgraph.graph.runs.runs import list_runs
from mendgraph.nodes.workspace.store.run_folder import workspace_folder_path
from mendgraph.nodes.workspace.store.run_lock import Owner, RunLock
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import Chunked, ScriptedServer
from tests.doubles.tool_use import Use, message_of, use
from tests.extent import slow
from tests.scenarios.sample_repair import CALC, DONE, EDIT, READ, TASK
from tests.vocabulary import Protocol
from tests.workspace_files import write_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path, CALC)
    return tmp_path


def native_model(*replies: Use | Say) -> ScriptedModel:
    return ScriptedModel([message_of(reply, Protocol.NATIVE) for reply in replies])


def context(folder: Path, **more: Any) -> AgentContext:
    """A run whose only calls are the model's."""
    return AgentContext(workspace=str(folder), evidence=False, read_ahead=False, **more)


def shape(messages: tuple[AnyMessage, ...]) -> list[str]:
    return [message.type for message in messages]


# --- Turns


def test_result_of_a_task_is_not_read_back_from_the_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a long history takes longer than writing its last step. The stored values are the same."""
    read: list[str] = []
    loads = ScrubbingSerializer.loads_typed

    def watched(self: ScrubbingSerializer, data: tuple[str, bytes]) -> Any:
        read.append(data[0])
        return loads(self, data)

    monkeypatch.setattr(ScrubbingSerializer, "loads_typed", watched)
    with Session(context(folder), model=native_model(use(READ), use(EDIT), DONE)) as session:
        list(session.stream(TASK))
        first = session.result()
        assert read == []
    with Session(context(folder), thread_id=session.thread_id) as again:
        list(again.resume())
        assert (again.result(), bool(read)) == (first, True)


# --- A run locks the workspace, and each turn is recorded first


def is_free(folder: Path) -> bool:
    """Whether another run may work here."""
    with RunLock(workspace_folder_path(str(folder))) as lock:
        return lock.acquire(Owner("other")) is None


def test_session_with_the_users_saver_stores_no_run_and_locks_the_workspace(folder: Path) -> None:
    settings: Any = {"model": native_model(use(EDIT), DONE), "checkpointer": InMemorySaver()}
    with Session(context(folder, mode="ask"), **settings) as session:
        assert isinstance(session.work(TASK), Asked)
        assert not is_free(folder)
        session.work_on("approve")
        assert (is_free(folder), list_runs(folder)) == (True, ())


# --- The history of a thread


def test_history_grows_by_two_in_a_plain_turn_and_by_four_in_a_tool_turn(folder: Path) -> None:
    """Source: spec 2, "Streaming Responses", acceptance criteria."""
    with Session(context(folder), model=native_model(Say("Hello."), use(READ), Say("It subtracts."))) as session:
        list(session.stream("Hello."))
        plain = session.result().messages
        list(session.stream("What does calc.py do?"))
        messages = session.result().messages
    assert shape(plain) == ["human", "ai"]
    assert shape(messages[len(plain) :]) == ["human", "ai", "tool", "ai"]
    assert messages[: len(plain)] == plain


def test_reply_is_one_message_however_it_was_streamed(folder: Path) -> None:
    """Source: spec 2, "clean history": one assistant message for each reply."""
    with (
        ScriptedServer([Chunked(Say("It adds two numbers."), 4)]) as server,
        Session(context(folder, base_url=server.base_url, model="m")) as session,
    ):
        texts = [event.text for event in session.stream("What is add?") if isinstance(event, Text)]
        result = session.result()
    assert texts == ["It ", "adds ", "two ", "numbers."]  # by the word: a secret may span pieces
    assert [(type(message), message.content) for message in result.messages] == [
        (HumanMessage, "What is add?"),
        (AIMessage, "It adds two numbers."),
    ]


def test_thread_can_be_continued_by_another_session(folder: Path) -> None:
    saver = InMemorySaver(serde=serializer())
    with Session(context(folder), model=native_model(use(READ), DONE), checkpointer=saver, thread_id="t") as session:
        list(session.stream("Read calc.py."))
    model = native_model(Say("You asked for calc.py."))
    with Session(context(folder), model=model, checkpointer=saver, thread_id="t") as session:
        list(session.stream("What did I ask?"))
        result = session.result()
    assert (result.thread_id, result.outcome.usage["total_calls"]) == ("t", 3)
    assert "Read calc.py." in [message["content"] for message in model.calls[0].prompt.messages]


def test_message_added_after_the_last_step_is_kept_for_the_next_request(folder: Path) -> None:
    with Session(AgentContext(workspace=str(folder), protocol="text"), model=ScriptedModel([Say("Hello.")])) as session:
        for _ in session.stream("Greet me"):
            session.add_message("And my friend")
        assert "And my friend" not in [message.text for message in session.result().messages]
        assert set(session.unread_messages()) == {"And my friend"}
        assert session.unread_messages() == []
        with pytest.raises(TypeError, match="int is not a text"):
            session.add_message(1)  # type: ignore[arg-type]


@slow
def test_compaction_does_not_touch_the_thread_of_a_running_turn(folder: Path) -> None:
    async def compact(session: Session) -> list[Any]:
        return [event async for event in session.acompact()]

    with Session(context(folder), model=native_model(use(READ), use(READ), DONE, use(EDIT), DONE)) as session:
        session.work("Look.")
        positions = []
        for event in session.stream(TASK):
            if isinstance(event, StepDone):
                before = session._machine.get_state(session._config()).config
                asyncio.run(compact(session))
                positions.append(session._machine.get_state(session._config()).config == before)
    assert positions
    assert all(positions)
