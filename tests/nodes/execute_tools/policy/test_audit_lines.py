import json
import unicodedata
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.policy import audit_lines
from nodes.execute_tools.policy.audit_lines import LONGEST_LINE, audit_line
from nodes.records import Effect

RANGES = ((0x00, 0x1F), (0x7F, 0x9F), (0x200E, 0x200F), (0x2028, 0x202E), (0x2066, 0x2069), (0xFEFF, 0xFEFF))
HOSTILE = [chr(point) for first, last in RANGES for point in range(first, last + 1)]
SURROGATES = ["\ud800", "\udbff", "\udc00", "\udfff"]

odd_values = st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.just(object())
texts = st.text(st.characters() | st.sampled_from([*HOSTILE, *SURROGATES]))
anything = st.recursive(
    odd_values | texts,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(texts | st.integers(), inner),
    max_leaves=30,
)


def parsed(record: Any) -> Any:
    return json.loads(audit_line(record))


def cyclic() -> dict[str, Any]:
    record: dict[str, Any] = {"name": "cycle"}
    record["again"] = [record] * 10
    return record


class Numbered(Enum):
    ONE = 1


class Fighting(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no")


def test_a_record_is_one_compact_line_and_reads_as_it_is_written() -> None:
    record = {"event": "tool", "path": "größe/計算.py", "ok": True, "ms": 12, "ratio": 0.5, "error": None, "n": [1, {}]}
    assert audit_line(record) == (
        '{"event":"tool","path":"größe/計算.py","ok":true,"ms":12,"ratio":0.5,"error":null,"n":[1,{}]}\n'.encode()
    )


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ('a\n{"event":"forged"}', b'a\\n{\\"event\\":\\"forged\\"}'),
        ("a\r\x1b[2Jb", b"a\\r\\u001b[2Jb"),
        ("a\x7f\x9bb", b"a\\u007f\\u009bb"),
        ("gpj.\u202efdp", b"gpj.\\u202efdp"),
        ("a\u2028b\u2029", b"a\\u2028b\\u2029"),
        ("\ufeffa\u200b", b"\\ufeffa\\u200b"),
        ("a\ud83d", b"a\\ud83d"),
        ("tag\U000e0041", b"tag\\udb40\\udc41"),
        ("smile \U0001f600", "smile \U0001f600".encode()),
    ],
)
def test_no_name_forges_a_line_or_steers_a_terminal(name: str, written: bytes) -> None:
    assert audit_line({"path": name}) == b'{"path":"' + written + b'"}\n'
    assert audit_line({name: 1}) == b'{"' + written + b'":1}\n'
    assert parsed({"path": name}) == {"path": name}


@pytest.mark.parametrize("character", [*HOSTILE, *SURROGATES])
def test_each_hostile_character_is_escaped(character: str) -> None:
    line = audit_line({"k": character})
    assert character not in line.decode()[:-1]
    assert json.loads(line) == {"k": character}


@given(anything)
def test_any_value_is_one_line_of_json_without_hostile_characters(value: Any) -> None:
    for record in (value, {"value": value}):
        line = audit_line(record)
        text = line.decode()
        assert (line.count(b"\n"), line[-1:], len(line) <= LONGEST_LINE) == (1, b"\n", True)
        assert text[:-1].splitlines() == [text[:-1]]
        assert {unicodedata.category(each) for each in text[:-1]} & {"Cc", "Cf", "Cs", "Zl", "Zp"} == set()
        json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise AssertionError(constant)


@given(st.recursive(st.none() | st.booleans() | st.integers() | texts, lambda each: st.lists(each, max_size=4)))
def test_a_small_value_comes_back_whole(value: Any) -> None:
    assert parsed({"value": value}) == {"value": json.loads(json.dumps(value))}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"secret", "<bytes>"),
        ({1, 2}, "<set>"),
        (object(), "<object>"),
        (ValueError("x"), "<ValueError>"),
        (float("nan"), "<nan>"),
        (float("-inf"), "<-inf>"),
        (2**256, "<int of 257 bits>"),
        (2**200, 2**200),
        ((1, 2), [1, 2]),
        ({1: "a", None: "b", False: "c", b"k": "d"}, {"1": "a", "None": "b", "False": "c", "<bytes>": "d"}),
        (unicodedata, "<module>"),
        ([Effect.READ, Numbered.ONE], ["read", 1]),
    ],
)
def test_what_json_has_no_form_for_is_shown_by_its_type(value: Any, shown: Any) -> None:
    assert parsed({"v": value}) == {"v": shown}


def test_an_integer_that_python_refuses_to_write_is_no_matter() -> None:
    assert parsed({"v": 10**5_000}) == {"v": "<int of 16610 bits>"}


def test_long_strings_are_cut_and_say_how_long_they_were() -> None:
    assert parsed({"event": "read", "data": "x" * 5_000}) == {
        "event": "read",
        "data": "x" * 4_000 + "… (5000 characters)",
    }


@pytest.mark.parametrize(
    "record",
    [
        {f"key {number}": "x" * 3_000 for number in range(50)},
        {"data": "\U000e0041" * 100_000},
        {"\x00" * 100_000: "\x00" * 100_000},
        {"rows": [["\x1b" * 500] * 100] * 100},
        {f"\U000e0041{number}" * 100: "\U000e0041" * 1_000 for number in range(1_000)},
        {type("\U000e0041" * 5_000, (), {}).__name__: [type("\x01x" * 5_000, (), {})()] * 100},
        cyclic(),
        {"deep": json.loads("[" * 500 + "]" * 500)},
    ],
    ids=["wide", "astral", "key", "rows", "keys", "types", "cycle", "deep"],
)
def test_no_line_is_longer_than_its_bound(record: dict[str, Any]) -> None:
    line = audit_line(record)
    assert len(line) <= LONGEST_LINE
    assert next(iter(json.loads(line)))[:8] == next(iter(record))[:8]


def test_no_more_is_written_than_could_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    escape, escaped = audit_lines._escape, list[str]()

    def counting(character: str) -> str:
        escaped.append(character)
        return escape(character)

    monkeypatch.setattr(audit_lines, "_escape", counting)
    audit_line({"rows": ["\x80" * 4_000] * 1_000})
    assert 0 < len(escaped) <= 4 * LONGEST_LINE


def test_collections_that_are_cut_say_so() -> None:
    found = parsed({"event": "list", "names": ["a" * 30] * 5_000})
    assert found["event"] == "list"
    assert (found["names"][0], found["names"][-1]) == ("a" * 30, f"… {5_000 - len(found['names']) + 1} more")
    wide = parsed({str(number): "x" * 100 for number in range(5_000)})
    assert wide["…"] == f"{5_000 - len(wide) + 1} more"


def test_a_deep_value_is_cut_at_a_depth() -> None:
    assert audit_line({"v": json.loads("[" * 30 + "]" * 30)}).count(b"[") == 11
    assert b"<list too deep>" in audit_line({"v": json.loads("[" * 30 + "]" * 30)})


def test_a_record_that_fights_back_breaks_nothing() -> None:
    assert audit_line(Fighting(a=1)) == b'{"unloggable":"RuntimeError"}\n'
    assert audit_line({"v": Fighting(a=1)}) == b'{"unloggable":"RuntimeError"}\n'
