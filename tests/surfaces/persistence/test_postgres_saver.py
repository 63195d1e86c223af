"""LangGraph's checkpoints in a shared database; what both savers do is in `test_checkpoint_saver.py`."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from mendgraph.graph.machine.serializer import serializer
from mendgraph.graph.persistence.postgres_saver import CHECKPOINTS, PostgresStoreSaver
from mendgraph.nodes.workspace.store.database import open_postgres
from mendgraph.nodes.workspace.store.database_schema import STORE_TABLES

CONFIG = RunnableConfig(configurable={"thread_id": "t", "checkpoint_ns": ""})
SECRET = "-".join(("plum", "51", "orchard"))


def open_saver(workspace: str = "w") -> PostgresStoreSaver:
    database = open_postgres(STORE_TABLES, workspace)
    assert database is not None
    open_postgres(CHECKPOINTS)
    return PostgresStoreSaver(database, serializer((SECRET,)))


@pytest.fixture
def saver(shared_store: str) -> Iterator[PostgresStoreSaver]:
    assert shared_store
    with closing(open_saver()) as saver:
        yield saver


def put(saver: PostgresStoreSaver, number: int, parent: RunnableConfig = CONFIG, **values: Any) -> RunnableConfig:
    child: Any = {**empty_checkpoint(), "id": f"{number:04}", "channel_values": values}
    child["channel_versions"] = dict.fromkeys(values, f"{number:08}.x")
    return saver.put(parent, child, {"step": number}, child["channel_versions"])


def rows(url: str, question: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SET search_path = mendgraph")
        cursor = other.execute(question.encode())
        return cursor.fetchall() if cursor.description else []


def test_threads_with_one_name_in_two_workspaces_are_separate(saver: PostgresStoreSaver) -> None:
    with closing(open_saver("other")) as other:
        put(saver, 1, plan="ours")
        put(other, 2, plan="theirs")
        configs = [[checkpoint.config["configurable"] for checkpoint in who.list(None)] for who in (saver, other)]
        assert configs == [[{"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": f"000{n}"}] for n in (1, 2)]
        assert [who.get_tuple(CONFIG).checkpoint["channel_values"] for who in (saver, other)] == [  # type: ignore[union-attr]
            {"plan": "ours"},
            {"plan": "theirs"},
        ]
        other.delete_thread("t")
        assert (other.get_tuple(CONFIG), saver.get_tuple(CONFIG) is None) == (None, False)


def test_every_value_is_stored_by_our_serializer(saver: PostgresStoreSaver, shared_store: str) -> None:
    """LangGraph itself would store texts as JSON: with their secrets, and not at all with a NUL."""
    values: dict[str, Any] = {
        "answer": f"a\0b {SECRET}",
        "step": 3,
        "done": True,
        "none": None,
        "plan": _DeltaSnapshot([SECRET]),
    }
    put(saver, 1, CONFIG, **values)
    stored = saver.get_tuple(CONFIG)
    assert stored is not None
    channel_values = stored.checkpoint["channel_values"]
    assert (channel_values["answer"][:4], channel_values["step"], channel_values["done"], channel_values["none"]) == (
        "a\0b ",
        3,
        True,
        None,
    )
    assert SECRET not in repr(channel_values)
    assert rows(shared_store, "SELECT checkpoint -> 'channel_values' FROM checkpoints") == [({},)]
    for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
        assert SECRET.encode() not in b"".join(
            cell if isinstance(cell, bytes) else str(cell).encode()
            for row in rows(shared_store, f"SELECT * FROM {table}")  # noqa: S608 - ours
            for cell in row
        )
