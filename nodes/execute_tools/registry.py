"""Which tools there are: a tool is a typed function, and its signature and docstring are its contract."""

import asyncio
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from math import inf
from typing import (
    Annotated,
    Any,
    Literal,
    NoReturn,
    TypeAlias,
    TypedDict,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo

from mendgraph.nodes.execute_tools.argument_schema import (
    PATH_NAMES,
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
    themselves; the engine steps in only where they fail to. `one_change` says that all that a call does is one change
    of files, at its end. `remote` ones ask a server, as those with the effect NETWORK do: a circuit breaker counts when
    it does not answer. `paths_of` names the workspace paths that stand inside an argument, such as a patch, for guard.
    Where there is a `schema`, it describes and checks the arguments, and the model may be open. The rest is as in
    `ToolSpec`.

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
    one_change: bool = False
    remote: bool = False
    paths_of: Callable[[JsonMap], list[str]] | None = None
    schema: JsonMap | None = field(default=None, hash=False)
    edit_forms: tuple[EditForm, ...] = ()
    seldom_in: tuple[EditForm, ...] = ()
    offered: bool = True

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
        )

    @cached_property
    def asynchronous(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(inspect.unwrap(self.run))

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
    one_change: bool
    paths_of: Callable[[JsonMap], list[str]] | None
    edit_forms: tuple[EditForm, ...]
    seldom_in: tuple[EditForm, ...]
    offered: bool


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
    signature = read_signature(function, path_fields)
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


def _first_paragraph(function: Callable[..., Any]) -> str:
    lines = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0]
    if not lines:
        raise ValueError(f"The tool {function.__name__!r} has no docstring: the model reads it as the description.")
    return " ".join(lines.split())


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


# --- The arguments of a tool, read from the signature of its function


@dataclass(frozen=True)
class Signature:
    """What a function takes: the model of its arguments, and the function as `run(context, arguments)`."""

    arguments: type[BaseModel]
    run: Callable[[Any, Any], Any]


def read_signature(function: Callable[..., Any], path_fields: tuple[str, ...]) -> Signature:
    """How a tool's function is called, by its signature.

    The parameter that is annotated with ToolContext, wherever it stands, gets the context. A single other one that
    is annotated with a pydantic model stands for all arguments; otherwise each parameter is an argument.

    Raises:
        TypeError: the signature says too little; the text names the function and the remedy.
    """
    taken = _Parameters(function, path_fields)
    whole = taken.whole_model()
    if whole is not None:
        return Signature(whole[1], _called_with_model(function, taken.context, whole[0]))
    model = taken.as_model()
    return Signature(model, _called_with_fields(function, taken))


class _Parameters:
    """The parameters of one function, sorted by what they are for."""

    def __init__(self, function: Callable[..., Any], path_fields: tuple[str, ...]) -> None:
        self.function, self.path_fields = function, path_fields
        self.name = getattr(function, "__name__", type(function).__name__)
        if not inspect.isroutine(function):
            self.refuse("is no function: write one that calls it")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            self.refuse("yields its values, and a call has one result: return a list")
        self.all = inspect.signature(function).parameters
        self.hints = self._hints()
        contexts = [name for name in self.all if _is_context(self.hints.get(name))]
        if not contexts and self._is_untyped_context():
            contexts = [next(iter(self.all))]
        if len(contexts) > 1:
            self.refuse(f"takes the context twice, as {' and '.join(contexts)}: leave one of them")
        self.context = contexts[0] if contexts else None
        self.fields = [each for each in self.all.values() if each.name != self.context and not _is_variadic(each)]
        self.takes_extras, self.extras_type = self._extras()

    def refuse(self, reason: str) -> NoReturn:
        """Raise the error of the decorator."""
        raise TypeError(f"The tool {self.name!r} {reason.rstrip('.')}.")

    def whole_model(self) -> tuple[str, type[BaseModel]] | None:
        """The one parameter that stands for all arguments, and its model."""
        if len(self.fields) != 1 or self.takes_extras or self.fields[0].default is not inspect.Parameter.empty:
            return None
        name = self.fields[0].name
        hint = self.hints.get(name)
        return (name, hint) if isinstance(hint, type) and issubclass(hint, BaseModel) else None

    def as_model(self) -> type[BaseModel]:
        """A model with a field for each argument, closed unless the function takes `**extras`."""
        definitions: dict[str, Any] = {each.name: self._field(each) for each in self.fields}
        if self.extras_type is not Any:
            definitions["__pydantic_extra__"] = (dict[str, self.extras_type], ...)  # type: ignore[name-defined]
        extra: Literal["allow", "forbid"] = "allow" if self.takes_extras else "forbid"
        config = ConfigDict(extra=extra, protected_namespaces=(), validate_default=True)
        context = self.context

        def without_context(cls: type[BaseModel], values: Any) -> Any:  # noqa: ARG001 - pydantic looks for the name
            if isinstance(values, dict) and context in values:
                raise ValueError(f"{context!r} cannot be given")
            return values

        validators: dict[str, Any] = {}
        if self.takes_extras and context is not None:
            validators["without_context"] = model_validator(mode="before")(without_context)
        with warnings.catch_warnings():
            # A field may be called like a method of pydantic's models that we do not use, such as `json`.
            warnings.filterwarnings("ignore", message="Field name .* shadows an attribute")
            return create_model(self.name, __config__=config, __validators__=validators, **definitions)

    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(self.function, include_extras=True)
        except Exception as error:  # noqa: BLE001 - an annotation is any expression
            self.refuse(f"has an annotation that cannot be read ({error}): import what it names at run time")

    def _is_untyped_context(self) -> bool:
        """Whether it is `(ctx, ...)`, spec 5's form, or `(anything, arguments: SomeModel)`: no type is needed."""
        names = list(self.all)
        if names and names[0] in {"ctx", "context"} and names[0] not in self.hints:
            return True
        if len(names) != 2 or self.hints.get(names[0], Any) not in {Any, object}:
            return False
        model = self.hints.get(names[1])
        return isinstance(model, type) and issubclass(model, BaseModel)

    def _extras(self) -> tuple[bool, Any]:
        """Whether the function takes `**extras`, and of which type each of them has to be."""
        for each in self.all.values():
            if each.kind is inspect.Parameter.VAR_POSITIONAL:
                self.refuse(f"takes *{each.name}, which no schema can name: write `{each.name}: list[str]` instead")
            if each.kind is inspect.Parameter.VAR_KEYWORD:
                hint = self.hints.get(each.name, Any)
                self._check_type(each.name, hint, inspect.Parameter.empty)
                return True, hint
        return False, Any

    def _field(self, parameter: inspect.Parameter) -> tuple[Any, Any]:
        """The type and default of one argument, as `create_model` takes them."""
        name, default = parameter.name, parameter.default
        if name not in self.hints:
            self.refuse(f"has the parameter {name!r} without a type: write `{name}: str`, or what it is")
        if name.startswith("_") or (name.startswith("model_") and hasattr(BaseModel, name)):
            self.refuse(f"has a parameter {name!r}, a name that pydantic keeps for itself: choose another")
        hint = _described(self.hints[name])
        self._check_type(name, hint, default)
        if name == PATH_NAMES[0] and name in self.path_fields:
            names = (name, *(each for each in PATH_NAMES[1:] if each not in self.all))
            hint = Annotated[hint, Field(validation_alias=AliasChoices(*names))]
        return hint, ... if default is inspect.Parameter.empty else default

    def _check_type(self, name: str, hint: Any, default: Any) -> None:
        try:
            known = TypeAdapter(hint)
            known.json_schema()
        except Exception as error:  # noqa: BLE001 - pydantic has many ways to say that it does not know a type
            reason = str(error).partition("\n")[0].partition(". ")[0]
            self.refuse(f"has the parameter {name!r} of a type without a JSON schema: {reason}")
        if default is inspect.Parameter.empty or isinstance(default, FieldInfo):
            return
        try:
            known.validate_python(default)
        except ValueError:
            self.refuse(f"has a default for {name!r} that is not of its type: write `{name}: ... | None = None`")


def _described(hint: Any) -> Any:
    """The type with a plain text beside it, as in `Annotated[str, "what it is"]`, as its description."""
    if get_origin(hint) is not Annotated:
        return hint
    base, *notes = get_args(hint)
    texts = [note for note in notes if isinstance(note, str)]
    if not texts:
        return hint
    rest = [note for note in notes if not isinstance(note, str)]
    return Annotated[(base, Field(description=" ".join(texts)), *rest)]


def _is_context(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return isinstance(hint, type) and issubclass(hint, ToolContext)


def _is_variadic(parameter: inspect.Parameter) -> bool:
    return parameter.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def _called_with_model(function: Callable[..., Any], context: str | None, name: str) -> Callable[[Any, Any], Any]:
    names = list(inspect.signature(function).parameters)
    if names == [context, name]:
        return function

    @wraps(function)
    def run(given: Any, model: BaseModel) -> Any:
        return function(*({context: given, name: model}[each] for each in names))

    return run


def _called_with_fields(function: Callable[..., Any], taken: _Parameters) -> Callable[[Any, Any], Any]:
    ahead = [each.name for each in taken.all.values() if each.kind is inspect.Parameter.POSITIONAL_ONLY]
    behind = [each.name for each in taken.all.values() if each.name not in ahead and not _is_variadic(each)]

    @wraps(function)
    def run(context: Any, arguments: BaseModel) -> Any:
        values = {**arguments.__dict__, **({} if taken.context is None else {taken.context: context})}
        named = {name: values[name] for name in behind}
        return function(*(values[name] for name in ahead), **(arguments.model_extra or {}), **named)

    return run
