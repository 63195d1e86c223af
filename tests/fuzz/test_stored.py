"""Stored data: a damaged checkpoint, database or cassette is refused, and never builds another type."""

import json
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from enum import Enum
from functools import cache, partial
from typing import Any, Final

import ormsgpack
from hypothesis import example, strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde import jsonplus
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from pydantic import BaseModel

from mendgraph.graph.cassettes import cassette_file
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.serializer import CHECKPOINT_TYPES, serializer
from mendgraph.graph.persistence.checkpoint_saver import SqliteStoreSaver
from mendgraph.nodes.records import Answer, ExtractionErrorType, Plan, PlanStep, ToolCall, ToolError
from mendgraph.nodes.workspace.store.database import StoreError
from mendgraph.nodes.workspace.store.database_schema import SQLITE_TABLES
from tests.doubles.replies import Calls, Say
from tests.doubles.scripted_model import ScriptedModel
from tests.extent import slow
from tests.fuzz.inputs import as_bytes, byte_text, cassettes, fuzz, mutated

SERDE: Final = serializer()
DICTIONARY: Final = (
    b"mendgraph.graph.configuration.context AgentContext mendgraph.nodes.records ToolCall "
    b"langchain_core.messages HumanMessage content " * 3
)
PACKING: Final = serializer(dictionary=DICTIONARY)
CODES: Final = sorted(value for name, value in vars(jsonplus).items() if name.startswith("EXT_"))
KINDS: Final = ("msgpack", "msgpack+zlib", "json", "json+zlib", "bytes", "bytearray", "null", "pickle", "", "yaml")

SPRUNG: Final[list[str]] = []
"""What a checkpoint brought to life although it must not."""


YAML_WORDS: Final = (
    *("- ", ": ", "\n", "  ", "|", ">", "&a ", "*a", "!!python/object/apply:os.system [ls]", "!!binary |", "!!set"),
    *("%YAML", "---\n", "..."),
    *("'", '"', "{", "[", "? ", "~", "null", "1", "1.5", "2020-01-01", "interactions", "recorded_from: x\n"),
    *("<<: *a\n", "\t", "#"),
    *("\x85", "code: 200", "uri: http://[", "body: !!binary aGk=", "string:", "headers:", "\ufeff"),
)


class Trap:
    """A foreign type; building one means that foreign code ran."""

    def __init__(self, *_: object, **__: object) -> None:
        SPRUNG.append("made")

    @classmethod
    def spring(cls, *_: object, **__: object) -> str:
        """What a constructor by name would be."""
        SPRUNG.append("called")
        return "sprung"


NAMES: Final = (
    *((Trap.__module__, "Trap"), ("os", "system"), ("builtins", "eval"), ("subprocess", "Popen")),
    *(("mendgraph.nodes.records", "Record"),),
    *(
        ("mendgraph.graph.runs.run", "run"),
        ("langgraph.types", "Send"),
        ("langchain_core.messages", "HumanMessage"),
        ("pathlib", "Path"),
    ),
    *((kind.__module__, kind.__qualname__) for kind in CHECKPOINT_TYPES),
)
VALUES: Final[tuple[Any, ...]] = (
    *("true", {}, [], None, {"content": "x"}, ["x"], {"a": 1}, 7, {"answer": "x"}, {"text": "x", "value": [1]}),
    *({"kind": "x"}, [["a"]], {"tool": "f", "call_id": "x", "arguments": {}, "raw_arguments": ""}),
)
PLAIN: Final = (type(None), bool, int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset)
MESSAGES: Final = "langchain_core.messages."


# --- Checkpoints


def _checkpoints() -> st.SearchStrategy[Any]:
    words = (
        *map(chr, range(128, 256)),
        *("\x81\xa1a", "\xc7", "\xd8", "mendgraph.graph.configuration.context", "mendgraph.nodes.records", "os"),
        *("system", "\xdd\x00\x00\x00\xff"),
    )
    code, name, value = st.sampled_from(CODES), st.sampled_from(NAMES), st.sampled_from(VALUES)
    method = st.sampled_from(["spring", "model_validate_json", "model_construct", "__init__", "fromisoformat"])
    packed = st.builds(_crafted, code, name, value, method, st.sampled_from([0, 1, 2, 40]))
    spelled = st.builds(_json_crafted, name, value, st.sampled_from([1, 2, 3]))
    return st.one_of(
        st.tuples(st.sampled_from(KINDS), mutated(stored_values(), words)),
        st.tuples(st.just("msgpack"), packed),
        st.tuples(st.just("json"), spelled),
    )


@fuzz(_checkpoints)
def test_checkpoint_builds_no_other_type(example: tuple[str, str]) -> None:
    """Bytes are a value of the types that a checkpoint may hold, or a `StoreError`."""
    kind, data = example[0], as_bytes(example[1])
    for serde in (SERDE, PACKING):
        SPRUNG.clear()
        try:
            value = serde.loads_typed((kind, data))
        except StoreError:
            value = None
        assert SPRUNG == []
        _is_of_known_types(value)


def _is_of_known_types(value: Any) -> None:
    kind = type(value)
    is_allowed = kind in PLAIN or kind in CHECKPOINT_TYPES or (kind.__module__, kind.__name__) in SAFE_MSGPACK_TYPES
    assert is_allowed or kind.__module__.startswith((MESSAGES, "langgraph.")), kind
    for inner in _inside(value):
        _is_of_known_types(inner)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, BaseModel):
        return list(value.__dict__.values())
    return value if isinstance(value, list | tuple | set | frozenset) and not isinstance(value, Enum) else ()


@cache
def stored_values() -> tuple[str, ...]:
    """Real values, as they are stored."""
    call = ToolCall(call_id="x", tool="read_file", arguments={"path": "a.py"}, raw_arguments='{"path": "a.py"}')
    values: list[Any] = [
        call,
        Answer(text="It adds.", value={"count": 1}),
        Plan(steps=(PlanStep(title="look"),)),
        ExtractionErrorType.EMPTY_REPLY,
        [HumanMessage("Hi", id="1"), AIMessage("Yes", id="2"), ToolMessage("ok", tool_call_id="x", id="3")],
        AgentContext(model="m"),
        {"channel_values": {"items": [call], "step": 3}, "channel_versions": {"items": "00000001"}, "v": 4},
    ]
    plain = [SERDE.dumps_typed(value)[1] for value in values]
    return tuple(
        map(
            byte_text,
            [*plain, *(PACKING.dumps_typed(value)[1] for value in values), b'{"lc": 2, "type": "constructor"}'],
        )
    )


def _crafted(code: int, name: tuple[str, str], value: Any, method: str, depth: int) -> str:
    """Bytes that ask for this to be made; `depth` maps and lists around it."""
    data = ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb([*name, value, method])))
    for _ in range(depth):
        data = b"\x81\xa1a\x91" + data
    return byte_text(data)


def _json_crafted(name: tuple[str, str], value: Any, number: int) -> str:
    """The same as LangChain's JSON would spell it."""
    place = [*name[0].split("."), name[1]]
    arguments = (
        {"kwargs": value} if isinstance(value, dict) else {"args": value if isinstance(value, list) else [value]}
    )
    return json.dumps({"lc": number, "type": "constructor", "id": place, "method": "spring", **arguments})


# --- A database


@cache
def recorded_database() -> bytes:
    """A finished run, as it is on the disk."""
    with closing(_database()) as connection:
        saver = SqliteStoreSaver(connection, "store.sqlite", SERDE)
        model = ScriptedModel([Calls([("read_file", '{"path": "no.py"}')]), Say("There is no such file.")])
        build_graph(saver, model=model).invoke(
            {"messages": [HumanMessage("Is there a no.py?")]}, config_of(None), context=AgentContext()
        )
        return connection.serialize()


def _database(data: bytes = b"") -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    if data:
        connection.deserialize(data)
    else:
        connection.executescript(";".join(SQLITE_TABLES))
    return connection


def config_of(checkpoint: str | None) -> RunnableConfig:
    """The place of the recorded run, or of one of its checkpoints."""
    return RunnableConfig(
        configurable={"thread_id": "t", "checkpoint_ns": "", **({"checkpoint_id": checkpoint} if checkpoint else {})}
    )


KEYS: Final = {
    "checkpoints": "thread_id, checkpoint_ns, checkpoint_id",
    "writes": "thread_id, checkpoint_ns, checkpoint_id, task_id, idx",
}
CELLS: Final = (
    *(("checkpoints", name) for name in ("type", "checkpoint", "metadata", "parent_checkpoint_id", "checkpoint_id")),
    *(("writes", name) for name in ("type", "value", "channel", "idx", "task_path", "checkpoint_id")),
)


def _rows() -> st.SearchStrategy[Any]:
    with closing(_database(recorded_database())) as connection:
        cells = [cell for row in connection.execute("SELECT checkpoint, metadata FROM checkpoints") for cell in row]
    texts = [byte_text(bytes(cell)) if isinstance(cell, bytes) else str(cell) for cell in cells]
    words = (
        *("{", "}", '"', "null", "[]", '{"counters_since_delta_snapshot": 7}', "msgpack", "json", "pickle", "\xc1"),
        *("0", "x"),
    )
    return st.tuples(
        st.integers(0, len(CELLS) - 1), st.integers(0, 40), mutated([*texts, "", "msgpack"], words), st.booleans()
    )


@slow
@example((2, 0, "{", True))
@fuzz(_rows)
def test_damaged_row_is_refused(damage: tuple[int, int, str, bool]) -> None:
    """Reading a run with a changed database gives the stored data or a `StoreError`."""
    (table, column), row, text, as_text = CELLS[damage[0]], damage[1], damage[2], damage[3]
    with closing(_database(recorded_database())) as connection:
        rows = connection.execute(f"SELECT {KEYS[table]} FROM {table} ORDER BY 1, 2, 3").fetchall()  # noqa: S608
        key = rows[row % len(rows)]
        change = f"UPDATE {table} SET {column} = ? WHERE ({KEYS[table]}) = ({', '.join('?' * len(key))})"  # noqa: S608
        value = text.encode("utf-8", "replace").decode() if as_text else as_bytes(text)
        try:
            connection.execute(change, (value, *key))
        except sqlite3.IntegrityError:
            return
        _read_all(connection)


def _read_all(connection: sqlite3.Connection) -> None:
    """Read all records that a resumed run reads."""
    saver = SqliteStoreSaver(connection, "store.sqlite", SERDE)
    channels = ["messages", "changes", "files_read"]
    questions: list[Callable[[], object]] = [lambda: [*saver.list(config_of(None))]]
    for checkpoint in (None, *recorded_ids()):
        place = config_of(checkpoint)
        questions.append(partial(saver.get_tuple, place))
        questions.append(partial(saver.get_delta_channel_history, config=place, channels=channels))
    SPRUNG.clear()
    for ask in questions:
        with suppress(StoreError):
            ask()
    assert SPRUNG == []


@cache
def recorded_ids() -> tuple[str, ...]:
    """The first and the last checkpoint of the recorded run."""
    with closing(_database(recorded_database())) as connection:
        ids = [str(name) for (name,) in connection.execute("SELECT checkpoint_id FROM checkpoints ORDER BY 1")]
    return ids[0], ids[-1]


@slow
@fuzz(
    lambda: st.tuples(
        st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=8), st.sampled_from([0, 0, 0, 1, 4096])
    )
)
def test_damaged_file_is_refused(example: tuple[list[tuple[int, int]], int]) -> None:
    """The same where the file itself was damaged: bytes changed, or its end missing."""
    data = bytearray(recorded_database())
    for at, byte in example[0]:
        data[at % len(data)] = byte
    with closing(_database(bytes(data[: len(data) - example[1]]))) as connection:
        _read_all(connection)


# --- Cassettes


@fuzz(lambda: mutated(cassettes(), YAML_WORDS))
def test_cassette_is_parsed_or_refused(text: str) -> None:
    """A cassette, or the reason why it is invalid; a valid one is written and read again exactly."""
    cassette = cassette_file.parse(text)
    if isinstance(cassette, ToolError):
        assert cassette.message
        assert len(cassette.message) <= 2_000
        return
    assert cassette_file.parse(cassette_file.render(cassette)) == cassette
    cassette_file.secrets_in(text)
