from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.message import Message
from http import HTTPStatus
from typing import Any
from urllib.error import HTTPError, URLError

import httpx2
import orjson
import pytest
from pydantic import BaseModel, SecretStr

from mendgraph.nodes.execute_tools.registry import ToolOutput
from mendgraph.nodes.execute_tools.tool_outcome import (
    LARGEST_RESULT,
    LONGEST_MESSAGE,
    LONGEST_REASON,
    RetryableToolError,
    ToolOutcome,
    bad_arguments,
    clip,
    is_usable,
    plain_output,
    raised,
    reason_of,
    unknown_tool,
)
from mendgraph.nodes.records import ToolError, ToolErrorCode, ToolResult
from tests.row_tables import rows

ERROR = ToolError(code=ToolErrorCode.NOT_FOUND, message="m")


class Found(BaseModel):
    at: datetime = datetime(2026, 1, 2, tzinfo=UTC)
    key: SecretStr = SecretStr("s3cret")


@dataclass
class Counted:
    lines: int
    entries: tuple[Found, ...] = ()


PLAIN_FOUND = {"at": "2026-01-02T00:00:00Z", "key": "**********"}


CODED = ToolOutput(ToolResult.success(code=ToolErrorCode.TIMEOUT), files_read={"a": "b"})
SHAPES = [
    (ToolOutput.ok(a=(1, 2)), ToolOutput.ok(a=[1, 2])),
    (CODED, ToolOutput(ToolResult.success(code="timeout"), files_read={"a": "b"})),
    (ToolOutput.failed(ERROR), ToolOutput.failed(ERROR)),
    (ToolResult.success(a=1), ToolOutput.ok(a=1)),
    (ERROR, ToolOutput.failed(ERROR)),
    (None, ToolOutput.ok(value="null")),
    (b"abc", ToolOutput.ok(value={"type": "bytes", "len": 3})),
    (float("nan"), ToolOutput.ok(value=None)),
    (Found(), ToolOutput.ok(**PLAIN_FOUND)),
    ([Found()], ToolOutput.ok(value=[PLAIN_FOUND])),
    (Counted(3, (Found(),)), ToolOutput.ok(lines=3, entries=[PLAIN_FOUND])),
    ({"a": Counted(3)}, ToolOutput.ok(a={"lines": 3, "entries": []})),
]


def test_result_of_any_shape_becomes_an_output() -> None:
    assert [plain_output(value) for value, _ in SHAPES] == [output for _, output in SHAPES]


@rows(object(), {"a": {1: 2}}, "\ud800", 2**64, {"a": object()}, Counted)
def test_result_that_is_not_json_is_an_error(value: Any) -> None:
    with pytest.raises(TypeError):
        plain_output(value)


@rows(("result", None), ("changes", None), ("changes", ("a.py",)), ("files_read", None), ("plan", "x"))
def test_output_with_a_wrong_field_type_is_refused(name: str, value: Any) -> None:
    odd = replace(ToolOutput.ok(), **{name: value})
    assert not is_usable(odd)
    with pytest.raises(TypeError, match="a field of its ToolOutput is of the wrong type"):
        plain_output(odd)


def size(result: ToolResult) -> int:
    return len(orjson.dumps(result.data))


def clipped_and_stored(result: ToolResult) -> tuple[list[str], list[str]]:
    """The value of `clipped`, and the stored texts."""
    texts: list[str] = []

    def keep(text: str) -> str:
        texts.append(text)
        return f"@result/{len(texts)}"

    return clip(result, keep).data.get("clipped", []), texts


def test_long_string_shows_head_and_tail_and_is_stored_in_full() -> None:
    text = f"{'a' * 100_000}{'z' * 100_000}"
    result = ToolResult(ok=True, data={"text": text, "n": 1})
    assert clip(result).data == {
        "text": f"{'a' * 8_192}\n[... 183616 characters left out ...]\n{'z' * 8_192}",
        "n": 1,
        "clipped": ["text: 183616 of 200000 characters left out"],
    }
    notes, texts = clipped_and_stored(result)
    assert notes == ["text: 183616 of 200000 characters left out", 'all of it: read_file path="@result/1"']
    assert texts == [text]


def test_long_list_shows_head_and_tail_and_is_stored_in_full() -> None:
    result = ToolResult(ok=True, data={"deep": {"hits": [f"{number:0100}" for number in range(5_000)]}})
    hits = clip(result).data["deep"]["hits"]
    assert (len(hits), int(hits[0]), int(hits[99]), int(hits[100]), int(hits[-1])) == (200, 0, 99, 4_900, 4_999)
    notes, texts = clipped_and_stored(result)
    assert notes[0] == "deep.hits: 4800 of 5000 items left out after item 100"
    assert orjson.loads(texts[0]) == result.data


def test_result_with_very_many_fields_is_left_out_with_a_note() -> None:
    clipped = clip(ToolResult(ok=True, data={f"key{number}": "x" * 100 for number in range(10_000)}))
    note = "the whole result (1128891 bytes of JSON) was left out; ask for less at a time"
    assert clipped.data == {"clipped": [note]}


def test_result_that_cannot_be_stored_is_clipped_with_a_note() -> None:
    clipped = clip(ToolResult(ok=True, data={"a": "a\n" * 40_000}), keep=lambda _: None)
    assert clipped.data["clipped"] == ["a: 63616 of 80000 characters left out", "it could not be kept"]


def test_errors_are_bounded_too() -> None:
    error = clip(ToolResult.failure(ToolErrorCode.IO_ERROR, "m" * 100_000, ("s",) * 100)).error
    assert error is not None
    assert (len(error.message) < LONGEST_MESSAGE + 100, len(error.suggestions)) == (True, 20)


@rows(
    {"a": "é\n" * 100_000, "b": {"c": ["x" * 20_000] * 20}},
    {"rows": [[1.5] * 200 for _ in range(200)]},
    {str(number): "x" * 700 for number in range(100)},
    {"nested": [[[["x" * 99] * 20] * 20] * 20]},
)
def test_clipped_result_always_fits(data: dict[str, Any]) -> None:
    notes, texts = clipped_and_stored(ToolResult(ok=True, data=data))
    assert len(texts) == 1
    assert notes[-1] == 'all of it: read_file path="@result/1"'
    assert size(clip(ToolResult(ok=True, data=data))) <= LARGEST_RESULT


def test_result_of_exactly_the_limit_is_shown_in_full() -> None:
    room = LARGEST_RESULT - len(orjson.dumps({"text": ""}))
    largest = ToolResult(ok=True, data={"text": "x" * room})
    assert size(largest) == 65_536
    assert clip(largest) is largest
    assert "clipped" in clip(ToolResult(ok=True, data={"text": "x" * (room + 1)})).data


def test_size_limit_includes_the_note_of_where_a_result_is_stored() -> None:
    sizes = []
    for length in range(0, 1_500, 40):
        data = {"text": "y" * 20_000, "a": "x" * 16_000, "b": "x" * 16_000, "c": "x" * 16_000, "d": "x" * length}
        clipped = clip(ToolResult(ok=True, data=data), keep=lambda _: "@result/" + "9" * 6)
        sizes.append(size(clipped))
    assert LARGEST_RESULT - 250 < max(sizes) <= LARGEST_RESULT


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


Code = ToolErrorCode
UNKNOWN = "There is no tool 'raed'. Did you mean read?", "There is no tool 'zzz'. There are: list, read."
UNFIT = "The arguments of t do not fit: a: b; x: wrong."
LATE = "t took too long and was given up: ask for less at a time."
REFUSED = "t failed: ConnectionRefusedError: [Errno 111] x"


@rows(
    (unknown_tool("raed", ("list", "read")), "unknown_tool", Code.UNKNOWN_TOOL, UNKNOWN[0]),
    (unknown_tool("zzz", ("list", "read")), "unknown_tool", Code.UNKNOWN_TOOL, UNKNOWN[1]),
    (bad_arguments("t", ["a: b", "x: wrong"]), "bad_args:a: b; x: wrong", Code.INVALID_ARGUMENT, UNFIT),
    (raised("t", ValueError("bad"), 1), "user_error:bad", Code.INVALID_ARGUMENT, "bad"),
    (raised("t", RetryableToolError("x"), 2), "tool_error:x", Code.IO_ERROR, "t failed: RetryableToolError: x"),
    (raised("t", TimeoutError(), 1), "tool_error:timeout", Code.TIMEOUT, LATE),
    (raised("t", KeyError(), 1), "tool_error:KeyError", Code.IO_ERROR, "t failed: KeyError: KeyError"),
    (raised("t", SystemExit(3), 1), "tool_error:3", Code.IO_ERROR, "t failed: SystemExit: 3"),
    (raised("t", ConnectionRefusedError(111, "x"), 1), "tool_error:[Errno 111] x", Code.UNAVAILABLE, REFUSED),
)
def test_failure_has_error_string_code_and_message(
    failure: ToolOutcome, error: str, code: ToolErrorCode, message: str
) -> None:
    tool_error = failure.result.error
    assert tool_error is not None
    assert (failure.error, tool_error.code, tool_error.message) == (error, code, message)


def with_code(code: int) -> Exception:
    """An exception with its own codes, such as that of a database client."""
    error = RuntimeError("it failed")
    vars(error)["code"] = code
    return error


def named_error(name: str) -> Exception:
    """An exception of a client that is not installed here, such as requests or aiohttp."""
    kind: type[Exception] = type(name, (Exception,), {})
    return kind("it failed")


def code_of(run: ToolOutcome) -> ToolErrorCode | None:
    return None if run.result.error is None else run.result.error.code


REQUEST = httpx2.Request("GET", "http://a.example")
OUTAGES = [
    *(httpx2.ConnectError("refused"), httpx2.ConnectTimeout("late"), httpx2.ReadTimeout("late"), httpx2.ReadError("x")),
    httpx2.HTTPStatusError("down", request=REQUEST, response=httpx2.Response(503)),
    *(URLError(ConnectionResetError("reset")), URLError(TimeoutError("late"))),
    HTTPError("http://a.example", 502, "bad gateway", Message(), None),
    *(with_code(HTTPStatus.BAD_GATEWAY), with_code(500)),
    *map(named_error, ("Timeout", "ClientConnectionError", "ConnectionError", "gaierror")),
]
MISTAKES = [
    httpx2.HTTPStatusError("gone", request=REQUEST, response=httpx2.Response(404)),
    *(httpx2.UnsupportedProtocol("no such protocol"), FileNotFoundError(2, "no such file"), named_error("NameError")),
    *(with_code(499), with_code(1062)),
]


def test_outage_of_an_endpoint_has_code_unavailable() -> None:
    codes = [(error, code_of(raised("t", error, 1))) for error in (*OUTAGES, *MISTAKES)]
    assert [error for error, code in codes if code is ToolErrorCode.UNAVAILABLE] == OUTAGES


@rows(
    (RuntimeError("x"), "x"),
    (RuntimeError(), "RuntimeError"),
    (UnspeakableError(), "UnspeakableError"),
    (RuntimeError("key sk-abcdefghijkl1234mnop"), "key ***"),
    (RuntimeError("xyz " * 10_000), "xyz " * (LONGEST_REASON // 4)),
    (OSError("x" * 9_999), "OSError (its text is one word of 9999 characters, too long to be shown)"),
    (RuntimeError("a " * 995 + "key sk-abcdefghijkl1234mnop " + "b " * 9), "a " * 995 + "key ***"),
    (RuntimeError("a " * 995 + "quokka-4471-lantern-88"), "a " * 995),
)
def test_reason_of_an_exception_is_short_redacted_and_never_empty(error: BaseException, reason: str) -> None:
    assert reason_of(error) == reason


def test_interrupt_while_reading_a_reason_propagates() -> None:
    class Interrupted(Exception):  # noqa: N818 - it is none
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reason_of(Interrupted())
