"""An action of spec 4 as a tool of the engine, and what became of it."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple, Protocol

from pydantic import BaseModel

from nodes.execute_tools.registry import Tool, ToolContext, ToolOutput
from nodes.records import Effect, JsonMap, ToolError, ToolResult

UNKNOWN: Final = "<unknown>"
"""Stands for the name of what has none. Source: spec 4."""


class Action(Protocol):
    """What an environment runs. It may declare its `effect`; without one it counts as changing the world."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def execute(self) -> Callable[..., Any]:
        """The method that does it. Whatever it raises becomes an error of the result."""


@dataclass
class ExecResult:
    """What became of an action. `ms` is wall time in milliseconds, `retries` the attempts after the first.

    `data` is the very object that the action gave back: nothing is clipped or copied for a caller in Python. Only where
    a secret can be seen in it, it is a copy made of JSON values without secrets. `args` are always such a copy: those
    that the action was given, or those of the caller where it failed. `error` and `error_type` (the name of the
    exception, or the code of a tool's typed error) are None where it went well, `data` is None where it did not.
    """

    ok: bool
    action: str
    args: JsonMap
    data: Any | None = None
    error: str | None = None
    ms: int = 0
    retries: int = 0
    error_type: str | None = None

    def to_dict(self) -> JsonMap:
        """All fields by name, in this order."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


class ActionError(RuntimeError):
    """An action came to no value: it was refused, or failed by a typed error. `kind` is the result's `error_type`."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class OwnTimeout(NamedTuple):
    """A TimeoutError that the action itself raised; the other one is that of whoever waits for it."""

    error: TimeoutError


class SeenArguments(BaseModel):
    """What the engine sees of the arguments: their text as JSON. The action gets the arguments themselves."""

    text: str = ""


def name_of(action: Action) -> str:
    """What the action is called. What has no name cannot be allowed, counted or found in a log.

    Raises:
        TypeError: it has none.
    """
    name = getattr(action, "name", None)
    if not isinstance(name, str) or not name:
        raise TypeError("an action needs a name: a text that is not empty")
    return str.__str__(name)


def attempt_of(action: Action, arguments: Mapping[str, Any]) -> Tool:
    """One attempt at the action with these arguments, which gives its value as it is, or an OwnTimeout."""

    def run(_: ToolContext, __: SeenArguments) -> Any:
        try:
            return _awaited(action.execute(**arguments))
        except TimeoutError as error:
            return OwnTimeout(error)

    async def arun(_: ToolContext, __: SeenArguments) -> Any:
        try:
            return await action.execute(**arguments)
        except TimeoutError as error:
            return OwnTimeout(error)

    body = arun if inspect.iscoroutinefunction(getattr(action, "execute", None)) else run
    return Tool(action.name, action.name, SeenArguments, Effect.NONE, body)


def value_of(returned: Any) -> Any:
    """What a caller in Python is given of what an action gave back: the data of a tool's result, or a ToolError."""
    result = returned.result if isinstance(returned, ToolOutput) else returned
    if isinstance(result, ToolResult):
        return result.data if result.error is None else result.error
    return result


def seen(value: Any, status: int | None) -> ToolOutput:
    """What the engine is told of such a value: whether it is a failure, and the HTTP status where it has one."""
    if isinstance(value, ToolError):
        return ToolOutput.failed(value)
    return ToolOutput.ok() if status is None else ToolOutput.ok(status=status)


def _awaited(value: Any) -> Any:
    """What a coroutine comes to, where a function that is none gave one back."""
    if not inspect.iscoroutine(value):
        return value
    try:
        return asyncio.run(value)
    finally:
        value.close()
