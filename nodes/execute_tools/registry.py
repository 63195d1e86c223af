"""Which tools there are: a tool is a typed function, and its signature and docstring are its contract."""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, overload

from pydantic import BaseModel, ValidationError

from mendgraph.nodes.execute_tools.argument_schema import (
    SchemaArguments,
    UnusableSchemaError,
    argument_schema,
    describe_errors,
    values_without_json_form,
)
from mendgraph.nodes.execute_tools.evidence.checks import Checks
from mendgraph.nodes.execute_tools.files.deadline import CancellationScope
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.network.network import Network
from mendgraph.nodes.execute_tools.processes.commands import Commands
from mendgraph.nodes.execute_tools.signature_arguments import read_signature
from mendgraph.nodes.execute_tools.store.run_folder import Artifacts
from mendgraph.nodes.records import EditForm, Effect, FileChange, JsonMap, Plan, ToolError, ToolResult, ToolSpec


@dataclass(frozen=True)
class ToolContext:
    """What a tool may use while it runs.

    `files_read` maps workspace-relative paths to the SHA-256 that this thread last read or wrote there. `timeout_s`
    is the wall time in seconds that one call may take, `seconds_left` what the turn has for all that are to come.
    `commands` and `network` are None where the run may use none; `commands` may say why. `idempotency_key` is the same
    whenever the same call of the same step is made again. `syntax_gate` is what becomes of an edit after which a file
    does not parse that did so before. `checks` run what shows whether the code is right: None where nothing may be run,
    or why it cannot. `task` is what the person asked for last; with `gated`, an edit that its words or the examples of
    the file contradict is refused. A page of a file has `max_lines` lines at most.
    """

    workspace: Workspace
    files_read: Mapping[str, str] = field(default_factory=dict)
    plan: Plan = field(default_factory=Plan)
    timeout_s: float = 30.0
    seconds_left: float = inf
    kept: Artifacts | None = None
    commands: Commands | ToolError | None = None
    network: Network | None = None
    idempotency_key: str = ""
    scope: CancellationScope | None = None
    syntax_gate: Literal["off", "report", "refuse"] = "report"
    task: str = ""
    gated: bool = False
    checks: Checks | ToolError | None = None
    max_lines: int = 500


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


ToolAnswer: TypeAlias = ToolOutput | ToolError
"""What a tool that comes with this package gives back; an error is a result without effects."""


@dataclass(frozen=True)
class Tool:
    """A tool as the engine runs it. `cacheable` results may be given again while the workspace is unchanged.

    `run` gives back a ToolOutput, or what `results.plain_output` makes one of. `self_timed` tools keep their time by
    themselves; the engine steps in only where they fail to. `isolated` ones run in a process of their own, which is
    killed when their time is over. `one_change` says that all that a call does is one change of files, at its end.
    `remote` ones ask a server, as those with the effect NETWORK do: a circuit breaker counts when it does not answer.
    `paths_of` names the workspace paths that stand inside an argument, such as a patch, for guard. Where there is a
    `schema`, it describes and checks the arguments, and the model may be open. The rest is as in `ToolSpec`.

    Raises:
        ValueError: the schema cannot be used.
    """

    name: str
    description: str
    arguments: type[BaseModel]
    effect: Effect
    run: Callable[[ToolContext, Any], Any]
    path_fields: tuple[str, ...] = ()
    terminal: bool = False
    cacheable: bool = False
    self_timed: bool = False
    isolated: bool = False
    one_change: bool = False
    remote: bool = False
    paths_of: Callable[[JsonMap], list[str]] | None = None
    schema: JsonMap | None = field(default=None, hash=False)
    edit_forms: tuple[EditForm, ...] = ()
    seldom_in: tuple[EditForm, ...] = ()
    offered: bool = True
    body_argument: str = ""

    def __post_init__(self) -> None:
        try:
            _ = self._by_schema
        except UnusableSchemaError as error:
            raise ValueError(f"The tool {self.name!r} has a schema that cannot be used: {error}.") from error

    @cached_property
    def spec(self) -> ToolSpec:
        """What the other packages know of this tool."""
        by_schema = self._by_schema
        return ToolSpec(
            name=self.name,
            description=self.description,
            parameters=argument_schema(self.arguments) if by_schema is None else by_schema.parameters,
            effect=self.effect,
            path_fields=self.path_fields,
            terminal=self.terminal,
            edit_forms=self.edit_forms,
            seldom_in=self.seldom_in,
            offered=self.offered,
            body_argument=self.body_argument,
        )

    @cached_property
    def asynchronous(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.run)

    def validate(self, arguments: JsonMap) -> JsonMap | list[str]:
        """The arguments under their own names, typed and with defaults, or what is wrong with them.

        Unknown arguments are errors unless the schema allows extras. Source: specs 3 and 5, reconciled.
        """
        try:
            if self._by_schema is not None:
                return self._by_schema.checked(arguments)
            canonical = self._parse(arguments).model_dump(mode="json")
        except ValidationError as error:
            return describe_errors(error, self.arguments)
        except Exception as error:  # noqa: BLE001 - a user's validator may fail in any way, and none ends the run
            return [f"the arguments could not be checked ({type(error).__name__}: {error})"]
        return values_without_json_form(canonical) or canonical

    def s(self, context: ToolContext, /, **arguments: Any) -> Any:
        """Run in this thread. A coroutine function gets a loop of its own, so it fails inside a running one."""
        output: object = self.run(context, self._parse(arguments))
        if not inspect.iscoroutine(output):
            return _as_output(output)
        try:
            return _as_output(asyncio.run(output))
        finally:
            output.close()

    async def a(self, context: ToolContext, /, **arguments: Any) -> Any:
        """Run in the caller's event loop."""
        output: object = self.run(context, self._parse(arguments))
        return _as_output(await output if inspect.isawaitable(output) else output)

    @cached_property
    def _by_schema(self) -> SchemaArguments | None:
        return None if self.schema is None else SchemaArguments(self.schema)

    def _parse(self, arguments: JsonMap) -> BaseModel:
        open_ended = self.arguments.model_config.get("extra") == "allow"
        extra: Literal["forbid"] | None = None if open_ended else "forbid"
        return self.arguments.model_validate(arguments, by_alias=True, by_name=True, extra=extra)


def _as_output(value: object) -> object:
    """A tool may give back an error as it is."""
    return ToolOutput.failed(value) if isinstance(value, ToolError) else value


class ToolOptions(TypedDict, total=False):
    """What may be said of a tool beside its effect: see `Tool`. Its name is the function's unless it is given."""

    path_fields: tuple[str, ...]
    terminal: bool
    name: str | None
    cacheable: bool | None
    self_timed: bool
    isolated: bool
    one_change: bool
    paths_of: Callable[[JsonMap], list[str]] | None
    edit_forms: tuple[EditForm, ...]
    seldom_in: tuple[EditForm, ...]
    offered: bool
    body_argument: str


@overload
def tool(*, effect: Effect, **options: Unpack[ToolOptions]) -> Callable[[Callable[..., Any]], Tool]: ...


@overload
def tool(function: Callable[..., Any], /, *, effect: Effect, **options: Unpack[ToolOptions]) -> Tool: ...


def tool(
    function: Callable[..., Any] | None = None, /, *, effect: Effect | None = None, **options: Unpack[ToolOptions]
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function, sync or async: `@tool(effect=Effect.READ)`, or `tool(function, effect=...)`.

    Each parameter is an argument; `Annotated[str, "what it is"]` describes it to the model, and `**extras: Any` takes
    unknown ones. A parameter of type ToolContext, wherever it stands, gets the context. A single parameter of a
    pydantic model's type stands for all arguments. The name is the function's, the description the first paragraph of
    its docstring. Tools that only read the workspace are cacheable unless told otherwise.

    Raises:
        TypeError: no effect is given (it is never guessed), or the signature says too little.
        ValueError: there is no docstring.
    """
    if not isinstance(effect, Effect):
        raise TypeError(f"A tool has to say its effect, as in @tool(effect=Effect.READ); there are {_EFFECTS}.")
    if function is not None:
        return _tool_of(function, effect, options)
    return lambda decorated: _tool_of(decorated, effect, options)


_EFFECTS = ", ".join(f"Effect.{each.name}" for each in Effect)


def _tool_of(function: Callable[..., Any], effect: Effect, options: ToolOptions) -> Tool:
    rest = {key: value for key, value in options.items() if key not in {"name", "cacheable", "path_fields"}}
    path_fields = options.get("path_fields", ())
    description = _first_paragraph(function)
    signature = read_signature(function, ToolContext, path_fields)
    known = signature.arguments.model_fields
    unknown = [each for each in path_fields if each not in known]
    if unknown:
        raise TypeError(
            f"The tool {function.__name__!r} has no argument {unknown[0]!r}, which its path_fields name: it has"
            f" {', '.join(known) or 'none'}."
        )
    cacheable = options.get("cacheable")
    return Tool(
        name=options.get("name") or function.__name__,
        description=description,
        arguments=signature.arguments,
        effect=effect,
        run=signature.run,
        path_fields=path_fields,
        cacheable=effect is Effect.READ if cacheable is None else cacheable,
        **rest,  # type: ignore[arg-type]  # the options of the same names
    )


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
        """What the other packages know of the tools, in the order of registration."""
        return tuple(each.spec for each in self._tools.values())

    def validate(self, name: str, arguments: JsonMap) -> JsonMap | list[str]:
        """The arguments in canonical form, or one short sentence for each thing that is wrong with them."""
        found = self._tools.get(name)
        return [f"unknown tool {name!r}"] if found is None else found.validate(arguments)


def _first_paragraph(function: Callable[..., Any]) -> str:
    lines = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0]
    if not lines:
        raise ValueError(f"The tool {function.__name__!r} has no docstring: the model reads it as the description.")
    return " ".join(lines.split())
