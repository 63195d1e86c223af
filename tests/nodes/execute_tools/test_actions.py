from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, SecretStr

from mendgraph.nodes.execute_tools.actions import LONGEST_INTEGER, freed, is_plain, json_like
from mendgraph.nodes.execute_tools.secrets.redact import MARK, Redactor

SECRET = "xyzzy-" + "plugh-4711"
DIGITS = "8047" + "123355"
REDACTOR = Redactor([SECRET, DIGITS])


class Level(Enum):
    HIGH = "high"


class Model(BaseModel):
    a: int = 1
    key: SecretStr = SecretStr("x")


@dataclass
class Record:
    where: Path
    note: str = ""


class Fighting:
    def __repr__(self) -> str:
        raise SystemExit(1)


class FightingMap(dict[str, int]):
    def items(self) -> Any:
        raise SystemExit(1)


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise SystemExit(1)


def circle() -> dict[str, Any]:
    made: dict[str, Any] = {}
    made["a"] = made
    return made


def deep(levels: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _ in range(levels):
        made = {"a": made}
    return made


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON)
def test_a_json_value_is_itself_and_plain(value: Any) -> None:
    assert json_like(value) == value
    assert is_plain(value)


@pytest.mark.parametrize(
    ("value", "copy", "plain"),
    [
        ({1: 2, "1": 3}, {"1": 2, "1_": 3}, True),
        ({(1, 2): 3}, {"[1, 2]": 3}, True),
        ((1, "b"), [1, "b"], True),
        ({5}, [5], True),
        (frozenset({5}), [5], True),
        (2**70, 2**70, True),
        (2 ** (LONGEST_INTEGER + 1), f"<int of {LONGEST_INTEGER + 2} bits>", True),
        ("\ud800", "\ud800", True),
        (b"caf\xc3\xa9\xff", "café\\xff", True),
        (bytearray(b"x"), "x", False),
        (Path("/a/b"), "/a/b", True),
        (date(2024, 5, 6), "2024-05-06", True),
        (Decimal("1.50"), "1.50", True),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001", True),
        (Level.HIGH, "high", False),
        (Model(), {"a": 1, "key": "SecretStr('**********')"}, False),
        (Record(Path("a")), {"where": "a", "note": ""}, False),
        (Record, repr(Record), False),
        ([Fighting()], ["<Fighting>"], False),
        ({"a": FightingMap(b=1)}, {"a": "{'b': 1}"}, False),
        (Text("x"), "x", False),
        (circle(), "{'a': {...}}", False),
        (deep(30_000), "<dict>", False),
    ],
)
def test_any_value_as_json_would_have_it(value: Any, copy: Any, plain: bool) -> None:
    assert json_like(value) == copy
    assert is_plain(value) is plain


def test_numbers_that_hold_what_is_hidden_are_texts() -> None:
    assert json_like([47110, -4711.5, 4712, True], ["4711", "rue"]) == ["47110", "-4711.5", 4712, True]


@pytest.mark.parametrize(
    ("value", "safe"),
    [
        (SECRET, MARK),
        ({1: SECRET, "b": (1,)}, {"1": MARK, "b": [1]}),
        ({SECRET: 1}, {MARK: 1}),
        ([Path("/home") / SECRET], [f"/home/{MARK}"]),
        (f"\xff{SECRET}".encode("latin-1"), f"\\xff{MARK}"),
        ([int(DIGITS)], [MARK]),
        (Record(Path("a"), SECRET), {"where": "a", "note": MARK}),
        (circle(), "{'a': {...}}"),
    ],
)
def test_a_secret_never_leaves(value: Any, safe: Any) -> None:
    assert freed(value, REDACTOR) == safe


def test_a_secret_that_hides_behind_a_circle_never_leaves() -> None:
    assert SECRET not in str(freed({"note": SECRET, "a": circle()}, REDACTOR))
    assert SECRET not in str(freed({"note": SECRET, "a": deep(400)}, REDACTOR))
