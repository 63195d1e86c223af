"""A literal that a model writes under a secret name runs as written, and nothing that is stored holds it."""

import base64
import json
import logging
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import ormsgpack
import pytest
from hypothesis import given, settings, strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import EXT_CONSTRUCTOR_KW_ARGS, EXT_DELTA_SNAPSHOT, EXT_PYDANTIC_V2
from langgraph.types import Command
from pydantic import BaseModel

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.redaction import WrittenLiterals
from mendgraph.graph.machine.serializer import ScrubbingSerializer, serializer
from mendgraph.nodes.execute_tools.secrets.redact import MARK, Redactor
from mendgraph.nodes.records import ExtractionErrorType, ModelReply, Plan, ToolCall
from mendgraph.nodes.workspace.store.database import StoreError
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Calls, Say
from tests.doubles.scripted_model import Line, ScriptedModel
from tests.rules.secrets.samples import KEYS
from tests.surfaces.runs.run_plays import context, project, use

ONE, TWO = "x8KqqP2" + "zz1", "Tr0ub4d" + "or9Kx"
CODE = "password = '{}'\n"
CONFIG = {"configurable": {"thread_id": "t"}}
WRITE = (
    ("write_file", {"path": "a.py", "content": CODE.format(ONE)}),
    ("write_file", {"path": "b.py", "content": CODE.format(TWO)}),
)
SAID = f"The file holds password = '{ONE}' now."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path / "project")


def strings_of(value: Any) -> Iterator[str]:
    """All texts that a saver holds, in any encoding."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from strings_of(key)
            yield from strings_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings_of(item)
    else:
        yield value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def holds(saver: InMemorySaver) -> str:
    return "\n".join(strings_of([saver.storage, dict(saver.writes), dict(saver.blobs)]))


def machine(saver: InMemorySaver, *lines: Line) -> Any:
    return build_graph(saver, model=HistoryModel(lines))


def start(folder: Path, **more: Any) -> dict[str, Any]:
    return {"input": {"messages": [HumanMessage("Write it.")]}, "config": CONFIG, "context": context(folder, **more)}


def test_literal_runs_as_written_and_is_in_no_checkpoint_update_or_message(folder: Path) -> None:
    saver = InMemorySaver()
    graph = machine(saver, use(*WRITE), Say(SAID))
    events = list(graph.stream(**start(folder), stream_mode=["updates", "values", "custom", "debug"]))
    assert (folder / "a.py").read_text() == CODE.format(ONE)
    assert (folder / "b.py").read_text() == CODE.format(TWO)
    state = graph.get_state(CONFIG).values
    for text in (holds(saver), repr(events), repr(state)):
        assert ONE not in text
        assert TWO not in text
    assert SAID.replace(ONE, MARK) in repr(state["outcome"])


def test_another_process_refuses_the_call_with_a_literal_and_the_model_repeats_it(folder: Path) -> None:
    saver = InMemorySaver()
    dying = machine(saver, use(*WRITE[:1]))
    dying.invoke(**start(folder), interrupt_after=["guard"])
    assert not (folder / "a.py").exists()
    state = machine(saver, use(*WRITE[:1]), use(*WRITE[:1])).invoke(None, CONFIG)
    refused = [message.text for message in state["messages"] if message.type == "tool"]
    assert "write the call again with the value" in refused[0]
    assert (folder / "a.py").read_text() == CODE.format(ONE)
    assert ONE not in holds(saver)


def test_signed_thinking_block_goes_back_to_the_provider_byte_for_byte() -> None:
    sealed = {"type": "thinking", "thinking": CODE.format(ONE), "signature": "s1"}
    open_block = {"type": "text", "text": CODE.format(ONE)}
    reply = ModelReply(text=CODE.format(ONE), provider={"content": [sealed, open_block]})
    words = WrittenLiterals(Redactor)
    hidden = words.mask("run", {"reply": reply}, "reply")["reply"]
    assert hidden.provider == {"content": [sealed, {"type": "text", "text": CODE.format(MARK)}]}
    assert words.restore("run", hidden) == reply
    assert words.restore("another", hidden) == hidden


def test_literal_is_forgotten_after_its_step_and_after_1024_runs() -> None:
    words = WrittenLiterals(Redactor)
    replies = [ModelReply(text=CODE.format(f"{ONE}{number}")) for number in range(1_025)]
    hidden = words.mask("0", {"reply": replies[0]}, "reply")["reply"]
    for number, reply in enumerate(replies):
        words.mask(str(number), {"reply": reply}, "reply")
    assert words.restore("0", hidden) == hidden  # of the oldest run, which is forgotten
    assert (words.restore("1", hidden), words.restore("1024", hidden)) == (replies[1], replies[1_024])
    assert words.restore("2", None) is None
    words.forget("1")
    assert words.restore("1", hidden) == hidden
    assert words.restore("2", hidden) == replies[2]


def same_id(content: str) -> Calls:
    """A call whose id the endpoint gives to every call."""
    return Calls([("write_file", json.dumps({"path": "a.py", "content": content}), "0")])


def test_approval_does_not_apply_to_another_call_with_the_same_redacted_arguments(folder: Path) -> None:
    model = ScriptedModel([same_id(CODE.format(ONE)), same_id(CODE.format(TWO)), Say("Done.")])
    graph: Any = build_graph(InMemorySaver(), model=model)
    graph.invoke(**start(folder, mode="ask"))
    first = graph.get_state(CONFIG).config
    again = next(snapshot.config for snapshot in graph.get_state_history(CONFIG) if snapshot.next == ("call_model",))
    graph.invoke(None, again)
    graph.invoke(Command(resume="approve"), first)
    assert not (folder / "a.py").exists()


# --- The serializer of checkpoints

KNOWN = "-".join(("plum", "51", 'orch"ard', "ü42"))
SHAPED = KEYS[0]
SERDE = ScrubbingSerializer(Redactor((KNOWN,)))


class Unlisted(BaseModel):
    """A foreign type, which must not be built from a checkpoint."""

    x: int = 1


def in_a_map(data: bytes) -> bytes:
    return b"\x81\xa1a\x91" + data  # {"a": [...]}


def in_a_snapshot(data: bytes) -> bytes:
    return ormsgpack.packb(ormsgpack.Ext(EXT_DELTA_SNAPSHOT, b"\x91" + data))


def in_an_overwrite(data: bytes) -> bytes:
    inner = b"\x93\xaflanggraph.types\xa9Overwrite\x81\xa5value\x91" + data
    return ormsgpack.packb(ormsgpack.Ext(EXT_CONSTRUCTOR_KW_ARGS, inner))


def store_and_load(value: Any, serde: SerializerProtocol = SERDE) -> tuple[bytes, Any]:
    """The bytes of a value, and what comes back from them."""
    kind, data = serde.dumps_typed(value)
    return data, serde.loads_typed((kind, data))


# --- Known values


def test_known_secret_is_redacted_in_every_encoding() -> None:
    encoded = (base64.b64encode(KNOWN.encode()).decode(), KNOWN.encode().hex())
    for form in (KNOWN, json.dumps(KNOWN)[1:-1], quote(KNOWN, safe=""), *encoded):
        data, back = store_and_load({"a": [AIMessage(f"x {form} y")], "b": [1, form], form: None})
        assert form.encode() not in data
        mark = "*" * len(form.encode())
        assert (back["a"][0].content, back["b"][0], list(back.values())[2]) == (f"x {mark} y", 1, None)


def test_known_secret_is_redacted_in_every_type_of_value(subtests: pytest.Subtests) -> None:
    call = ToolCall(call_id="c", tool="t", arguments={"deep": [{"er": KNOWN}]}, raw_arguments=json.dumps(KNOWN))
    context = AgentContext(workspace=f"/{KNOWN}")
    for value in ([AIMessage(f"It is {KNOWN}.")], call, context, {KNOWN: 1}, RuntimeError(KNOWN), KNOWN.encode()):
        with subtests.test(type=type(value).__name__):
            data, back = store_and_load(value)
            assert KNOWN.encode() not in data
            assert json.dumps(KNOWN)[1:-1].encode() not in data
            assert KNOWN not in repr(back)
            assert "*" * len(KNOWN) in repr(back) or MARK in repr(back)


@settings(max_examples=40)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
        max_leaves=12,
    )
)
def test_value_without_a_secret_is_restored_unchanged(value: Any) -> None:
    plain = serializer().loads_typed(serializer().dumps_typed(value))
    assert store_and_load(value)[1] == plain


# --- What a person typed

PARTS: list[str | dict[Any, Any]] = [{"type": "text", "text": f"My key is {SHAPED}."}, f"And {SHAPED}"]
REQUESTS: dict[str, Any] = {
    "a message": HumanMessage(f"My key is {SHAPED}."),
    "a message in parts": [HumanMessage(PARTS)],
    "a map in parts": [{"role": "user", "content": PARTS}],
    "a pair": [("user", f"My key is {SHAPED}.")],
    "a text": f"My key is {SHAPED}.",
}
"""Every spelling of a request that LangGraph takes."""


def test_request_is_stored_without_secrets(subtests: pytest.Subtests) -> None:
    for name, request in REQUESTS.items():
        for depth in (0, 1, 5):
            value = {"messages": request}
            for _ in range(depth):
                value = {"channel_values": value}
            with subtests.test(name=name, depth=depth):
                data, back = store_and_load(value)
                assert (SHAPED.encode() in data, SHAPED in repr(back), MARK in repr(back)) == (False, False, True)


# --- Types: it is as strict as LangGraph's serializer


def test_only_listed_types_are_built_from_a_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    kind, data = InMemorySaver().serde.dumps_typed({"a": Decimal(1), "b": Unlisted()})
    with caplog.at_level(logging.CRITICAL):
        assert SERDE.loads_typed((kind, data)) == {"a": Decimal(1), "b": {"x": 1}}


def test_value_that_cannot_be_serialized_is_refused() -> None:
    words = r"^A value cannot be stored with the run \(.+\): it may hold integers of 64 bits"
    for value in (10**30, object(), HumanMessage("x", additional_kwargs={"n": 10**30})):
        with pytest.raises(StoreError, match=words):
            SERDE.dumps_typed(value)


# --- What another version wrote

CALL = {"call_id": "c", "tool": "t", "arguments": {}, "raw_arguments": "{}", "line_number": 0, "implied": False}
ERROR = {"error_type": ExtractionErrorType.EMPTY_REPLY, "line_number": 0, "line_content": "", "details": ""}


def as_stored(code: int, name: str, value: Any, module: str = "mendgraph.nodes.records") -> bytes:
    """The bytes of a record as LangGraph writes them."""
    return ormsgpack.packb(ormsgpack.Ext(code, SERDE.dumps_typed((module, name, value, "x"))[1]))


FOREIGN: dict[str, tuple[bytes, str]] = {
    "an unknown field": (as_stored(EXT_PYDANTIC_V2, "ToolCall", CALL | {"new": 1}), "ToolCall"),
    "an unknown kind": (as_stored(EXT_PYDANTIC_V2, "NewCall", CALL), "NewCall"),
    "a missing field": (as_stored(EXT_PYDANTIC_V2, "ToolCall", {"call_id": "c"}), "ToolCall"),
    "a field of another type": (as_stored(EXT_PYDANTIC_V2, "ToolCall", CALL | {"arguments": 1}), "ToolCall"),
}
"""Records that this version does not know, and the name that the refusal has."""


def test_unknown_record_of_another_version_is_refused(subtests: pytest.Subtests) -> None:
    for what, (data, name) in FOREIGN.items():
        for wrap in (bytes, in_a_map, in_a_snapshot, in_an_overwrite):
            with subtests.test(what=what, wrap=wrap.__name__):
                with pytest.raises(StoreError) as caught:
                    SERDE.loads_typed(("msgpack", wrap(data)))
                words = str(caught.value)
                assert words.startswith(f"A stored {name} cannot be read (")
                version = "another version of mendgraph wrote it. Continue with that version, or start a new run."
                assert words.endswith(f"): {version}")
                assert "\n" not in words


def test_damaged_bytes_are_refused() -> None:
    for kind, data in (
        ("msgpack", b"\xc1"),
        ("msgpack", b""),
        ("msgpack+zlib", b"x"),
        ("new", b""),
        ("msgpack+new", b""),
    ):
        with pytest.raises(StoreError, match=r"^A stored value is damaged: .+\.$"):
            SERDE.loads_typed((kind, data))


# --- Compressed

PACKED = ScrubbingSerializer(Redactor((KNOWN,)), b"a dictionary of words")
LONG = {"messages": [HumanMessage("word " * 200, id="1")], "plan": Plan()}


def test_values_are_compressed_with_a_dictionary_and_restored() -> None:
    kind, data = PACKED.dumps_typed(LONG)
    assert (kind, PACKED.loads_typed((kind, data))) == ("msgpack+zlib", LONG)
    assert len(data) < len(SERDE.dumps_typed(LONG)[1]) / 3


def test_truncated_compressed_value_is_refused() -> None:
    kind, data = PACKED.dumps_typed(b"word " * 200)
    for cut in (1, 5, 20):
        with pytest.raises(StoreError, match="damaged: its end is missing"):
            PACKED.loads_typed((kind, data[:-cut]))


def test_value_that_is_too_large_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mendgraph.graph.machine.serializer.MOST_BYTES", 100)
    with pytest.raises(StoreError, match="it has 202 bytes, and may have 100"):
        SERDE.dumps_typed("x" * 200)
