import io
import json
import zipfile
from typing import Any

import pytest
from hypothesis import given, strategies as st

from graph.doctor.bundle import Cleaner, bundle, shape
from nodes.execute_tools.secrets.redact import Redactor

WORD = "hunter2-hunter2-hunter2"
CLEAN = Cleaner(Redactor((WORD,)), ("/home/alice", ""), "alice")


def files(packed: bytes) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_the_same_parts_give_the_same_bytes() -> None:
    one = {"doctor.json": {"b": 1, "a": 2}, "run/audit.jsonl": [{"x": 1}]}
    other = dict(reversed(one.items()))
    assert bundle(one, CLEAN, ["this"]) == bundle(other, CLEAN, ["this"])


def test_a_bundle_says_what_is_inside_and_how_to_reproduce_it() -> None:
    found = files(bundle({"run/audit.jsonl": [{"b": 1, "a": 2}, {}], "own.json": 3}, CLEAN, ["mendgraph resume 1"]))
    assert list(found) == ["README.txt", "own.json", "run/audit.jsonl"]
    assert found["run/audit.jsonl"] == '{"a": 2, "b": 1}\n{}\n'
    assert "own.json: more" in found["README.txt"]
    assert "mendgraph resume 1" in found["README.txt"]


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("/home/alice/code", "~/code"),
        ("/home/alice", "~"),
        ("/home/alice2/code", "/home/alice2/code"),
        ("by alice, for malice", "by ~, for malice"),
        (f"it is {WORD}", "it is [redacted secret]"),
    ],
)
def test_names_homes_and_secrets_are_taken_out(text: str, cleaned: str) -> None:
    assert CLEAN.text(text) == cleaned
    hidden = cleaned.replace("[redacted secret]", "***")
    assert CLEAN.value({"a": [text, 1, None], text: True}) == {"a": [hidden, 1, None], hidden: True}


def test_a_secret_that_holds_the_users_name_is_taken_out_whole() -> None:
    known = "corp-alice-9f8e7d6c5b4a"
    shown = Cleaner(Redactor((known,)), (), "alice").text(f"alice has {known}")
    assert shown == "~ has [redacted secret]"


@pytest.mark.parametrize("user", ["root", "al", ""])
def test_a_users_name_that_is_a_word_is_no_secret(user: str) -> None:
    assert Cleaner(Redactor(()), (), user).text(f"the {user} of it") == f"the {user} of it"


JSON: Any = st.recursive(
    st.none() | st.integers() | st.text() | st.just(WORD) | st.just(f"x{WORD}y") | st.just("/home/alice/x"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just(WORD), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_no_canary_is_in_any_bundle(value: object) -> None:
    packed = bundle({"a.json": value, "b.jsonl": [value]}, CLEAN, [])
    for text in files(packed).values():
        assert WORD not in text
        assert "/home/alice" not in text


def test_a_shape_says_nothing_of_what_it_is_of() -> None:
    shapes = [shape(each) for each in ([1, 2], "text", {"a": 1}, None, 3)]
    assert shapes == ["list[2]", "str[4]", "dict[1]", "NoneType", "int"]
    assert json.dumps(shapes)
