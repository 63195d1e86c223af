"""What is stored holds no secret that is known, and none that a person typed; everything else comes back as it was."""

import base64
import json
import logging
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import ormsgpack
import pytest
from hypothesis import given, strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_DELTA_SNAPSHOT,
    EXT_PYDANTIC_V2,
)
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Overwrite
from pydantic import BaseModel

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.redaction import ScrubbingSerializer
from mendgraph.graph.machine.state import CHECKPOINT_TYPES, serializer
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.records import Answer, ExtractionErrorType, Plan, PlanStep, ToolCall
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.nodes.execute_tools.secrets.samples import KEYS

KNOWN = "-".join(("plum", "51", 'orch"ard', "ü42"))
SHAPED = KEYS[0]
SERDE = ScrubbingSerializer(Redactor((KNOWN,)), CHECKPOINT_TYPES)
MARK = "[redacted secret]"


class Unlisted(BaseModel):
    """A type of somebody else, which no checkpoint may bring to life."""

    x: int = 1


def in_a_map(data: bytes) -> bytes:
    return b"\x81\xa1a\x91" + data  # {"a": [...]}


def in_a_snapshot(data: bytes) -> bytes:
    return ormsgpack.packb(ormsgpack.Ext(EXT_DELTA_SNAPSHOT, b"\x91" + data))


def in_an_overwrite(data: bytes) -> bytes:
    inner = b"\x93\xaflanggraph.types\xa9Overwrite\x81\xa5value\x91" + data
    return ormsgpack.packb(ormsgpack.Ext(EXT_CONSTRUCTOR_KW_ARGS, inner))


def stored(value: Any, serde: SerializerProtocol = SERDE) -> tuple[bytes, Any]:
    """The bytes of a value, and what comes back from them."""
    kind, data = serde.dumps_typed(value)
    return data, serde.loads_typed((kind, data))


# --- Known values


@pytest.mark.parametrize(
    "form",
    [
        KNOWN,
        json.dumps(KNOWN)[1:-1],
        quote(KNOWN, safe=""),
        base64.b64encode(KNOWN.encode()).decode(),
        KNOWN.encode().hex(),
    ],
)
def test_a_known_value_is_blotted_out_in_each_of_its_forms(form: str) -> None:
    data, back = stored({"a": [AIMessage(f"x {form} y")], "b": [1, form], form: None})
    assert form.encode() not in data
    assert (back["a"][0].content, back["b"][0], list(back.values())[2]) == (f"x {'*' * len(form.encode())} y", 1, None)


@pytest.mark.parametrize(
    "value",
    [
        [AIMessage(f"It is {KNOWN}.")],
        [ToolMessage(f"It is {KNOWN}.", tool_call_id="c")],
        ToolCall(call_id="c", tool="t", arguments={"deep": [{"er": KNOWN}]}, raw_arguments=json.dumps(KNOWN)),
        Plan(steps=(PlanStep(title=KNOWN),)),
        AgentContext(workspace=f"/{KNOWN}"),
        {KNOWN: 1},
        RuntimeError(KNOWN),
        KNOWN.encode(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_known_value_is_in_no_kind_of_value(value: Any) -> None:
    data, back = stored(value)
    assert KNOWN.encode() not in data
    assert json.dumps(KNOWN)[1:-1].encode() not in data
    assert KNOWN not in repr(back)
    assert "*" * len(KNOWN) in repr(back) or MARK in repr(back)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
        max_leaves=12,
    )
)
def test_what_holds_no_secret_comes_back_as_it_was(value: Any) -> None:
    plain = serializer().loads_typed(serializer().dumps_typed(value))
    assert stored(value)[1] == plain


def test_bytes_that_are_no_text_are_looked_through_as_well() -> None:
    assert stored(b"\xff\x00" + KNOWN.encode() + b"\xff")[1] == b"\xff\x00" + b"*" * len(KNOWN.encode()) + b"\xff"


@pytest.mark.parametrize("value", ["caf\udce9-42-orchard", "\ud83d-plum-42-orchard"])
def test_an_environment_that_is_no_text_stops_nobody(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of a variable that are no UTF-8 come as lone surrogates."""
    serde = ScrubbingSerializer(Redactor((value,)), CHECKPOINT_TYPES)
    assert stored({"a": 1}, serde)[1] == {"a": 1}
    monkeypatch.setenv("FOO_TOKEN", "caf\udce9-42-orchard")
    assert stored({"a": 1}, serializer())[1] == {"a": 1}


# --- What a person typed

PARTS: list[str | dict[Any, Any]] = [{"type": "text", "text": f"My key is {SHAPED}."}, f"And {SHAPED}"]
REQUESTS: dict[str, Any] = {
    "a message": HumanMessage(f"My key is {SHAPED}."),
    "a list of messages": [HumanMessage("Hi."), HumanMessage(f"My key is {SHAPED}.")],
    "a message in parts": [HumanMessage(PARTS)],
    "a map": [{"role": "user", "content": f"My key is {SHAPED}."}],
    "a map in parts": [{"role": "user", "content": PARTS}],
    "a pair": [("user", f"My key is {SHAPED}.")],
    "a text": f"My key is {SHAPED}.",
}
"""Every spelling of a request that LangGraph takes."""


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_what_a_person_typed_is_stored_without_secrets(request_: Any, depth: int) -> None:
    value = {"messages": request_}
    for _ in range(depth):
        value = {"channel_values": value}
    data, back = stored(value)
    assert (SHAPED.encode() in data, SHAPED in repr(back), MARK in repr(back)) == (False, False, True)


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_nothing_that_was_typed_is_in_any_checkpoint_of_a_run(request_: Any, tmp_path: Any) -> None:
    seen: list[bytes] = []

    class Watched(ScrubbingSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            kind, data = super().dumps_typed(obj)
            seen.append(data)
            return kind, data

    saver = InMemorySaver(serde=Watched(Redactor(), CHECKPOINT_TYPES))
    model = ScriptedModel([Say("Done.")])
    config: Any = {"configurable": {"thread_id": "t"}}
    context = AgentContext(workspace=str(tmp_path), audit=False)
    build_graph(saver, model=model).invoke({"messages": request_}, config, context=context)
    assert len(seen) > 10
    assert [data for data in seen if SHAPED.encode() in data] == []
    assert SHAPED not in repr(model.calls)


@pytest.mark.parametrize("wrap", [Overwrite, _DeltaSnapshot])
def test_a_history_that_is_replaced_or_kept_whole_is_stored_without_secrets(wrap: Any) -> None:
    value = wrap([HumanMessage(f"My key is {SHAPED}.", id="m1"), AIMessage("Hello.", id="m2")])
    data, back = stored({"messages": value})
    assert (SHAPED.encode() in data, type(back["messages"])) == (False, wrap)
    assert back["messages"].value == [HumanMessage(f"My key is {MARK}.", id="m1"), AIMessage("Hello.", id="m2")]


def test_of_a_checkpoint_only_the_values_are_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its versions, ids and times are LangGraph's own: hundreds of texts in each step."""
    seen: list[str] = []
    text = Redactor.text

    def watched(self: Redactor, said: str) -> str:
        seen.append(said)
        return text(self, said)

    monkeypatch.setattr(Redactor, "text", watched)
    serde = ScrubbingSerializer(Redactor((KNOWN,)), CHECKPOINT_TYPES)
    values = {"messages": [HumanMessage(f"My key is {SHAPED}.")], "run_id": "r1", "known": [KNOWN]}
    checkpoint = {**empty_checkpoint(), "channel_values": values, "channel_versions": {"messages": "00000001"}}
    data, back = stored(checkpoint, serde)
    assert seen == [f"My key is {SHAPED}.", "r1", KNOWN]
    assert [each.encode() in data for each in (SHAPED, KNOWN)] == [False, False]
    assert {**back, "channel_values": {}} == {**checkpoint, "channel_values": {}}
    assert back["channel_values"]["run_id"] == "r1"
    assert stored(checkpoint, serde) == (data, back)
    assert seen == [f"My key is {SHAPED}.", "r1", KNOWN, f"My key is {SHAPED}."]  # short ones are remembered


def test_what_only_resembles_a_checkpoint_is_looked_through_whole() -> None:
    checkpoint: dict[str, Any] = {**empty_checkpoint(), "ts": f"My key is {SHAPED}."}
    without = {key: value for key, value in checkpoint.items() if key != "id"}
    for value in ({**checkpoint, "extra": 1}, without, [checkpoint]):
        assert SHAPED.encode() not in stored(value)[0]


# --- It is still the strict serializer


def test_no_other_type_is_ever_built(caplog: pytest.LogCaptureFixture) -> None:
    kind, data = InMemorySaver().serde.dumps_typed({"a": Decimal(1), "b": Unlisted()})
    with caplog.at_level(logging.CRITICAL):
        assert SERDE.loads_typed((kind, data)) == {"a": Decimal(1), "b": {"x": 1}}


@pytest.mark.parametrize(
    "value",
    [
        10**30,
        {"a": [-(2**70)]},
        {"\ud800": 1},
        object(),
        AgentContext(tool_quotas={"a": 10**30}),
        HumanMessage("x", additional_kwargs={"n": 10**30}),
    ],
    ids=["integer", "deep integer", "half a key", "object", "context", "message"],
)
def test_what_has_no_stored_form_is_refused_in_one_sentence(value: Any) -> None:
    with pytest.raises(
        StoreError, match=r"^A value cannot be stored with the run \(.+\): it may hold integers of 64 bits"
    ):
        SERDE.dumps_typed(value)


# --- What another version wrote

CALL = {"call_id": "c", "tool": "t", "arguments": {}, "raw_arguments": "{}", "line_number": 0, "implied": False}
ERROR = {"error_type": ExtractionErrorType.EMPTY_REPLY, "line_number": 0, "line_content": "", "details": ""}


def as_stored(code: int, name: str, value: Any, module: str = "mendgraph.nodes.records") -> bytes:
    """The bytes of a record as LangGraph writes them."""
    return ormsgpack.packb(ormsgpack.Ext(code, SERDE.dumps_typed((module, name, value, "x"))[1]))


FOREIGN: dict[str, tuple[bytes, str]] = {
    "an unknown field": (as_stored(EXT_PYDANTIC_V2, "ToolCall", CALL | {"new": 1}), "ToolCall"),
    "a missing field": (as_stored(EXT_PYDANTIC_V2, "ToolCall", {"call_id": "c"}), "ToolCall"),
    "a field of another type": (as_stored(EXT_PYDANTIC_V2, "ToolCall", CALL | {"arguments": 1}), "ToolCall"),
    "a value out of bounds": (
        as_stored(EXT_PYDANTIC_V2, "AgentContext", {"seed": -1}, "mendgraph.graph.configuration.context"),
        "AgentContext",
    ),
    "an unknown word": (as_stored(EXT_CONSTRUCTOR_SINGLE_ARG, "Reading", "new"), "Reading"),
    "an unknown field of a tuple": (
        as_stored(EXT_CONSTRUCTOR_KW_ARGS, "ExtractionError", ERROR | {"new": 1}),
        "ExtractionError",
    ),
    "a missing field of a tuple": (
        as_stored(EXT_CONSTRUCTOR_KW_ARGS, "ExtractionError", {"details": ""}),
        "ExtractionError",
    ),
    "a type that is gone": (as_stored(EXT_PYDANTIC_V2, "Gone", {}), "Gone"),
    "a type that is not listed": (as_stored(EXT_PYDANTIC_V2, "Record", {}), "Record"),
    "a type of a room that is gone": (as_stored(EXT_PYDANTIC_V2, "Gone", {}, "mendgraph.nodes.gone"), "Gone"),
}
"""Records that this version does not know, and the name that the refusal has."""


@pytest.mark.parametrize(("data", "name"), FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("wrap", [bytes, in_a_map, in_a_snapshot, in_an_overwrite])
def test_a_record_that_this_version_does_not_know_is_refused(
    data: bytes, name: str, wrap: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(StoreError) as caught:
        SERDE.loads_typed(("msgpack", wrap(data)))
    said = str(caught.value)
    assert said.startswith(f"A stored {name} cannot be read (")
    assert said.endswith("): another version of mendgraph wrote it. Go on with that version, or begin a new run.")
    assert "\n" not in said


def test_a_field_that_has_a_default_may_be_missing() -> None:
    """Whoever adds one decides that: the fingerprint in tests/graph/machine/test_state.py asks."""
    data = as_stored(EXT_PYDANTIC_V2, "Answer", {"text": "x"})
    assert SERDE.loads_typed(("msgpack", data)) == Answer(text="x")


@pytest.mark.parametrize(
    ("kind", "data"),
    [("msgpack", b"\xc1"), ("msgpack", b""), ("msgpack+zlib", b"x"), ("new", b""), ("msgpack+new", b"")],
)
def test_damaged_bytes_are_refused(kind: str, data: bytes) -> None:
    with pytest.raises(StoreError, match=r"^A stored value is damaged: .+\.$"):
        SERDE.loads_typed((kind, data))


def test_what_fits_is_read_under_the_list_that_langgraph_adds_as_well() -> None:
    clone = SERDE.with_msgpack_allowlist([("tests.somewhere", "Other")])
    assert clone.loads_typed(SERDE.dumps_typed([Plan()])) == [Plan()]
    with pytest.raises(StoreError):
        clone.loads_typed(("msgpack", FOREIGN["a missing field"][0]))


# --- Compressed

PACKED = ScrubbingSerializer(Redactor((KNOWN,)), CHECKPOINT_TYPES, b"a dictionary of words")
LONG = {"messages": [HumanMessage("word " * 200, id="1")], "plan": Plan()}


def test_with_a_dictionary_values_are_compressed_and_come_back() -> None:
    kind, data = PACKED.dumps_typed(LONG)
    assert (kind, PACKED.loads_typed((kind, data))) == ("msgpack+zlib", LONG)
    assert len(data) < len(SERDE.dumps_typed(LONG)[1]) / 3


def test_secrets_go_before_values_are_compressed() -> None:
    kind, data = PACKED.dumps_typed([AIMessage(f"It is {KNOWN}. " * 50)])
    assert KNOWN not in repr(PACKED.loads_typed((kind, data)))


def test_another_dictionary_reads_nothing() -> None:
    other = ScrubbingSerializer(Redactor(), CHECKPOINT_TYPES, b"another dictionary")
    for serde in (other, SERDE):
        with pytest.raises(StoreError, match="damaged"):
            serde.loads_typed(PACKED.dumps_typed(LONG))


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_compressed_bytes_that_are_cut_off_are_refused(cut: int) -> None:
    kind, data = PACKED.dumps_typed(b"word " * 200)
    with pytest.raises(StoreError, match="damaged: its end is missing"):
        PACKED.loads_typed((kind, data[:-cut]))
