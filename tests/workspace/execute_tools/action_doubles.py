"""Actions for the tests of the `Environment` of spec 4."""

import asyncio
from collections.abc import Callable
from typing import Any

from mendgraph import Effect
from tests.vocabulary import JsonMap


class Do:
    """An action that calls a function; `calls` lists its arguments."""

    def __init__(self, name: str, function: Callable[..., Any], effect: Effect | None = None) -> None:
        self.name, self._function, self.calls = name, function, list[JsonMap]()
        if effect is not None:
            self.effect = effect

    def execute(self, **arguments: Any) -> Any:
        self.calls.append(arguments)
        return self._function(**arguments)


class Later:
    """An action that sleeps for a number of seconds."""

    name = "later"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def execute(self, **arguments: Any) -> JsonMap:
        await asyncio.sleep(self._seconds)
        return arguments


def fail(error: BaseException) -> Callable[..., Any]:
    def function(**_: Any) -> Any:
        raise error

    return function


def echo(**arguments: Any) -> JsonMap:
    return arguments
