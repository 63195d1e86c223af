import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from nodes.execute_tools.action_attempts import Attempts, ExecResult, SeenArguments, name_of, tool_of
from nodes.execute_tools.environment.workspace import Workspace
from nodes.execute_tools.registry import ToolContext, ToolOutput
from nodes.records import Effect, ToolError, ToolErrorCode, ToolResult

ERROR = ToolError(code=ToolErrorCode.NOT_FOUND, message="no such file")


class Do:
    name: Any = "do"

    def execute(self, **arguments: Any) -> Any:
        return arguments


class Later(Do):
    effect = Effect.READ

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


def test_a_result_as_a_map_shares_its_values() -> None:
    data = object()
    assert ExecResult(True, "do", {}, data).to_dict() == {
        "ok": True,
        "action": "do",
        "args": {},
        "data": data,
        "error": None,
        "error_type": None,
        "ms": 0,
        "retries": 0,
    }


@pytest.mark.parametrize("name", [None, "", 3, b"do"])
def test_an_action_needs_a_name(name: Any) -> None:
    action = Do()
    assert name_of(action) == "do"
    action.name = name
    with pytest.raises(TypeError, match=r"^an action needs a name: a text that is not empty$"):
        name_of(action)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (None, None),
        ({5}, {5}),
        (ToolResult.success(a=1), {"a": 1}),
        (ToolOutput.ok(a=1), {"a": 1}),
    ],
)
def test_a_value_is_kept_under_the_number_of_its_attempt(value: Any, kept: Any) -> None:
    attempts = Attempts()
    assert [attempts.begin(), attempts.begin()] == [1, 2]
    assert attempts.keep(2, value) == ToolOutput.ok(attempt=2)
    assert attempts.values == {2: kept}


@pytest.mark.parametrize("value", [ERROR, ToolResult(ok=False, error=ERROR), ToolOutput.failed(ERROR)])
def test_a_typed_failure_stays_one(value: Any) -> None:
    attempts = Attempts()
    assert attempts.keep(attempts.begin(), value) == ToolOutput.failed(ERROR)
    assert attempts.values == {}


def test_only_the_last_attempt_says_whose_timeout_it_was() -> None:
    attempts, error = Attempts(), TimeoutError()
    first, second = attempts.begin(), attempts.begin()
    attempts.failed(first, error)
    assert attempts.own_timeout is None
    attempts.failed(second, ValueError())
    assert attempts.own_timeout is None
    attempts.failed(second, error)
    assert attempts.own_timeout is error
    attempts.begin()
    assert attempts.own_timeout is None


@pytest.mark.parametrize("action", [Do(), Later(), Hidden()])
def test_the_action_gets_the_arguments_past_the_engine(tmp_path: Path, action: Do) -> None:
    tool, attempts = tool_of(action, "do", Effect.WRITE)
    thing = object()
    attempts.arguments = {"thing": thing, "context": 1}
    context = ToolContext(Workspace(str(tmp_path), lambda *_: None))
    assert tool.s(context, text="{}") == ToolOutput.ok(attempt=1)
    assert attempts.values == {1: {"thing": thing, "context": 1}}


def test_an_action_may_say_what_it_does() -> None:
    assert tool_of(Do(), "do", Effect.WRITE)[0].effect is Effect.WRITE
    assert tool_of(Later(), "do", Effect.WRITE)[0].effect is Effect.READ
    assert [tool_of(each, "do", Effect.WRITE)[0].asynchronous for each in (Do(), Later(), Hidden())] == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("action", [TooLate(), TooLateLater()])
def test_a_timeout_of_the_actions_own_is_noted(tmp_path: Path, action: Do) -> None:
    tool, attempts = tool_of(action, "do", Effect.WRITE)
    context = ToolContext(Workspace(str(tmp_path), lambda *_: None))

    async def call() -> None:
        ended = tool.run(context, SeenArguments(text="{}"))
        if inspect.isawaitable(ended):
            await ended

    with pytest.raises(TimeoutError, match="own"):
        asyncio.run(call())
    assert str(attempts.own_timeout) == "the server's own"
