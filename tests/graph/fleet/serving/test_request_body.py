"""What stands in a body, once every engine and database can take it."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.graph.fleet.serving.request_body import Refused, read_json
from mendgraph.nodes.execute_tools.secrets.redact import MARK, Redactor

NO_JSON = Refused(400, "The request's body is no JSON.")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec=None)), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", {}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b"{", NO_JSON),
        (b"[" * 100_000, NO_JSON),
        (b"\xff", NO_JSON),
        (b'{"a": NaN}', NO_JSON),
        (b'{"a": -Infinity}', NO_JSON),
        (b'{"a": 1e999}', NO_JSON),
        (b"[]", Refused(422, "The request's body should be a JSON object.")),
        (b'{"a\\u0000": "b\\u0000c"}', {"a\ufffd": "b\ufffdc"}),
        (b'{"a": "\\ud800 \\ud83d\\ude00"}', {"a": "\ufffd \N{GRINNING FACE}"}),
    ],
)
def test_what_cannot_be_stored_is_refused_or_replaced(data: bytes, found: Any) -> None:
    assert read_json(data) == found


@given(value=JSON)
def test_what_is_read_can_be_stored(value: Any) -> None:
    """As PostgreSQL's jsonb does: no NaN, no NUL, UTF-8."""
    found = read_json(json.dumps({"a": value}).encode())
    if found != NO_JSON:
        written = json.dumps(found, allow_nan=False, ensure_ascii=False)
        assert "\\u0000" not in written
        assert json.loads(written.encode("utf-8")) == found


def test_secrets_are_not_handed_on() -> None:
    body = {"input": {"messages": [{"role": "user", "content": "It is hunter2."}]}, "hunter2": ["hunter2", 1]}
    found = read_json(json.dumps(body).encode(), Redactor(["hunter2"]).content)
    assert found == {"input": {"messages": [{"role": "user", "content": f"It is {MARK}."}]}, MARK: [MARK, 1]}


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ({"password": {"value": 12345678}}, {"password": {"value": MARK}}),
        ({"api_keys": ["x8KqqP2zz1", {"id": "x8KqqP2zz1"}]}, {"api_keys": [MARK, {"id": "x8KqqP2zz1"}]}),
        ({"env": [{"name": "DB_PASS", "value": "x8KqqP2zz1"}]}, {"env": [{"name": "DB_PASS", "value": MARK}]}),
        ({"argv": ["mysql", "-px8KqqP2zz1"]}, {"argv": ["mysql", f"-p{MARK}"]}),
        ({"max_tokens": 123456789, "secretary": "x8KqqP2zz1"}, {"max_tokens": 123456789, "secretary": "x8KqqP2zz1"}),
    ],
)
def test_nor_objects_lists_and_numbers_under_their_names(body: Any, kept: Any) -> None:
    assert read_json(json.dumps({"input": body}).encode(), Redactor().content) == {"input": kept}


def test_what_cannot_be_looked_through_is_refused() -> None:
    assert isinstance(read_json(b'{"a": 1}', lambda _: MARK), Refused)


def test_a_body_is_not_nested_for_ever() -> None:
    deep = "[" * 80 + "]" * 80
    assert read_json(f'{{"a": {deep}}}'.encode()) == Refused(422, "The request's body is nested deeper than 64.")
