"""Which tools there are: a tool is a typed function, and its signature and docstring are its contract."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, Literal, TypeVar, cast, get_type_hints

from pydantic import BaseModel, ValidationError

from nodes.execute_tools.argument_schema import argument_schema, describe_errors, values_without_json_form
from nodes.execute_tools.environment.workspace import Workspace
from nodes.language.closest import closest_names
from nodes.records import Effect, FileChange, JsonMap, Plan, ToolError, ToolResult, ToolSpec

Arguments = TypeVar("Arguments", bound=BaseModel)


@dataclass(frozen=True)
class ToolContext:
    """What a tool may use while it runs.

    `files_read` maps workspace-relative paths to the SHA-256 that this thread last read or wrote there. `timeout_s`
    is the wall time in seconds that one call may take, `seconds_left` what the turn has for all that are to come.
    """

    workspace: Workspace
    files_read: Mapping[str, str] = field(default_factory=dict)
    plan: Plan = field(default_factory=Plan)
    timeout_s: float = 30.0
    seconds_left: float = inf


@dataclass(frozen=True)
class ToolOutput:
    """What a tool gives back: the result for the model, and what it means for the state.

    `files_read` holds the paths that this call read or wrote, with the hash of what is there now; `plan` is the new
    plan, None where the call does not touch it.
    """

    result: ToolResult
    changes: tuple[FileChange, ...] = ()
    files_read: Mapping[str, str] = field(default_factory=dict)
    plan: Plan | None = None

    @classmethod
    def ok(cls, **data: Any) -> "ToolOutput":
        """A result with these fields, which must be JSON values."""
        return cls(ToolResult(ok=True, data=data))

    @classmethod
    def failed(cls, error: ToolError) -> "ToolOutput":
        """A failure that the model can act on."""
        return cls(ToolResult(ok=False, error=error))


@dataclass(frozen=True)
class Tool:
    """A tool as the engine runs it. `cacheable` results may be given again while the workspace is unchanged."""

    name: str
    description: str
    arguments: type[BaseModel]
    effect: Effect
    run: Callable[[ToolContext, Any], ToolOutput]
    path_fields: tuple[str, ...] = ()
    terminal: bool = False
    cacheable: bool = False

    @cached_property
    def spec(self) -> ToolSpec:
        """What the other rooms know of this tool."""
        return ToolSpec(
            name=self.name,
            description=self.description,
            parameters=argument_schema(self.arguments),
            effect=self.effect,
            path_fields=self.path_fields,
            terminal=self.terminal,
        )

    @property
    def asynchronous(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.run)

    def validate(self, arguments: JsonMap) -> JsonMap | list[str]:
        """The arguments under their own names, typed and with defaults, or what is wrong with them.

        Unknown arguments are errors unless the schema allows extras. Source: specs 3 and 5, reconciled.
        """
        try:
            canonical = self._parse(arguments).model_dump(mode="json")
        except ValidationError as error:
            return describe_errors(error, self.arguments)
        except Exception as error:  # noqa: BLE001 - a user's validator may fail in any way, and none ends the run
            return [f"the arguments could not be checked ({type(error).__name__}: {error})"]
        return values_without_json_form(canonical) or canonical

    def s(self, context: ToolContext, **arguments: Any) -> ToolOutput:
        """Run in this thread. A coroutine function gets a loop of its own, so it fails inside a running one."""
        output: object = self.run(context, self._parse(arguments))
        if not inspect.iscoroutine(output):
            return cast("ToolOutput", output)
        try:
            return cast("ToolOutput", asyncio.run(output))
        finally:
            output.close()

    async def a(self, context: ToolContext, **arguments: Any) -> ToolOutput:
        """Run in the caller's event loop."""
        output: object = self.run(context, self._parse(arguments))
        return cast("ToolOutput", await output if inspect.isawaitable(output) else output)

    def _parse(self, arguments: JsonMap) -> BaseModel:
        open_ended = self.arguments.model_config.get("extra") == "allow"
        extra: Literal["forbid"] | None = None if open_ended else "forbid"
        return self.arguments.model_validate(arguments, by_alias=True, by_name=True, extra=extra)


def tool(
    *,
    effect: Effect,
    path_fields: tuple[str, ...] = (),
    terminal: bool = False,
    name: str | None = None,
    cacheable: bool | None = None,
) -> Callable[
    [Callable[[ToolContext, Arguments], ToolOutput | Coroutine[Any, Any, ToolOutput]]],
    Tool,
]:
    """Make a tool of `def tool_name(context: ToolContext, arguments: SomeModel) -> ToolOutput`, sync or async.

    The name is the function's, the description the first paragraph of its docstring, the schema that of its second
    parameter. Tools that only read the workspace are cacheable unless told otherwise.
    """

    def register(function: Callable[[ToolContext, Arguments], Any]) -> Tool:
        return Tool(
            name=name or function.__name__,
            description=_first_paragraph(function),
            arguments=_arguments_of(function),
            effect=effect,
            run=function,
            path_fields=path_fields,
            terminal=terminal,
            cacheable=effect is Effect.READ if cacheable is None else cacheable,
        )

    return register


class ActionRegistry:
    """The tools of a run, by name."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools: dict[str, Tool] = {}
        for each in tools:
            if each.name in self._tools:
                raise ValueError(f"Two tools are called {each.name!r}: give one of them another name.")
            self._tools[each.name] = each

    def get(self, name: str) -> Tool | None:
        """The tool of this name, or None."""
        return self._tools.get(name)

    def names(self) -> frozenset[str]:
        """All names."""
        return frozenset(self._tools)

    def specs(self) -> tuple[ToolSpec, ...]:
        """What the other rooms know of the tools, in the order of registration."""
        return tuple(each.spec for each in self._tools.values())

    def closest(self, name: str) -> tuple[str, ...]:
        """Up to three names that may have been meant, best first."""
        return closest_names(name, self._tools)

    def validate(self, name: str, arguments: JsonMap) -> JsonMap | list[str]:
        """The arguments in canonical form, or one short sentence for each thing that is wrong with them."""
        found = self._tools.get(name)
        return [f"unknown tool {name!r}"] if found is None else found.validate(arguments)


def _first_paragraph(function: Callable[..., Any]) -> str:
    lines = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0]
    if not lines:
        raise ValueError(f"The tool {function.__name__!r} has no docstring: the model reads it as the description.")
    return " ".join(lines.split())


def _arguments_of(function: Callable[..., Any]) -> type[BaseModel]:
    parameters = list(inspect.signature(function).parameters)
    hints = get_type_hints(function)
    model = hints.get(parameters[1]) if len(parameters) == 2 else None
    if isinstance(model, type) and issubclass(model, BaseModel):
        return model
    raise TypeError(f"The tool {function.__name__!r} needs two parameters: the context and a pydantic model.")
