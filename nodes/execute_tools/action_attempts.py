"""An action of spec 4 as a tool of the engine: the engine counts and times it, the values go past it as they are."""

import asyncio
import inspect
from dataclasses import dataclass, fields
from typing import Any, Final, Protocol

from pydantic import BaseModel

from nodes.execute_tools.registry import Tool, ToolContext, ToolOutput
from nodes.records import Effect, JsonMap, ToolError, ToolResult

UNKNOWN: Final = "<unknown>"
"""Stands for the name of what has none. Source: spec 4."""


class Action(Protocol):
    """What an environment runs. It may declare its `effect`; without one it counts as changing the world."""

    name: str

    def execute(self, **arguments: Any) -> Any:
        """Do it. Whatever it raises becomes an error of the result."""


@dataclass(frozen=True)
class ExecResult:
    """What became of an action. `ms` is wall time in milliseconds, `retries` the attempts after the first.

    `data` is what the action gave back, whole and of its own types: nothing is clipped for a caller in Python. Where
    it holds a secret, or is no plain value, it is a copy made of JSON values without secrets: records are maps, and
    what cannot be looked through is its `repr`. `args` are such a copy, too; the action itself gets the arguments as
    they were given. `error` and `error_type` (the name of the exception, or the code of a tool's typed error) are None
    where it went well, `data` is None where it did not.
    """

    ok: bool
    action: str
    args: JsonMap
    data: Any | None = None
    error: str | None = None
    error_type: str | None = None
    ms: int = 0
    retries: int = 0

    def to_dict(self) -> JsonMap:
        """All fields by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


class SeenArguments(BaseModel):
    """What the engine sees of the arguments: their text as JSON. The action gets the arguments themselves."""

    text: str


class Attempts:
    """What the attempts at one action gave back, by number: one that was given up may still come to its end."""

    def __init__(self) -> None:
        self.arguments: JsonMap = {}
        self.values: dict[int, Any] = {}
        self.own_timeout: TimeoutError | None = None
        self._begun = 0

    def begin(self) -> int:
        """The number of the next attempt."""
        self._begun += 1
        self.own_timeout = None
        return self._begun

    def failed(self, number: int, error: BaseException) -> None:
        """A TimeoutError of the action's own is not that of the environment."""
        if isinstance(error, TimeoutError) and number == self._begun:
            self.own_timeout = error

    def keep(self, number: int, value: Any) -> ToolOutput:
        """Keep the value, and give the engine its number; a typed failure stays one."""
        result = value.result if isinstance(value, ToolOutput) else value
        error = result.error if isinstance(result, ToolResult) else result
        if isinstance(error, ToolError):
            return ToolOutput.failed(error)
        self.values[number] = result.data if isinstance(result, ToolResult) else value
        return ToolOutput.ok(attempt=number)


def name_of(action: Action) -> str:
    """What the action is called. What has no name cannot be allowed, counted or found in a log.

    Raises:
        TypeError: it has none.
    """
    name = getattr(action, "name", None)
    if not isinstance(name, str) or not name:
        raise TypeError("an action needs a name: a text that is not empty")
    return str.__str__(name)


def tool_of(action: Action, name: str, usual: Effect) -> tuple[Tool, Attempts]:
    """The action as a tool, and what receives the values that it gives back; `usual` is its effect if it names none."""
    attempts = Attempts()

    def run(_: ToolContext, __: SeenArguments) -> ToolOutput:
        number = attempts.begin()
        try:
            return attempts.keep(number, _awaited(action.execute(**attempts.arguments)))
        except BaseException as error:
            attempts.failed(number, error)
            raise

    async def arun(_: ToolContext, __: SeenArguments) -> ToolOutput:
        number = attempts.begin()
        try:
            return attempts.keep(number, await action.execute(**attempts.arguments))
        except BaseException as error:
            attempts.failed(number, error)
            raise

    effect = getattr(action, "effect", None)
    body = arun if inspect.iscoroutinefunction(getattr(action, "execute", None)) else run
    known = effect if isinstance(effect, Effect) else usual
    return Tool(name, name, SeenArguments, known, body), attempts


def _awaited(value: Any) -> Any:
    """What a coroutine comes to, where a function that is none gave one back."""
    if not inspect.iscoroutine(value):
        return value
    try:
        return asyncio.run(value)
    finally:
        value.close()
