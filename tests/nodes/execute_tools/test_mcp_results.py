from typing import Any

import pytest
from hypothesis import given, strategies

from nodes.execute_tools.mcp_results import (
    LONGEST_DESCRIPTION,
    LONGEST_ERROR,
    LONGEST_SCHEMA,
    bounded_schema,
    call_result,
    plain_text,
)
from nodes.records import JsonMap, ToolError, ToolErrorCode, ToolResult


def text(said: str) -> JsonMap:
    return {"type": "text", "text": said}


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("plain", "plain"),
        ("  two\n\tlines ", "two lines"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\u202eb", "a\\u202eb"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
        ("é", "é"),
        ("0123456789", "0123456789"),
        ("01234567890", "0123456..."),
        ("\x00" * 9, "\\x00\\x0..."),
    ],
)
def test_a_text_becomes_one_plain_line(given_text: str, shown: str) -> None:
    assert plain_text(given_text, 10) == shown


@given(strategies.text(), strategies.integers(3, 40))
def test_a_plain_text_is_printable_and_bounded(said: str, most: int) -> None:
    shown = plain_text(said, most)
    assert shown.isprintable()
    assert len(shown) <= most


def test_a_megabyte_of_description_is_cut() -> None:
    schema = {"properties": {"a": {"type": "string", "description": "x" * 1_000_000}}, "description": "\u202e"}
    assert bounded_schema(schema) == {
        "properties": {"a": {"type": "string", "description": "x" * (LONGEST_DESCRIPTION - 3) + "..."}},
        "description": "\\u202e",
    }


def test_a_property_may_be_called_description() -> None:
    schema = {"properties": {"description": {"type": "string", "enum": ["a\n"]}}}
    assert bounded_schema(schema) == schema


def nested(levels: int) -> JsonMap:
    found: JsonMap = {}
    for _ in range(levels):
        found = {"items": found}
    return found


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"properties": {"a\nb": {}}}, "it has the unreadable name 'a b'"),
        ({"properties": {"\u202e": {}}}, "it has the unreadable name '\\\\u202e'"),
        ({"properties": {"a" * 101: {}}}, f"it has the unreadable name '{'a' * 97}...'"),
        ({"enum": ["x" * LONGEST_SCHEMA]}, f"it has {LONGEST_SCHEMA + 13} bytes, and {LONGEST_SCHEMA} are the most"),
        ({"enum": [2**64]}, "Integer exceeds 64-bit range"),
    ],
)
def test_a_schema_that_no_model_should_see_is_refused(schema: JsonMap, reason: str) -> None:
    assert bounded_schema(schema) == reason


def test_a_schema_without_a_bottom_is_refused() -> None:
    assert isinstance(bounded_schema(nested(100_000)), str)


@pytest.mark.parametrize(
    ("answer", "data"),
    [
        ({"content": [text("a"), text("b\u202e")]}, {"text": "a\nb\u202e"}),
        ({"content": []}, {"text": ""}),
        ({}, {"text": ""}),
        ({"content": [text("5")], "structuredContent": {"result": 5}}, {"structured": {"result": 5}}),
        ({"content": [text("five")], "structuredContent": {"result": "five"}}, {"structured": {"result": "five"}}),
        ({"content": [text('{"a": 1}')], "structuredContent": {"a": 1}}, {"structured": {"a": 1}}),
        (
            {"content": [text("a"), text("b")], "structuredContent": {"result": ["a", "b"]}},
            {"structured": {"result": ["a", "b"]}},
        ),
        ({"content": [text("See b.")], "structuredContent": {"a": 1}}, {"text": "See b.", "structured": {"a": 1}}),
        ({"content": [text("x")], "structuredContent": {}}, {"text": "x", "structured": {}}),
        (
            {"content": [{"type": "image", "mimeType": "image/png", "data": "MTIzNDU="}]},
            {"attachments": [{"type": "image", "mime_type": "image/png", "bytes": 5}]},
        ),
        (
            {"content": [{"type": "audio", "mimeType": "audio/wav", "data": "MTIz"}, text("a")]},
            {"text": "a", "attachments": [{"type": "audio", "mime_type": "audio/wav", "bytes": 3}]},
        ),
        (
            {"content": [{"type": "resource_link", "uri": "file:///a\n", "name": "a", "size": 7, "mimeType": None}]},
            {"attachments": [{"type": "resource_link", "uri": "file:///a", "bytes": 7}]},
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "a:b", "mimeType": "text/plain", "text": "é"}}]},
            {"attachments": [{"type": "resource", "mime_type": "text/plain", "uri": "a:b", "bytes": 2, "text": "é"}]},
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "a:b", "blob": "MTI="}}]},
            {"attachments": [{"type": "resource", "uri": "a:b", "bytes": 2}]},
        ),
        ({"content": [{"type": "odd", "resource": 1}, {}]}, {"attachments": [{"type": "odd"}, {"type": ""}]}),
    ],
)  # fmt: skip
def test_an_answer_becomes_data(answer: JsonMap, data: JsonMap) -> None:
    assert call_result("s__t", answer) == ToolResult(ok=True, data=data)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([text("no such\nfile \x1b")], "s__t failed: no such file \\x1b"),
        ([text("a"), text("b")], "s__t failed: a b"),
        ([{"type": "image"}], "s__t failed: it gave no reason"),
        ([text("x" * 1_000_000)], f"s__t failed: {'x' * (LONGEST_ERROR - 3)}..."),
    ],
)
def test_an_error_is_bounded_and_plain(content: list[Any], message: str) -> None:
    error = ToolError(code=ToolErrorCode.IO_ERROR, message=message)
    assert call_result("s__t", {"content": content, "isError": True}) == ToolResult(ok=False, error=error)
