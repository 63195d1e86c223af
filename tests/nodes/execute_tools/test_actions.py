import asyncio
import inspect
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

from mendgraph.nodes.execute_tools.actions import (
    LONGEST_INTEGER,
    ExecResult,
    OwnTimeout,
    attempt_of,
    check_content,
    effect_of,
    freed,
    in_words,
    is_plain,
    is_writer,
    json_like,
    lists,
    name_of,
    named_arguments,
    names_a_folder,
    path_fields,
    seen,
    shown,
    value_of,
)
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import MARK, Redactor
from mendgraph.nodes.records import Effect, JsonMap, ToolError, ToolErrorCode, ToolResult

ERROR = ToolError(code=ToolErrorCode.NOT_FOUND, message="no such file")


class Do:
    name: Any = "do"

    def execute(self, **arguments: Any) -> Any:
        return arguments


class Later(Do):
    async def execute(self, **arguments: Any) -> Any:
        return arguments


class Hidden(Do):
    def execute(self, **arguments: Any) -> Any:
        return Later().execute(**arguments)


class TooLate(Do):
    def execute(self, **_: Any) -> Any:
        raise TimeoutError("the server's own")


class TooLateLater(Do):
    async def execute(self, **_: Any) -> Any:
        raise TimeoutError("the server's own")


def test_a_result_is_spec_4s_with_the_errors_type_last() -> None:
    data = object()
    result = ExecResult(True, "do", {}, data, None, 12, 1)
    result.ms = 13
    assert list(result.to_dict().items()) == [
        ("ok", True), ("action", "do"), ("args", {}), ("data", data), ("error", None), ("ms", 13), ("retries", 1),
        ("error_type", None),
    ]  # fmt: skip


@pytest.mark.parametrize("name", [None, "", 3, b"do"])
def test_an_action_needs_a_name(name: Any) -> None:
    action = Do()
    assert name_of(action) == "do"
    action.name = name
    with pytest.raises(TypeError, match=r"^an action needs a name: a text that is not empty$"):
        name_of(action)


@pytest.mark.parametrize(
    ("returned", "value"),
    [
        (None, None),
        ({5}, {5}),
        (ToolResult.success(a=1), {"a": 1}),
        (ToolOutput.ok(a=1), {"a": 1}),
        (ERROR, ERROR),
        (ToolResult(ok=False, error=ERROR), ERROR),
        (ToolOutput.failed(ERROR), ERROR),
    ],
)
def test_the_value_is_what_the_action_gave_back_or_its_typed_failure(returned: Any, value: Any) -> None:
    assert value_of(returned) == value


def test_the_engine_sees_of_a_value_whether_it_failed_and_its_status() -> None:
    assert seen(ERROR, 503) == ToolOutput.failed(ERROR)
    assert seen({"a": 1}, None) == ToolOutput.ok()
    assert seen({"a": 1}, 503) == ToolOutput.ok(status=503)


@pytest.mark.parametrize("action", [Do(), Later(), Hidden()])
def test_the_action_gets_the_very_arguments(tmp_path: Path, action: Do) -> None:
    given = {"thing": object(), "context": 1}
    attempt = attempt_of(action, given)
    assert attempt.s(ToolContext(Workspace(str(tmp_path), lambda *_: None))) == given
    assert attempt.asynchronous is (type(action) is Later)


@pytest.mark.parametrize("action", [TooLate(), TooLateLater()])
def test_a_timeout_of_the_actions_own_is_told_apart(tmp_path: Path, action: Do) -> None:
    attempt = attempt_of(action, {})
    context = ToolContext(Workspace(str(tmp_path), lambda *_: None))

    async def call() -> Any:
        ended = attempt.run(context, attempt.arguments())
        return await ended if inspect.isawaitable(ended) else ended

    ended = asyncio.run(call())
    assert isinstance(ended, OwnTimeout)
    assert str(ended.error) == "the server's own"


@pytest.mark.parametrize(
    ("action", "effect", "writer", "listing"),
    [
        ("read_file", Effect.READ, False, False),
        ("search_in_file", Effect.READ, False, False),
        ("list_files", Effect.READ, False, True),
        ("write_file", Effect.WRITE, True, False),
        ("append_file", Effect.WRITE, True, False),
        ("delete_file", Effect.WRITE, True, False),
        ("http_get", Effect.NETWORK, False, False),
        ("http_post", Effect.WRITE, True, False),
        ("launch_rocket", Effect.WRITE, False, False),
    ],
)
def test_what_an_action_does_by_its_name(action: str, effect: Effect, writer: bool, listing: bool) -> None:
    assert (effect_of(action), is_writer(action), lists(action)) == (effect, writer, listing)


def test_only_file_actions_name_files() -> None:
    assert path_fields("read_file") == ("file_name", "filename", "path", "target", "directory")
    assert path_fields("http_get") == path_fields("launch_rocket") == ()


@pytest.mark.parametrize("action", ["write_file", "append_file"])
@pytest.mark.parametrize("arguments", [{}, {"content": None}, {"content": 3}])
def test_writers_supply_content(action: str, arguments: JsonMap) -> None:
    with pytest.raises(ValueError, match=r"^Missing or invalid 'content' for write/append operation\.$"):
        check_content(action, arguments)
    check_content(action, {"content": ""})
    check_content("read_file", arguments)


def test_arguments_are_copied_under_their_names() -> None:
    given = {"a": object()}
    found = named_arguments(given)
    assert found == given
    assert found is not given


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (None, "the arguments of an action are a mapping, not NoneType"),
        ([("a", 1)], "the arguments of an action are a mapping, not list"),
        ({"a": 1, 5: 1}, "the names of arguments are texts, not int"),
    ],
)
def test_what_has_no_names_is_no_arguments(arguments: object, message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        named_arguments(arguments)


@pytest.mark.parametrize(
    ("action", "field", "folder"),
    [
        ("move_file", "target", True),
        ("move_file", "directory", True),
        ("move_file", "path", False),
        ("delete_file", "target", False),
        ("read_file", "directory", False),
    ],
)
def test_only_what_is_moved_goes_into_a_folder(action: str, field: str, folder: bool) -> None:
    assert names_a_folder(action, field) is folder


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


class Interrupting:
    def __repr__(self) -> str:
        raise KeyboardInterrupt


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


@pytest.mark.parametrize("take", [json_like, in_words, lambda value: json_like([value])])
def test_only_an_interrupt_passes(take: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        take(Interrupting())


@pytest.mark.parametrize(
    "value",
    [
        None,
        {1: 2},
        {5},
        (1, 2),
        2**70,
        "\ud800",
        b"\xff",
        Path("/a"),
        date(2024, 5, 6),
        "y" * 200_000,
        {"value": None},
        Level.HIGH,
        object,
        [object()],
    ],
)
def test_what_is_free_of_secrets_stays_what_it_is(value: Any) -> None:
    assert freed(value, REDACTOR) is value


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


def test_a_record_loses_only_what_cannot_be_shown() -> None:
    record = {"password": "tr0ub4dor" + "-Xk29", "note": SECRET, "n": 1, "path": Path("a"), "far": deep(400)}
    assert {**shown(record, REDACTOR), "far": ""} == {"password": "***", "note": "***", "n": 1, "path": "a", "far": ""}
