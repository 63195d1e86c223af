"""Which tools there are: a tool is a typed function, and its signature and docstring are its contract.

Its arguments look to a model like a plain JSON schema, and their errors are plain sentences.
"""

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
from mendgraph.nodes.execute_tools.files.deadline import CancellationScope
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.signatures import PATH_NAMES, read_signature
from mendgraph.nodes.execute_tools.store.run_folder import Artifacts
from mendgraph.nodes.execute_tools.tool_schemas import fitted_schema, plain_schema
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

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers
    from mendgraph.nodes.execute_tools.network.network import Network


class RequestHints(Protocol):
    """What a request asks of a small model, by its words: see `nodes/small_model/request_checks.py`."""

    def moved_names(self) -> Collection[str]:
        """The definitions that the request moves from one file to another."""

    def unfinished_requests(self, texts: Mapping[str, str]) -> list[str]:
        """What the request asks for and these files do not show, in sentences."""

    def tests_of_request(
        self, already: Collection[str], now: RanTests, before: RanTests, defined: Collection[str]
    ) -> Collection[str]:
        """Of the tests that failed `already` before the turn, those that the request is to make pass."""

    def left_undone(self, changed: Collection[str], exists: Callable[[str], bool]) -> str:
        """The changes that the request surely needs and the `changed` files do not show, "" for none."""


@dataclass(frozen=True)
class ToolContext:
    """What a tool may use while it runs.

    Attributes:
        workspace: the files; a tool whose effect is no change gets a workspace that refuses to write.
        files_read: workspace-relative paths, with the SHA-256 that this thread last read or wrote there.
        plan: the plan of the run.
        timeout_s: wall time in seconds that one call may take.
        seconds_left: wall time in seconds that the turn has for all calls that are to come.
        artifacts: where a result that is too long is stored, for `read_file`.
        commands: what runs programs; None where the run may use none, or the error that says why.
        network: None where the run may use none.
        idempotency_key: the same whenever the same call of the same step is made again.
        scope: the call's right to change something; None where nothing ends it.
        syntax_gate: what becomes of an edit after which a file does not parse that did so before.
        task: the last request of the person where the model is small, "" for every other model.
        hints: what a small model has to do by the words of `task`.
        foreign: the lines of the prompt's examples, of which an edit may add none.
        evidence_required: whether an edit is refused that the task or the examples of the file contradict.
        checks: what shows whether the code is right; None where nothing may be run, or the error that says why.
        changes: the changes of this turn so far.
        session_start: gives the hashes of files that the session has changed, as they were before its first change; ""
            for new ones.
        backup: gives the bytes with such a hash, None where they were not stored.
        max_lines: the most lines of a page of a file.
        call_id: the id of the call.
        state: the state of the run, to be read.
        skill: gives the folder of one of the user's skills by its name, None where a run has none.
        remember: stores a note for later runs and returns it as it is stored, None where a run has none.
        servers: the MCP servers that the session runs.
    """

    workspace: Workspace
    files_read: Mapping[str, str] = field(default_factory=dict)
    plan: Plan = field(default_factory=Plan)
    timeout_s: float = 30.0
    seconds_left: float = inf
    artifacts: Artifacts | None = None
    commands: Commands | ToolError | None = None
    network: "Network | None" = None
    idempotency_key: str = ""
    scope: CancellationScope | None = None
    syntax_gate: Literal["off", "report", "refuse"] = "report"
    task: str = ""
    hints: RequestHints | None = None
    foreign: frozenset[str] = frozenset()
    evidence_required: bool = False
    checks: Checks | ToolError | None = None
    changes: Sequence[FileChange] = ()
    session_start: Callable[[], Mapping[str, str]] = dict
    backup: Callable[[str], bytes | None] = lambda _: None
    max_lines: int = 500
    call_id: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)
    skill: Callable[[str], Workspace | ToolError] | None = None
    remember: Callable[[str], str | ToolError] | None = None
    servers: "McpServers | None" = None

    @property
    def cancelled(self) -> bool:
        """The call's cancel flag: its time is over, or the run was stopped, and nobody waits for its result."""
        return self.scope is not None and self.scope.over


@dataclass(frozen=True)
class ToolOutput:
    """What a tool gives back: the result for the model, and what it means for the state.

    `files_read` holds the paths that this call read or wrote, with the hash of what is there now; `plan` is the new
    plan, None where the call does not touch it. `blocks` and `artifact` are as in `CallResult`.
    """

    result: ToolResult
    changes: tuple[FileChange, ...] = ()
    files_read: Mapping[str, str] = field(default_factory=dict)
    plan: Plan | None = None
    blocks: tuple[JsonMap, ...] | None = None
    artifact: Any = None

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


class Action(Protocol):
    """What an `Environment` runs: a `Tool`, or any object with these two. It may declare an `effect`.

    A parameter of `execute` that is annotated with ToolContext gets the context of the call, with its cancel flag.
    """

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def execute(self) -> Callable[..., Any]:
        """The method that does it, sync or async. Whatever it raises becomes an error of the result."""


Validator = Callable[[JsonMap], JsonMap]
"""Takes the arguments of one action and gives them back, checked and normalised; raises to refuse them."""


class ActionError(RuntimeError):
    """An action came to no value: it was refused, or failed by a typed error. `kind` is the result's `error_type`."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


def action_value(output: object) -> object:
    """What a caller in Python gets of a tool's output: the data of its result, or its error."""
    if isinstance(output, ToolOutput):
        output = output.result

    if not isinstance(output, ToolResult):
        return output

    return output.data if output.error is None else output.error


@dataclass(frozen=True)
class Tool:
    """A tool as the engine runs it. `cacheable` results may be given again while the workspace is unchanged.

    `run` gives back a ToolOutput, or what `tool_run.plain_output` makes one of. `self_timed` tools keep their time by
    themselves; the engine steps in only where they fail to. `one_change` says that all that a call does is one change
    of files, at its end. `remote` ones ask a server, as those with the effect NETWORK do: a circuit breaker counts when
    it does not answer. `paths_of` names the workspace paths that stand inside an argument, such as a patch, for guard.
    A call of a `child` tool is a run of its own: the machine makes it, beside those of the calls around it.
    `executes` are absolute names of files that its calls execute outside of the sandbox, which no run may change.
    `schema` is shown to the model instead of that of `arguments`. Runs in an event loop await `arun` in place of `run`.
    The rest is as in `ToolSpec`.
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
    executes: tuple[str, ...] = ()

    @cached_property
    def spec(self) -> ToolSpec:
        """What the other packages know of this tool."""
        fields = {name: getattr(self, name) for name in ToolSpec.model_fields if name != "parameters"}
        return ToolSpec(parameters=self.schema or argument_schema(self.arguments), **fields)

    @cached_property
    def asynchronous(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(inspect.unwrap(self.run))

    def validate(self, arguments: JsonMap) -> JsonMap | list[str]:
        """The arguments under their own names, typed and with defaults, or what is wrong with them.

        Unknown arguments are errors unless the schema allows extras. Source: specs 3 and 5, reconciled.
        """
        try:
            canonical = self._parse(arguments).model_dump(mode="json")
        except ValidationError as error:
            return describe_errors(error, [*self.arguments.model_fields])
        except Exception as error:  # noqa: BLE001 - a user's validator may fail in any way, and none ends the run
            return [f"the arguments could not be checked ({type(error).__name__}: {error})"]

        return values_without_json_form(canonical) or canonical

    def execute(self, /, **arguments: Any) -> Any:
        """Run as spec 4's action, without a workspace: the data of the result, or what else the function gives back.

        Raises:
            ValueError: the arguments do not fit.
            ActionError: the tool gave back an error.
        """
        value = action_value(self.s(ToolContext(no_workspace()), **arguments))
        if isinstance(value, ToolError):
            raise ActionError(value.message, value.code.value)

        return value

    def s(self, context: ToolContext, /, **arguments: Any) -> Any:
        """Run in this thread. A coroutine function gets a loop of its own, so it fails inside a running one."""
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
        """The arguments with their own types, which nothing iterates that the schema does not; else ValueError."""
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
    """A tool may give back an error as it is."""
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
    """Make a tool of a typed function, sync or async: `@tool(effect=Effect.READ)`, or `tool(function, effect=...)`.

    Each parameter is an argument; `Annotated[str, "what it is"]` describes it to the model, and `**extras: Any` takes
    unknown ones. A parameter of type ToolContext, wherever it stands, gets the context. A single parameter of a
    pydantic model's type stands for all arguments. The name is the function's unless `name` is given, the description
    the first paragraph of its docstring. The other `options` are fields of `Tool`. Tools that only read the workspace
    are cacheable by default.

    Raises:
        TypeError: no effect is given (it is never guessed), or the signature says too little.
        ValueError: there is no docstring.
    """
    if not isinstance(effect, Effect):
        effects = ", ".join(f"Effect.{member.name}" for member in Effect)
        raise TypeError(f"A tool has to say its effect, as in @tool(effect=Effect.READ); there are {effects}.")

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
    """For tools that run without one: nothing in it may be used."""
    denial = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="There is no workspace here.")
    return Workspace("/", lambda *_: denial)


def is_action(value: object) -> TypeGuard[Action]:
    """Whether this is an object with a name and a method `execute`."""
    if isinstance(value, type):
        return False

    name = getattr(value, "name", None)
    return isinstance(name, str) and name != "" and callable(getattr(value, "execute", None))


def tool_of(action: Action) -> Tool:
    """The tool that an action is.

    Its schema is read from the signature of `execute`, whose untyped parameters take any value, its description from
    its `description` or its docstring.

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
    """The actions of a run by name, each as a tool."""

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
        """Add an action; gives the tool that `get` returns for its name.

        Raises:
            TypeError: it has no name, or no schema can be read.
            ValueError: there is one of this name.
        """
        registered = tool_of(action)
        if registered.name in self._tools:
            raise ValueError(f"Two tools are called {registered.name!r}: give one of them another name.")

        self._tools[registered.name] = registered
        return registered

    def get(self, name: str) -> Tool | None:
        """The tool of this name, or None."""
        return self._tools.get(name)

    def names(self) -> frozenset[str]:
        """All names."""
        return frozenset(self._tools)

    def specs(self) -> tuple[ToolSpec, ...]:
        """What the other packages know of the tools, in the order of registration."""
        return tuple(tool.spec for tool in self._tools.values())

    def validate(self, name: str, arguments: JsonMap) -> JsonMap | list[str]:
        """The arguments in canonical form, or one short sentence for each thing that is wrong with them."""
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
        """The arguments as the action's validator gives them, after its schema; as they are where it has none.

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


MOST_ERRORS = 10  # more sentences than this do not help anybody to repair a call
_NAMES = AliasChoices(*PATH_NAMES)
_SELF_EVIDENT = ("minimum", "minLength", "maxLength", "maxItems")
"""Bounds that no model crosses in earnest: they are checked, but not worth their tokens in each prompt."""


def _shorten(schema: JsonMap) -> None:
    """Remove from a schema what tells a model nothing: such bounds, and defaults like false, 0 and null."""
    for argument in schema.get("properties", {}).values():
        for bound in _SELF_EVIDENT:
            argument.pop(bound, None)

        if not argument.get("default"):
            argument.pop("default", None)


class ToolArguments(BaseModel):
    """The arguments of one call: frozen, and closed to unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_shorten)


FilePath: TypeAlias = Annotated[
    str, Field(validation_alias=_NAMES, description="Workspace-relative path under the project root.")
]
FolderPath: TypeAlias = Annotated[
    str, Field(validation_alias=_NAMES, description="Directory under the project root (use `.` for root).")
]
"""Both descriptions are spec 2's, section "Tool Schema Updates"."""


def argument_schema(model: type[BaseModel]) -> JsonMap:
    """The JSON schema of the arguments, without titles and references, closed unless the model allows extras.

    Raises:
        ValueError: `fitted_schema` cannot make it small enough.
    """
    schema = fitted_schema(plain_schema(model.model_json_schema(by_alias=False)))
    schema.pop("description", None)
    schema.setdefault("properties", {})
    schema.setdefault("additionalProperties", model.model_config.get("extra") == "allow")

    return schema


def describe_errors(error: ValidationError, names: Sequence[str], *, but: Collection[str] = ()) -> list[str]:
    """One sentence for each mistake: its place, and what is valid there.

    `names` are the arguments of the tool; mistakes in those of `but` are left out.
    """
    sentences: list[str] = []

    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        location = problem["loc"]
        if not location or location[0] not in but:
            sentences.append(_sentence(problem["type"], location, problem["msg"], names))

    return sentences[:MOST_ERRORS]


def values_without_json_form(arguments: JsonMap) -> list[str]:
    """One sentence for each argument that no file or checkpoint can hold: lone surrogates, integers beyond 64 bits."""
    sentences: list[str] = []

    for name, value in arguments.items():
        try:
            orjson.dumps(value)
        except TypeError as error:
            sentences.append(f"{name}: {_lowered(str(error))}")

    return sentences


def _sentence(kind: str, location: Sequence[int | str], message: str, names: Sequence[str]) -> str:
    where = ".".join(map(str, location)) or "arguments"
    if kind == "missing":
        return f"{where}: field required"
    if kind != "extra_forbidden":
        return f"{where}: {_lowered(message)}"
    if len(location) != 1:
        return f"{where}: unknown argument"

    meant = closest_names(str(location[0]), names, limit=1)
    if meant:
        remedy = f", did you mean {meant[0]!r}?"
    else:
        remedy = f" (known: {', '.join(names) or 'none'})"

    return f"{where}: unknown argument{remedy}"


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


class OpenArguments(BaseModel):
    """Takes any names: the model of a tool whose server checks its arguments. The values are its `model_extra`."""

    model_config = ConfigDict(frozen=True, extra="allow")


def unavailable_tool(name: str, problem: str, executes: tuple[str, ...] = ()) -> Tool:
    """A tool that only says why it cannot be used, to the model and as the result of each call."""
    error = ToolError(code=ToolErrorCode.UNAVAILABLE, message=problem)
    return Tool(
        name=name,
        description=f"Not available. {problem}",
        arguments=OpenArguments,
        effect=Effect.NONE,
        run=lambda _context, _arguments: error,
        executes=executes,
    )
