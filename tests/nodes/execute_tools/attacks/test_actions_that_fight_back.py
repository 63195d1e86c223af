"""Actions, arguments, values, validators and loggers that fight back: spec 4's environment answers all the same."""

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.environment import Environment, ExecResult
from mendgraph.nodes.execute_tools.secrets.redact import MARK
from mendgraph.nodes.records import Effect, JsonMap, ToolError, ToolErrorCode
from tests.nodes.execute_tools.action_doubles import Do, echo, fail


def test_an_interrupt_passes() -> None:
    with pytest.raises(KeyboardInterrupt):
        Environment().execute_action(Do("wait", fail(KeyboardInterrupt())), {})


class Unnamed:
    def execute(self) -> str:
        raise AssertionError


class NameThatFails(Unnamed):
    @property
    def name(self) -> str:
        raise RuntimeError("no name today")


class EffectThatFails(Unnamed):
    name = "x"

    @property
    def effect(self) -> Effect:
        raise SystemExit(1)


def circle() -> JsonMap:
    made: JsonMap = {}
    made["a"] = made
    return made


def deep() -> JsonMap:
    made: JsonMap = {}
    for _ in range(30_000):
        made = {"a": made}
    return made


@pytest.mark.parametrize(
    ("action", "args", "key", "name", "error", "kind"),
    [
        (object(), {}, "", "<unknown>", "an action needs a name: a text that is not empty", "TypeError"),
        (Unnamed(), {}, "", "<unknown>", "an action needs a name: a text that is not empty", "TypeError"),
        (NameThatFails(), {}, "", "<unknown>", "no name today", "RuntimeError"),
        (EffectThatFails(), {}, "", "x", "1", "SystemExit"),
        (Do("x", echo), None, "", "x", "the arguments of an action are a mapping, not NoneType", "TypeError"),
        (Do("x", echo), {5: 1}, "", "x", "the names of arguments are texts, not int", "TypeError"),
        (Do("x", echo), {}, ["k"], "x", "an idempotency key is a text, not list", "TypeError"),
        (Do("x", echo), {}, [], "x", "an idempotency key is a text, not list", "TypeError"),
    ],
)
def test_what_cannot_be_run_is_an_error_and_no_crash(
    action: Any, args: Any, key: Any, name: str, error: str, kind: str
) -> None:
    result = Environment().execute(action, args, idempotency_key=key)
    assert replace(result, ms=0) == ExecResult(False, name, {}, error=error, error_type=kind)


def test_without_execute_there_is_nothing_to_do() -> None:
    class Named:
        name = "x"

    result = Environment().execute(Named(), {})  # type: ignore[arg-type] # this is what must not crash
    assert (result.ok, result.error_type) == (False, "AttributeError")


@pytest.mark.parametrize(
    "value", [Path("a"), date(2024, 5, 6), b"\xff", (1, 2), {1: 2}, object(), circle(), deep(), 2**70]
)
def test_the_action_gets_the_very_objects(value: Any) -> None:
    action = Do("x", lambda **_: None)
    result = Environment().execute(action, {"thing": value})
    assert (result.ok, result.data, len(action.calls)) == (True, None, 1)
    assert action.calls[0]["thing"] is value


@pytest.mark.parametrize(
    ("value", "text"),
    [(Path("a/b"), "a/b"), (date(2024, 5, 6), "2024-05-06"), (b"x", "x"), ((1, 2), [1, 2]), (circle(), "{'a': {...}}")],
)
def test_what_is_shown_of_the_arguments_is_a_copy_like_json(value: Any, text: Any) -> None:
    assert Environment().execute(Do("x", lambda **_: 1), {"thing": value}).args == {"thing": text}


@pytest.mark.parametrize("name", ["context", "arguments", "text", "tool", "model_dump", "_private", "self"])
def test_an_argument_may_have_any_name(name: str) -> None:
    class Anything:
        name = "x"
        execute = staticmethod(echo)

    assert Environment().execute(Anything(), {name: 1}).data == {name: 1}


class Fighting:
    def __repr__(self) -> str:
        raise SystemExit(1)


@pytest.mark.parametrize("value", [None, {1: 2}, {5}, (1, 2), Path("a"), 2**70, "\ud800", b"\xff", "y" * 200_000])
def test_what_was_done_stays_done_whatever_came_of_it(value: Any) -> None:
    result = Environment().execute(Do("x", lambda: value), {})
    assert (result.ok, result.error) == (True, None)
    assert result.data == value
    assert type(result.data) is type(value)


@pytest.mark.parametrize(("make", "told"), [(Fighting, "<Fighting>"), (object, "<object object")])
def test_an_object_is_given_as_it_is_and_described_in_the_log(make: Callable[[], Any], told: str) -> None:
    value, records = make(), list[JsonMap]()
    result = Environment(logger=records.append).execute(Do("x", lambda: value), {})
    is_itself = result.data is value  # pytest would show the two
    assert (result.ok, is_itself) == (True, True)
    assert records[0]["data"].startswith(told)


@pytest.mark.parametrize(("make", "data"), [(circle, "{'a': {...}}"), (deep, "<dict>")])
def test_a_map_that_cannot_be_looked_through_is_described(make: Callable[[], Any], data: str) -> None:
    result = Environment().execute(Do("x", make), {})
    assert (result.ok, result.data) == (True, data)


def test_a_typed_failure_of_a_tool_is_a_failure() -> None:
    error = ToolError(code=ToolErrorCode.NOT_FOUND, message="no such file")
    result = Environment().execute(Do("x", lambda: error), {})
    assert (result.ok, result.data, result.error, result.error_type) == (False, None, "no such file", "not_found")


@pytest.mark.parametrize(
    ("validator", "error"),
    [
        (lambda _: None, "the validator of x returned no arguments"),
        (lambda _: [1], "the validator of x returned no arguments"),
        (lambda _: {1: 2}, "the names of arguments are texts, not int"),
        (fail(SystemExit(3)), "fail.<locals>.function() takes 0 positional arguments but 1 was given"),
        (lambda _: sys.exit(3), "3"),
    ],
)
def test_a_validator_that_breaks_refuses_the_call(validator: Callable[[JsonMap], JsonMap], error: str) -> None:
    action = Do("x", echo)
    result = Environment(arg_validators={"x": validator}).execute(action, {"a": 1})
    assert (result.ok, result.args, result.error, action.calls) == (False, {"a": 1}, error, [])


@pytest.mark.parametrize("args", [{"text": f"a {MARK} b"}, {"path": Path(MARK)}, {"deep": [{"x": (MARK,)}]}])
def test_what_stands_for_a_secret_is_written_nowhere(args: JsonMap) -> None:
    action = Do("x", echo)
    assert Environment().execute(action, args).error_type == "ValueError"
    assert action.calls == []
    assert Environment().execute(Do("x", echo, Effect.READ), args).ok


def test_a_stored_result_cannot_be_changed_by_those_who_get_it() -> None:
    environment, action = Environment(), Do("pay", lambda **_: {"cents": [5]})
    for _ in range(3):
        result = environment.execute_action(action, {"to": {"a": 1}}, idempotency_key="k")
        assert (result["data"], result["args"]) == ({"cents": [5]}, {"to": {"a": 1}})
        result["data"]["cents"].append(6)
        result["args"]["to"]["b"] = 2
    assert len(action.calls) == 1


def test_a_stored_result_that_cannot_be_copied_is_shared() -> None:
    environment, action = Environment(), Do("open", lambda **_: (part for part in "ab"))
    first, second = (environment.execute(action, {}, idempotency_key="k") for _ in range(2))
    assert (first.ok, len(action.calls)) == (True, 1)
    assert second.data is first.data


def test_with_a_key_paths_and_dates_can_be_compared() -> None:
    environment, action = Environment(), Do("x", lambda **_: 1)
    days = [date(2024, 5, 6), date(2024, 5, 6), date(2024, 5, 7)]
    kinds = [environment.execute(action, {"day": day}, idempotency_key="k").error_type for day in days]
    assert (kinds, len(action.calls)) == ([None, None, "IdempotencyError"], 1)


@pytest.mark.parametrize("value", [object(), circle(), deep(), [Fighting()]])
def test_with_a_key_what_cannot_be_compared_is_refused(value: Any) -> None:
    action = Do("x", echo)
    result = Environment().execute(action, {"a": value}, idempotency_key="k")
    expected = "with an idempotency key all arguments are plain values, as no others can be compared"
    assert (result.error, result.error_type, action.calls) == (expected, "TypeError", [])


@pytest.mark.parametrize("error", [RuntimeError("disk full"), SystemExit(1), GeneratorExit()])
def test_a_logger_that_breaks_breaks_nothing(error: BaseException) -> None:
    told: list[JsonMap] = []

    def logger(record: JsonMap) -> None:
        told.append(record)
        raise error

    environment = Environment(logger=logger)
    assert environment.execute_action(Do("add", lambda: 3), {})["data"] == 3
    assert len(told) == 1


def test_an_interrupt_passes_the_logger() -> None:
    def logger(_: JsonMap) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Environment(logger=logger).execute_action(Do("add", lambda: 3), {})


@pytest.mark.parametrize("wrap", [Path, lambda text: {text: 1}, lambda text: b"\xff" + text.encode()])
def test_a_known_secret_never_leaves_in_any_form(wrap: Callable[[str], Any]) -> None:
    known, records = "xyzzy-" + "plugh-4711", list[JsonMap]()
    environment = Environment(secrets=[known], logger=records.append)
    result = environment.execute_action(Do(f"x{known}", lambda thing: [thing]), {"thing": wrap(known)})
    assert result["ok"]
    assert "plugh" not in repr(result)
    assert "plugh" not in repr(records)


def test_a_record_that_cannot_be_shown_whole_is_shown_in_part() -> None:
    records: list[JsonMap] = []
    Environment(logger=records.append).execute_action(Do("x", lambda **_: deep()), {"a": deep(), "b": 1})
    assert [{**record, "ms": 0} for record in records] == [
        {
            "event": "action_ok",
            "ok": True,
            "action": "x",
            "args": {"a": "<dict>", "b": 1},
            "data": "<dict>",
            "error": None,
            "error_type": None,
            "ms": 0,
            "retries": 0,
        }
    ]
