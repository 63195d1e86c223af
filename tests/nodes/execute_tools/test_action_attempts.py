import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from nodes.execute_tools.action_attempts import ExecResult, OwnTimeout, attempt_of, name_of, seen, value_of
from nodes.execute_tools.environment.workspace import Workspace
from nodes.execute_tools.registry import ToolContext, ToolOutput
from nodes.records import ToolError, ToolErrorCode, ToolResult

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
