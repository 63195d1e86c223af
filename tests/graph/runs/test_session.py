"""A session of turns, and what it gives back."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AnyMessage

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.redaction import ScrubbingSerializer
from mendgraph.graph.runs.events import Ended, Event
from mendgraph.graph.runs.run import Session
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.records import OutcomeKind, Protocol, StopReason
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.runs.playing import write_files
from tests.runs.scenario import Use, message_of, use
from tests.runs.scenarios_of_work import CALC, DONE, EDIT, READ, TASK


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path, CALC)
    return tmp_path


def told(*replies: Use | Say) -> ScriptedModel:
    return ScriptedModel([message_of(reply, Protocol.NATIVE) for reply in replies])


def context(folder: Path, **more: Any) -> AgentContext:
    """A run whose only calls are the model's."""
    return AgentContext(workspace=str(folder), evidence=False, read_ahead=False, **more)


def shape(messages: tuple[AnyMessage, ...]) -> list[str]:
    return [message.type for message in messages]


@pytest.fixture
def in_any_store(any_store: str, folder: Path) -> Path:  # noqa: ARG001 - each test runs with both
    return folder


# --- Turns


def test_what_came_of_a_task_is_not_read_back_from_the_disk(
    in_any_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read a long history takes longer than to write its last step. What the disk has is the same."""
    read: list[str] = []
    loads = ScrubbingSerializer.loads_typed

    def watched(self: ScrubbingSerializer, data: tuple[str, bytes]) -> Any:
        read.append(data[0])
        return loads(self, data)

    monkeypatch.setattr(ScrubbingSerializer, "loads_typed", watched)
    with Session(context(in_any_store), model=told(use(READ), use(EDIT), DONE)) as session:
        list(session.stream(TASK))
        first = session.result()
        assert read == []
    with Session(context(in_any_store), thread_id=session.thread_id) as again:
        list(again.resume())
        assert (again.result(), bool(read)) == (first, True)


def full(*_: object) -> None:
    raise StoreError("the disk is full")


def test_a_store_that_fails_in_the_middle_ends_the_turn(in_any_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def turn(session: Session) -> Event:
        return [event async for event in session.astream(TASK)][-1]

    failed = (OutcomeKind.SYSTEM_ERROR, StopReason.STORE_FAILED, "the disk is full")
    with Session(context(in_any_store), model=told(DONE)) as session, monkeypatch.context() as patch:
        patch.setattr(type(session._keeper.saver), "put", full)
        for last in ([*session.stream(TASK)][-1], asyncio.run(turn(session))):
            assert isinstance(last, Ended)
            assert (last.outcome.kind, last.outcome.reason, last.outcome.message) == failed


# --- The history of a thread


def test_history_grows_by_two_in_a_plain_turn_and_by_four_in_a_tool_turn(folder: Path) -> None:
    """Source: spec 2, "Streaming Responses", acceptance criteria."""
    with Session(context(folder), model=told(Say("Hello."), use(READ), Say("It subtracts."))) as session:
        list(session.stream("Hello."))
        plain = session.result().messages
        list(session.stream("What does calc.py do?"))
        both = session.result().messages
    assert shape(plain) == ["human", "ai"]
    assert shape(both[len(plain) :]) == ["human", "ai", "tool", "ai"]
    assert both[: len(plain)] == plain
