"""What the savers of both databases have in common, and checkpointers of others."""

import asyncio
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer, _msgpack_ext_hook_to_json
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from pydantic import TypeAdapter

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import Machine, build_graph
from mendgraph.graph.machine.serializer import CHECKPOINT_TYPES, own_saver
from mendgraph.nodes.records import OutcomeKind
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.extent import slow
from tests.langchain.embedding import ASKED, REPAIR, THREAD, context, native_model
from tests.machine.test_state import EXAMPLES
from tests.scenarios.sample_repair import CALC, MENDED
from tests.surfaces.persistence.any_saver import opened_saver
from tests.workspace_files import changed_files


@pytest.fixture
def saver(any_store: str, tmp_path: Path) -> Iterator[Any]:  # noqa: ARG001 - each test runs with both
    with closing(opened_saver(tmp_path)) as opened:
        yield opened


@slow
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_sync_and_async_runs_leave_the_same_thread(saver: Any, tmp_path: Path, durability: Any) -> None:
    machine = build_graph(saver, model=ScriptedModel([], then=Say("Done.")))
    options: Any = {"context": AgentContext(workspace=str(tmp_path), audit=False), "durability": durability}
    request: Any = {"messages": [HumanMessage("Hi.", id="1")]}
    ways = [RunnableConfig(configurable={"thread_id": name}) for name in ("sync", "async")]
    machine.invoke(request, ways[0], **options)
    asyncio.run(machine.ainvoke(request, ways[1], **options))

    async def read(config: RunnableConfig) -> list[Any]:
        return [snapshot async for snapshot in machine.aget_state_history(config)]

    states = [machine.get_state(config) for config in ways]
    assert [[message.content for message in state.values["messages"]] for state in states] == [["Hi.", "Done."]] * 2
    assert [state.next for state in states] == [(), ()]
    assert [asyncio.run(read(config))[0].values for config in ways] == [state.values for state in states]
    histories = [
        [(snapshot.next, (snapshot.metadata or {})["step"]) for snapshot in machine.get_state_history(config)]
        for config in ways
    ]
    assert histories[0] == histories[1]


class Plain:
    """Encrypts nothing: what matters is whose serializer it is."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "plain", plaintext

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:  # noqa: ARG002 - the protocol's
        return ciphertext


def run_with_approval(machine: Machine, folder: Path, loop: bool) -> Any:
    """A run that a person approves, by two machines over one thread in all."""
    settings: Any = {"config": THREAD, "context": context(folder, mode="ask")}

    async def play() -> Any:
        await machine.ainvoke(ASKED, **settings)
        return await machine.ainvoke(Command(resume="approve"), **settings)

    if loop:
        return asyncio.run(play())
    machine.invoke(ASKED, **settings)
    return machine.invoke(Command(resume="approve"), **settings)


@slow
@pytest.mark.parametrize("kind", ["memory in a loop", "sqlite", "encrypted"])
def test_savers_of_langgraph_keep_a_thread(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    connection = sqlite3.connect(tmp_path / "threads.sqlite", check_same_thread=False)
    saver: Any = SqliteSaver(connection) if kind == "sqlite" else InMemorySaver()
    if kind == "encrypted":
        saver = InMemorySaver(serde=EncryptedSerializer(Plain(), JsonPlusSerializer(allowed_msgpack_modules=None)))
    with caplog.at_level(logging.WARNING):
        machine = build_graph(saver, model=native_model(*REPAIR))
        result = run_with_approval(machine, tmp_path / "w", "loop" in kind)
        state = build_graph(saver).get_state(THREAD).values  # another machine, which reads all of it back
    connection.close()
    assert (result["outcome"].kind, changed_files(tmp_path / "w", CALC)) == (OutcomeKind.FINISHED, {"calc.py": MENDED})
    assert (state["outcome"], state["messages"]) == (result["outcome"], result["messages"])
    assert caplog.records == []  # of types that LangGraph does not know


WORDS = tuple(word for kind in CHECKPOINT_TYPES if issubclass(kind, Enum) for word in kind)


@pytest.fixture
def serde_events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SerdeEvent]]:
    """The types that LangGraph warns of, or does not load."""
    for name, value in (("DATABASE_URI", ":memory:"), ("REDIS_URI", "fake")):
        monkeypatch.setenv(name, value)  # as `langgraph dev` does, without which its serializer cannot be imported
    events: list[SerdeEvent] = []
    unregister = register_serde_event_listener(events.append)
    yield events
    unregister()


def server_serializer(kind: str) -> Any:
    """A serializer of LangGraph's, as it is made with what LANGGRAPH_STRICT_MSGPACK says."""
    from langgraph_api.serde import Serializer  # type: ignore[import-untyped]  # the development server's

    return {
        "server": Serializer,
        "plain": JsonPlusSerializer,
        "encrypted": lambda: EncryptedSerializer(Plain(), JsonPlusSerializer()),
        "a client's view": lambda: Serializer(_msgpack_ext_hook_to_json),
    }[kind]()


@pytest.mark.parametrize(("kind", "strict"), [("server", True), ("encrypted", False)])
def test_records_are_restored_from_the_serializer_of_a_server(
    kind: str, strict: bool, serde_events: list[SerdeEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored record is restored unchanged, and the server shows all of it to its clients."""
    monkeypatch.setattr("langgraph.checkpoint.serde._msgpack.STRICT_MSGPACK_ENABLED", strict)
    assert {type(value) for value in (*EXAMPLES, *WORDS)} == set(CHECKPOINT_TYPES)
    serde = own_saver(InMemorySaver(serde=server_serializer(kind))).serde
    for value in (*EXAMPLES, *WORDS):
        back = serde.loads_typed(server_serializer(kind).dumps_typed({"one": value, "many": [value]}))
        grown = serde.loads_typed(server_serializer(kind).dumps_typed(_DeltaSnapshot([value]))).value
        assert (back, grown) == ({"one": value, "many": [value]}, [value])
        assert {type(back["one"]), type(back["many"][0]), type(grown[0])} == {type(value)}
        if kind == "server":
            view = server_serializer("a client's view").loads_typed(serde.dumps_typed(value))
            assert TypeAdapter(type(value)).validate_python(view) == value
    assert serde_events == []
