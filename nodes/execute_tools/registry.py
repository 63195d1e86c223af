"""Tools, actions and their registry. A tool is a typed function: its signature and docstring are its contract."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias, TypeGuard, overload

import orjson
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from mendgraph.nodes.execute_tools.action_names import FILE_NAMES, READING, WRITING, declared_effect, effect_by_name
from mendgraph.nodes.execute_tools.commands.commands import Commands
from mendgraph.nodes.execute_tools.evidence.checks import Checks, RanTests
from mendgraph.nodes.execute_tools.signatures import PATH_NAMES, read_signature
from mendgraph.nodes.execute_tools.tool_schemas import bounded_schema, plain_schema, shorten
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.records import (
    EditForm,
    Effect,
    FileChange,
    JsonMap,
    Plan,
    ToolError,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
)
from mendgraph.nodes.workspace.files.deadline import CancellationScope
from mendgraph.nodes.workspace.files.workspace import Workspace
from mendgraph.nodes.workspace.store.run_folder import Artifacts

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.commands.jobs import Jobs
    from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers
    from mendgraph.nodes.execute_tools.network.network import Network
    from mendgraph.nodes.execute_tools.network.web_search import WebSearch


class RequestHints(Protocol):
    """Hints from the words of a request, for small models: see `nodes/small_model/request_checks.py`."""

    def moved_names(self) -> Collection[str]:
        """Return the definitions that the request moves to another file."""

    def unfinished_requests(self, texts: Mapping[str, str]) -> list[str]:
        """Return sentences about what the request asks for and these files do not show."""

    def tests_of_request(
        self, already: Collection[str], now: RanTests, before: RanTests, defined: Collection[str]
    ) -> Collection[str]:
        """Return the tests that failed `already` before the turn and that the request asks to fix."""

    def left_undone(self, changed: Collection[str], exists: Callable[[str], bool]) -> str:
        """Return the changes that the request needs and the `changed` files lack, or ""."""


@dataclass(frozen=True)
class ToolContext:
    """The context of one call.

    Attributes:
        workspace: the files; for a tool without a changing effect it refuses to write.
        files_read: workspace-relative paths with the SHA-256 that this thread last read or wrote.
        plan: the plan of the run.
        timeout_s: wall time in seconds for this call.
        seconds_left: wall time in seconds that the turn has left.
        artifacts: the store for results that are too long; `read_file` reads it.
        commands: runs programs; None or the error that says why the run may not.
        network: None if the run may not use it.
        search: searches the web; None or the error that says why the run may not.
        idempotency_key: identical if the same call of the same step is repeated.
        scope: the cancellation scope of the call.
        syntax_gate: whether an edit that breaks the syntax of a file is reported or refused.
        task: the last request of the person if the model is small, else "".
        hints: hints from the words of `task` for a small model.
        foreign: lines of the prompt's examples, which an edit may not add.
        evidence_required: whether an edit that contradicts the task or the file's examples is refused.
        is_last_edit: whether no later call of the reply is one of a file tool, so that linters look at this one.
        checks: runs the checks of the project; None or the error that says why the run may not.
        changes: the changes of this turn so far.
        session_start: returns the hashes of changed files before the session's first change, "" for new files.
        backup: returns the bytes with such a hash, or None.
        max_lines: the most lines of a page of a file.
        call_id: the id of the call.
        answer: a person's answer to the call's question, "" if they gave none; None if nobody can answer.
        state: the state of the run, read-only.
        skill: returns the folder of one of the user's skills by name; None without skills.
        remember: stores a note for later runs and returns it as stored; None without a memory.
        servers: the MCP servers that the session runs.
        jobs: runs commands that may go on in the background; None or the error that says why the run may not.
    """

    workspace: Workspace
    files_read: Mapping[str, str] = field(default_factory=dict)
    plan: Plan = field(default_factory=Plan)
    timeout_s: float = 30.0
    seconds_left: float = inf
    artifacts: Artifacts | None = None
    commands: Commands | ToolError | None = None
    network: "Network | None" = None
    search: "WebSearch | ToolError | None" = None
    idempotency_key: str = ""
    scope: CancellationScope | None = None
    syntax_gate: Literal["off", "report", "refuse"] = "report"
    task: str = ""
    hints: RequestHints | None = None
    foreign: frozenset[str] = frozenset()
    evidence_required: bool = False
    is_last_edit: bool = True
    checks: Checks | ToolError | None = None
    changes: Sequence[FileChange] = ()
    session_start: Callable[[], Mapping[str, str]] = dict
    backup: Callable[[str], bytes | None] = lambda _: None
    max_lines: int = 500
    call_id: str = ""
    answer: str | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    skill: Callable[[str], Workspace | ToolError] | None = None
    remember: Callable[[str], str | ToolError] | None = None
    servers: "McpServers | None" = None
    jobs: "Jobs | ToolError | None" = None

    @property
    def cancelled(self) -> bool:
        """Whether the call is cancelled: its time is over, or the run was stopped."""
        return self.scope is not None and self.scope.over


@dataclass(frozen=True)
class ToolOutput:
    """The output of a tool: the result for the model, and its effects on the state.

    `files_read` holds the paths that the call read or wrote, with their hashes now; `plan` is the new plan, None if it
    is unchanged. `blocks` and `artifact` are as in `CallResult`.
    """

    result: ToolResult
    changes: tuple[FileChange, ...] = ()
    files_read: Mapping[str, str] = field(default_factory=dict)
    plan: Plan | None = None
    blocks: tuple[JsonMap, ...] | None = None
    artifact: Any = None

    @classmethod
    def ok(cls, **data: Any) -> "ToolOutput":
        """Return a success with these fields, which must be JSON values."""
        return cls(ToolResult(ok=True, data=data))

    @classmethod
    def failed(cls, error: ToolError) -> "ToolOutput":
        """Return a failure."""
        return cls(ToolResult(ok=False, error=error))


ToolAnswer: TypeAlias = ToolOutput | ToolError
"""The return type of this package's tools; an error is a result without effects."""


class Action(Protocol):
    """A `Tool`, or any object with a name and a method `execute`; it may declare an `effect`.

    A parameter of `execute` that is annotated with ToolContext receives the context of the call.
    """

    @property
    def name(self) -> str:
        """The name of the action."""

    @property
    def execute(self) -> Callable[..., Any]:
        """The method that runs it, sync or async. Its exceptions become errors of the result."""


Validator = Callable[[JsonMap], JsonMap]
"""Checks and normalises the arguments of an action, and returns them; raises to refuse them."""


class ActionError(RuntimeError):
    """An action was refused, or failed with a typed error. `kind` is the `error_type` of the result."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


def action_value(output: object) -> object:
    """Return the data of a tool's result, or its error; any other value as it is."""
    if isinstance(output, ToolOutput):
        output = output.result

    if not isinstance(output, ToolResult):
        return output

    return output.data if output.error is None else output.error


@dataclass(frozen=True)
class Tool:
    """A tool as the engine runs it. Fields that are not described here are those of `ToolSpec`.

    Attributes:
        run: returns a ToolOutput, or a value for `tool_outcome.plain_output`.
        arun: is awaited instead of `run` in an event loop.
        cacheable: whether a result may be returned again while the workspace is unchanged.
        self_timed: whether the tool observes the timeout itself; the engine gives it a grace period.
        one_change: whether the whole effect of a call is one change of files, at its end.
        remote: whether the tool asks a server, so that a circuit breaker counts its outages.
        child: whether a call is delegated to a run of its own.
        paths_of: returns the workspace paths inside of an argument, such as a patch, for guard.
        schema: is shown to the model instead of the schema of `arguments`.
        finds: returns the names of the tools that a search with these words makes known to the model.
        approval: whether calls run as the mode says, only if a person approves each, or without an approval.
        executes: absolute paths of files that calls execute outside of the sandbox, which no run may change.
    """

    name: str
    description: str
    arguments: type[BaseModel]
    effect: Effect
    run: Callable[[ToolContext, Any], Any]
    arun: Callable[[ToolContext, Any], Awaitable[Any]] | None = None
    path_fields: tuple[str, ...] = ()
    terminal: bool = False
    cacheable: bool = False
    self_timed: bool = False
    one_change: bool = False
    remote: bool = False
    child: bool = False
    paths_of: Callable[[JsonMap], list[str]] | None = None
    schema: JsonMap | None = field(default=None, hash=False)
    edit_forms: tuple[EditForm, ...] = ()
    seldom_in: tuple[EditForm, ...] = ()
    offered: bool = True
    finds: Callable[[str], Sequence[str]] | None = None
    approval: Literal["by_mode", "required", "granted"] = "by_mode"
    executes: tuple[str, ...] = ()

    @cached_property
    def spec(self) -> ToolSpec:
        """The description of the tool for other packages."""
        fields = {name: getattr(self, name) for name in ToolSpec.model_fields if name != "parameters"}
        return ToolSpec(parameters=self.schema or argument_schema(self.arguments), **fields)

    @cached_property
    def asynchronous(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(inspect.unwrap(self.run))

    def validate(self, arguments: JsonMap) -> JsonMap | list[str]:
        """Return the arguments under their own names, typed and with defaults, or one sentence for each mistake.

        Unknown arguments are mistakes unless the schema allows extras. Source: specs 3 and 5, reconciled.
        """
        try:
            canonical = self._parse(arguments).model_dump(mode="json")
        except ValidationError as error:
            return describe_errors(error, [*self.arguments.model_fields])
        except Exception as error:  # noqa: BLE001 - a user's validator may fail in any way, and none ends the run
            return [f"the arguments could not be checked ({type(error).__name__}: {error})"]

        return values_without_json_form(canonical) or canonical

    def execute(self, /, **arguments: Any) -> Any:
        """Run as spec 4's action, without a workspace, and return the data of the result or the returned value.

        Raises:
            ValueError: the arguments do not fit.
            ActionError: the tool returned an error.
        """
        value = action_value(self.s(ToolContext(no_workspace()), **arguments))
        if isinstance(value, ToolError):
            raise ActionError(value.message, value.code.value)

        return value

    def s(self, context: ToolContext, /, **arguments: Any) -> Any:
        """Run in this thread. A coroutine runs with `asyncio.run`, which fails inside a running loop."""
        output: object = self.run(context, self._fitting(arguments))
        if not inspect.iscoroutine(output):
            return _as_output(output)

        try:
            return _as_output(asyncio.run(output))
        finally:
            output.close()

    async def a(self, context: ToolContext, /, **arguments: Any) -> Any:
        """Run in the caller's event loop."""
        run = self.arun or self.run
        output: object = run(context, self._fitting(arguments))
        if inspect.isawaitable(output):
            output = await output

        return _as_output(output)

    def _fitting(self, arguments: JsonMap) -> BaseModel:
        """Return the typed arguments, or raise ValueError. No argument is iterated unless its type requires it."""
        try:
            return self._parse(arguments)
        except ValidationError as error:
            wrong = "; ".join(describe_errors(error, [*self.arguments.model_fields]))
            raise ValueError(f"The arguments of {self.name} do not fit: {wrong}.") from None

    def _parse(self, arguments: JsonMap) -> BaseModel:
        open_ended = self.arguments.model_config.get("extra") == "allow"
        extra: Literal["forbid"] | None = None if open_ended else "forbid"  # None: each nested model has its own rule
        return self.arguments.model_validate(arguments, by_alias=True, by_name=True, extra=extra)


def _as_output(value: object) -> object:
    """Return an error that a tool returned as an output."""
    if isinstance(value, ToolError):
        return ToolOutput.failed(value)
    return value


@overload
def tool(*, effect: Effect, **options: Any) -> Callable[[Callable[..., Any]], Tool]: ...


@overload
def tool(function: Callable[..., Any], /, *, effect: Effect, **options: Any) -> Tool: ...


def tool(
    function: Callable[..., Any] | None = None, /, *, effect: Effect | None = None, **options: Any
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Turn a typed function, sync or async, into a tool: `@tool(effect=Effect.READ)`, or `tool(function, effect=...)`.

    Each parameter is an argument. `Annotated[str, "description"]` describes it to the model; `**extras: Any` accepts
    unknown arguments. A parameter of type ToolContext receives the context. A single parameter of a pydantic model's
    type receives all arguments. The name is that of the function unless you pass `name`. The description is the first
    paragraph of the docstring. Other `options` are fields of `Tool`. READ tools are cacheable by default.

    Raises:
        TypeError: no effect is given (it is never guessed), or the signature is incomplete.
        ValueError: there is no docstring.
    """
    if not isinstance(effect, Effect):
        effects = ", ".join(f"Effect.{member.name}" for member in Effect)
        raise TypeError(f"A tool needs an effect, as in @tool(effect=Effect.READ); the effects are {effects}.")

    if function is None:
        return lambda decorated: tool(decorated, effect=effect, **options)

    path_fields = options.get("path_fields", ())
    arguments, run = read_signature(function, path_fields, ToolContext)
    names = arguments.model_fields

    for path_field in path_fields:
        if path_field not in names:
            raise TypeError(
                f"The tool {function.__name__!r} has no argument {path_field!r}, which its path_fields name: it has"
                f" {', '.join(names) or 'none'}."
            )

    paragraph = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0]
    if not paragraph:
        raise ValueError(f"The tool {function.__name__!r} has no docstring: the model reads it as the description.")

    described = " ".join(paragraph.split())
    fields = {"name": function.__name__, "description": described, "cacheable": effect is Effect.READ, **options}
    return Tool(arguments=arguments, effect=effect, run=run, **fields)


@lru_cache(1)
def no_workspace() -> Workspace:
    """Return the workspace of calls without one, which refuses everything."""
    denial = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="There is no workspace here.")
    return Workspace("/", lambda *_: denial)


def is_action(value: object) -> TypeGuard[Action]:
    """Return whether the value has a name and a method `execute`."""
    name = getattr(value, "name", None)
    is_named = isinstance(name, str) and name != ""
    return is_named and callable(getattr(value, "execute", None)) and not isinstance(value, type)


def tool_of(action: Action) -> Tool:
    """Return an action as a tool.

    The schema comes from the signature of `execute`, where untyped parameters accept any value, and the description
    from `description` or the docstring.

    Raises:
        TypeError: it has no name, or no schema can be read.
    """
    if isinstance(action, Tool):
        return action
    if not is_action(action):
        raise TypeError("an action needs a name, a text that is not empty, and a method `execute`")

    name = action.name
    execute = action.execute
    texts = (getattr(action, "description", None), inspect.getdoc(execute), type(action).__doc__)
    description = next((text for text in texts if isinstance(text, str) and text), name)
    arguments, run = read_signature(execute, (), ToolContext, untyped=True)
    paths = [field for field in FILE_NAMES if field in arguments.model_fields]

    return Tool(
        name=name,
        description=" ".join(inspect.cleandoc(description).partition("\n\n")[0].split()),
        arguments=arguments,
        effect=declared_effect(action) or effect_by_name(name),
        run=run,
        path_fields=tuple(paths) if name in READING | WRITING else (),
    )


class ActionRegistry:
    """The actions of a run by name, as tools."""

    def __init__(self, actions: Iterable[Action] = (), validators: Mapping[str, Validator] | None = None) -> None:
        """`validators` check and normalise the arguments of single actions, after their schema.

        Raises:
            ValueError: two actions have one name, or a validator is for none of them.
        """
        self._tools: dict[str, Tool] = {}
        self._validators = dict(validators or {})
        for action in actions:
            self.register(action)

        for name in self._validators.keys() - self._tools.keys():
            raise ValueError(f"A validator is for the action {name!r}, which is not registered.")

    def register(self, action: Action) -> Tool:
        """Add an action, and return it as a tool.

        Raises:
            TypeError: it has no name, or no schema can be read.
            ValueError: the name is taken.
        """
        registered = tool_of(action)
        if registered.name in self._tools:
            raise ValueError(f"Two tools are called {registered.name!r}: rename one of them.")

        self._tools[registered.name] = registered
        return registered

    def get(self, name: str) -> Tool | None:
        """Return the tool with this name, or None."""
        return self._tools.get(name)

    def names(self) -> frozenset[str]:
        """Return all names."""
        return frozenset(self._tools)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the descriptions of the tools in the order of registration."""
        return tuple([tool.spec for tool in self._tools.values()])

    def validate(self, name: str, arguments: JsonMap) -> JsonMap | list[str]:
        """Return the arguments in canonical form, or one sentence for each mistake."""
        registered = self._tools.get(name)
        if registered is None:
            return [f"unknown tool {name!r}"]

        checked = registered.validate(arguments)
        validator = self._validators.get(name)
        if validator is None or isinstance(checked, list):
            return checked

        try:
            normalised = validator(dict(checked))
        except Exception as error:  # noqa: BLE001 - a user's validator may fail in any way, and none ends the run
            return [str(error) or type(error).__name__]

        if not isinstance(normalised, Mapping):
            return [f"the validator of {name} gave back {type(normalised).__name__} and no arguments"]

        return registered.validate(dict(normalised))

    def normalised(self, name: str, arguments: Mapping[str, Any]) -> JsonMap:
        """Return the arguments after schema and validator of the action; unchanged if it has no validator.

        Raises:
            ValueError: they are refused.
        """
        if name not in self._validators:
            return dict(arguments)
        checked = self.validate(name, dict(arguments))
        if isinstance(checked, list):
            raise ValueError("; ".join(checked))  # noqa: TRY004 - it is the arguments that are wrong
        return checked


# --- How the arguments look to a model: a plain JSON schema, and plain sentences for errors


MOST_ERRORS = 10
_NAMES = AliasChoices(*PATH_NAMES)


class ToolArguments(BaseModel):
    """The base class of a tool's arguments: frozen, without unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=shorten)


FilePath: TypeAlias = Annotated[
    str, Field(validation_alias=_NAMES, description="Workspace-relative path under the project root.")
]
FolderPath: TypeAlias = Annotated[
    str, Field(validation_alias=_NAMES, description="Directory under the project root (use `.` for root).")
]
"""Both descriptions are spec 2's, section "Tool Schema Updates"."""


def argument_schema(model: type[BaseModel]) -> JsonMap:
    """Return the JSON schema of the arguments without titles and references, closed unless extras are allowed.

    Raises:
        ValueError: it is too large.
    """
    schema = bounded_schema(plain_schema(model.model_json_schema(by_alias=False)))
    schema.pop("description", None)
    schema.setdefault("properties", {})
    schema.setdefault("additionalProperties", model.model_config.get("extra") == "allow")

    return schema


def describe_errors(error: ValidationError, names: Sequence[str], *, but: Collection[str] = ()) -> list[str]:
    """Return one sentence for each mistake; `names` are the tool's arguments, those in `but` are skipped."""
    sentences: list[str] = []

    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        location = problem["loc"]
        if not location or location[0] not in but:
            sentences.append(_sentence(problem["type"], location, problem["msg"], names))

    return sentences[:MOST_ERRORS]


def values_without_json_form(arguments: JsonMap) -> list[str]:
    """Return one sentence for each argument without a JSON form: lone surrogates, integers beyond 64 bits."""
    sentences: list[str] = []

    for name, value in arguments.items():
        try:
            orjson.dumps(value)
        except TypeError as error:
            message = str(error)
            sentences.append(f"{name}: {message[:1].lower()}{message[1:]}")

    return sentences


def _sentence(kind: str, location: Sequence[int | str], message: str, names: Sequence[str]) -> str:
    where = ".".join(map(str, location)) or "arguments"
    if kind == "missing":
        return f"{where}: field required"
    if kind != "extra_forbidden":
        return f"{where}: {message[:1].lower()}{message[1:]}"
    if len(location) != 1:
        return f"{where}: unknown argument"

    meant = closest_names(str(location[0]), names, limit=1)
    if meant:
        remedy = f", did you mean {meant[0]!r}?"
    else:
        remedy = f" (known: {', '.join(names) or 'none'})"

    return f"{where}: unknown argument{remedy}"


class OpenArguments(BaseModel):
    """Arguments with any names, in `model_extra`, for a tool whose server checks them."""

    model_config = ConfigDict(frozen=True, extra="allow")


def unavailable_tool(name: str, problem: str, executes: tuple[str, ...] = ()) -> Tool:
    """Return a tool whose description and results say why it cannot be used."""
    error = ToolError(code=ToolErrorCode.UNAVAILABLE, message=problem)
    return Tool(
        name=name,
        description=f"Not available. {problem}",
        arguments=OpenArguments,
        effect=Effect.NONE,
        run=lambda _context, _arguments: error,
        executes=executes,
    )
