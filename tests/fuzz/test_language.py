"""The readers of model output: none of them raises, adds or loses anything."""

import json
from typing import Any, Final

from hypothesis import strategies as st

from mendgraph.graph.machine.serializer import serializer
from mendgraph.nodes.language.formats.call_format import ToolSchemas
from mendgraph.nodes.language.text_protocol import (
    ArgumentProblem,
    decode_arguments,
    extract_in_order,
    format_extraction_errors,
    without_lines,
)
from mendgraph.nodes.parse.native_calls import read_native_calls
from mendgraph.nodes.parse.node import parse
from mendgraph.nodes.records import (
    CallError,
    ExtractionError,
    FinishReason,
    JsonMap,
    ModelReply,
    RawCall,
    Reading,
    ToolCall,
    ToolInvocation,
)
from mendgraph.nodes.small_model.blocks import read_blocks, render_file
from tests.extent import slow
from tests.fuzz.inputs import (
    CALL_WORDS,
    JSON_WORDS,
    TOOLS,
    argument_texts,
    as_bytes,
    byte_text,
    files,
    fuzz,
    mutated,
    reply_texts,
)
from tests.fuzz.recorded import READERS, reader_of, recorded_replies
from tests.rules.parse.readings import REGISTRY

LONGEST_DETAILS: Final = 3_000
"""The maximum length of an error message for the model, in characters."""

SERDE: Final = serializer()
KNOWN: Final = REGISTRY.names()


SHOWN: Final = st.sampled_from([[], ["calc.py"], ["src/calc.py", "tests/test_calc.py"]])


PATHS: Final = st.from_regex(r"[a-z_]{1,8}(/[a-z_]{1,8}){0,2}\.(py|txt|json|md)", fullmatch=True)


def is_stored(value: Any) -> None:
    """What was read can be stored, and is read back unchanged."""
    assert SERDE.loads_typed(SERDE.dumps_typed(value)) == value


# --- The text protocol


@fuzz(lambda: mutated(reply_texts(), CALL_WORDS + JSON_WORDS))
def test_text_calls_are_parsed_or_refused(text: str) -> None:
    calls = extract_in_order(text, KNOWN)
    last = 0
    for call in calls:
        assert last < call.line_number <= call.end_line
        last = call.end_line
        if isinstance(call.outcome, ToolInvocation):
            assert call.outcome.tool_name in KNOWN
            is_stored(call.outcome.args)
    assert last <= len(text.splitlines())
    assert sum(len(call.raw_arguments) for call in calls) <= len(text)
    assert without_lines(text, []) == text
    errors = [call.outcome for call in calls if isinstance(call.outcome, ExtractionError)]
    assert all(len(error.details) <= LONGEST_DETAILS for error in errors)
    format_extraction_errors(errors)


JSON_TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["calc.py", '")', "})", "tool: read_file({})", "```", "\\", "\n\n", "a\r\nb", "\u2028", "{"]
)
JSON_VALUES: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | JSON_TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(JSON_TEXTS, inner, max_size=3),
    max_leaves=6,
)
JSON_CALLS: Final = st.lists(
    st.tuples(st.sampled_from(TOOLS), st.dictionaries(JSON_TEXTS, JSON_VALUES, max_size=3)), max_size=4
)


@fuzz(lambda: JSON_CALLS)
def test_rendered_calls_round_trip(calls: list[tuple[str, JsonMap]]) -> None:
    """A well-formed call is read exactly, from text and from a native call."""
    meant = [(tool, arguments) for tool, arguments in calls]
    for ascii_only in (True, False):
        raw = [(tool, json.dumps(arguments, ensure_ascii=ascii_only)) for tool, arguments in calls]
        text = "".join(f"So:\ntool: {tool}({arguments})\n" for tool, arguments in raw)
        from_text = [call.outcome for call in extract_in_order(text, KNOWN)]
        native = [
            call.outcome
            for call in read_native_calls(
                [RawCall(call_id="", tool=t, arguments=a) for t, a in raw], ToolSchemas(KNOWN)
            )
        ]
        for outcomes in (from_text, native):
            assert [
                (outcome.tool_name, outcome.args) for outcome in outcomes if isinstance(outcome, ToolInvocation)
            ] == meant


@fuzz(lambda: mutated(argument_texts(), JSON_WORDS))
def test_arguments_are_decoded_or_refused(text: str) -> None:
    decoded = decode_arguments(text)
    if isinstance(decoded, ArgumentProblem):
        assert decoded.details
        assert len(decoded.details) <= LONGEST_DETAILS
        return
    assert decode_arguments(json.dumps(decoded)) == decoded
    is_stored(decoded)


# --- Blocks


@fuzz(lambda: st.tuples(mutated(reply_texts(), CALL_WORDS), SHOWN))
def test_blocks_are_parsed_or_refused(example: tuple[str, list[str]]) -> None:
    text, paths = example
    reading = read_blocks(text, paths)
    edits = [outcome.args for outcome in reading.outcomes if isinstance(outcome, ToolInvocation)]
    assert all(edit["path"] for edit in edits)
    assert sum(len(edit["content"]) for edit in edits) <= len(text) + len(edits)
    assert len(reading.prose) <= len(text)
    lines = [outcome.line_number for outcome in reading.outcomes]
    assert lines == sorted(set(lines))
    read_blocks(text, paths, "Repair calc.py.")


@fuzz(lambda: st.tuples(PATHS, mutated(files(), CALL_WORDS)))
def test_rendered_file_round_trips(example: tuple[str, str]) -> None:
    """A rendered file can be sent back unchanged."""
    path, content = example
    [outcome] = read_blocks(render_file(path, content), [path]).outcomes
    assert isinstance(outcome, ToolInvocation)
    assert outcome.args == {
        "path": path,
        "content": content if not content or content.endswith("\n") else f"{content}\n",
    }


# --- Replies


def _reply_inputs() -> st.SearchStrategy[Any]:
    texts = mutated(reply_texts(), CALL_WORDS + JSON_WORDS)
    arguments = mutated(argument_texts(), JSON_WORDS).map(_clean)
    call = st.tuples(
        st.sampled_from(["", "x", "call_3_0", "\n", "\u2028"]), st.sampled_from([*TOOLS, "", " nope", "f\n"]), arguments
    )
    finish = st.sampled_from(["stop", "tool_calls", *FinishReason]).map(str)
    return st.tuples(texts | st.just(""), st.lists(call, max_size=3), finish)


@fuzz(_reply_inputs)
def test_reply_is_parsed_or_refused(example: tuple[str, list[tuple[str, str, str]], str]) -> None:
    text, raw, finish = example
    calls = tuple(RawCall(call_id=call_id, tool=tool, arguments=arguments) for call_id, tool, arguments in raw)
    reply = ModelReply(text=_clean(text), calls=calls, finish_reason=FinishReason(finish))
    for reader in READERS.values():
        update = parse({"reply": reply, "step": 3}, reader)
        items, stored_reply = update["items"], update.get("reply", reply)
        ids = [item.call_id for item in items]
        assert len(set(ids)) == len(ids)
        assert all(call_id.isprintable() and call_id for call_id in ids)
        valid_calls = [item for item in items if isinstance(item, ToolCall)]
        assert not valid_calls or stored_reply.finish_reason in {FinishReason.STOP, FinishReason.TOOL_CALLS}
        assert (update["reading"] is Reading.ANSWER) is (update["answer"] is not None)
        assert (update["reading"] is Reading.MALFORMED) is bool(update["errors"])
        assert update["reading"] is not Reading.MALFORMED or all(isinstance(item, CallError) for item in items)
        is_stored(update)


def _clean(text: str) -> str:
    """As `ReplyAssembly` hands a text over."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _stream_inputs() -> st.SearchStrategy[Any]:
    bodies = [byte_text(body) for body in recorded_replies()]
    words = (
        *("data: ", "\n\n", "\r\n\r\n", "data: [DONE]\n\n", ": ping\n\n", '"finish_reason": "stop"', '"index": 1'),
        *("null", "{}", "[]"),
    )
    return st.tuples(mutated(bodies, (*words, *JSON_WORDS)), st.integers(0, 2_000))


@slow
@fuzz(_stream_inputs)
def test_stream_is_read_alike_however_it_is_split(example: tuple[str, int]) -> None:
    """Whatever an endpoint sends is a reply or a typed failure, however it is split."""
    body, at = as_bytes(example[0]), example[1]
    unsplit, why = reader_of([body])
    for parts in ([body[:at], body[at:]], [body[i : i + 1] for i in range(len(body))]):
        again, reason = reader_of(parts)
        assert (again, type(reason)) == (unsplit, type(why))
    reply = unsplit.reply(0.0)
    if reply is not None:
        is_stored(reply)
