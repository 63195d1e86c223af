"""The arguments of a tool, read from the signature of its function. Pure."""

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, create_model, model_validator
from pydantic.fields import FieldInfo

from mendgraph.nodes.execute_tools.argument_schema import PATH_NAMES
from mendgraph.nodes.records import JsonMap


@dataclass(frozen=True)
class Signature:
    """What a function takes: the model of its arguments, and the function as `run(context, arguments)`."""

    arguments: type[BaseModel]
    run: Callable[[Any, Any], Any]


def read_signature(function: Callable[..., Any], context_type: type, path_fields: tuple[str, ...]) -> Signature:
    """How a tool's function is called, by its signature.

    The parameter that is annotated with `context_type`, wherever it stands, gets the context. A single other one that
    is annotated with a pydantic model stands for all arguments; otherwise each parameter is an argument.

    Raises:
        TypeError: the signature says too little; the text names the function and the remedy.
    """
    taken = _Parameters(function, context_type, path_fields)
    whole = taken.whole_model()
    if whole is not None:
        return Signature(whole[1], _called_with_model(function, taken.context, whole[0]))
    model = taken.as_model()
    return Signature(model, _called_with_fields(function, taken))


class _Parameters:
    """The parameters of one function, sorted by what they are for."""

    def __init__(self, function: Callable[..., Any], context_type: type, path_fields: tuple[str, ...]) -> None:
        self.function, self.path_fields = function, path_fields
        self.name = getattr(function, "__name__", type(function).__name__)
        if not inspect.isroutine(function):
            self.refuse("is no function: write one that calls it")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            self.refuse("yields its values, and a call has one result: return a list")
        self.all = inspect.signature(function).parameters
        self.hints = self._hints()
        contexts = [name for name in self.all if _is_context(self.hints.get(name), context_type)]
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


def _is_context(hint: Any, context_type: type) -> bool:
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return isinstance(hint, type) and issubclass(hint, context_type)


def _is_variadic(parameter: inspect.Parameter) -> bool:
    return parameter.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def _called_with_model(function: Callable[..., Any], context: str | None, name: str) -> Callable[[Any, Any], Any]:
    names = list(inspect.signature(function).parameters)
    if names == [context, name]:
        return function
    return _as_run(function, lambda given, model: ([{context: given, name: model}[each] for each in names], {}))


def _called_with_fields(function: Callable[..., Any], taken: _Parameters) -> Callable[[Any, Any], Any]:
    ahead = [each.name for each in taken.all.values() if each.kind is inspect.Parameter.POSITIONAL_ONLY]
    behind = [each.name for each in taken.all.values() if each.name not in ahead and not _is_variadic(each)]

    def spread(context: Any, arguments: BaseModel) -> tuple[list[Any], JsonMap]:
        values = {**arguments.__dict__, **({} if taken.context is None else {taken.context: context})}
        named = {name: values[name] for name in behind}
        return [values[name] for name in ahead], {**(arguments.model_extra or {}), **named}

    return _as_run(function, spread)


def _as_run(
    function: Callable[..., Any], spread: Callable[[Any, BaseModel], tuple[list[Any], JsonMap]]
) -> Callable[[Any, Any], Any]:
    """The function as the engine calls it; a coroutine function stays one, since the engine asks."""
    if inspect.iscoroutinefunction(function):

        async def run_async(context: Any, arguments: BaseModel) -> Any:
            args, named = spread(context, arguments)
            return await function(*args, **named)

        return run_async

    def run(context: Any, arguments: BaseModel) -> Any:
        args, named = spread(context, arguments)
        return function(*args, **named)

    return run
