"""The model of a tool's arguments from the signature of its function."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, create_model

PATH_NAMES = ("path", "filename", "file_name")
"""Models use all three names for the path of a file. Source: specs 1 and 4."""


def read_signature(
    function: Callable[..., Any], path_fields: tuple[str, ...], context_type: type[Any], *, untyped: bool = False
) -> tuple[type[BaseModel], Callable[[Any, Any], Any]]:
    """Return the model of a function's arguments, and the function as `run(context, arguments)`.

    The parameter that is annotated with `context_type`, or an untyped first one, receives the context. A single other
    parameter of a pydantic model's type stands for all arguments; otherwise each parameter is an argument. With
    `untyped`, parameters without a type accept any value.

    Raises:
        TypeError: the signature is incomplete; the message names the function and the remedy.
    """
    parameters = inspect.signature(function).parameters

    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:
        raise _refusal(function, f"an annotation that cannot be read ({error}): import it at run time") from error

    context = _context_parameter(parameters, hints, context_type, untyped=untyped)
    if untyped:
        hints = {**dict.fromkeys(parameters, Any), **hints}

    fields: list[inspect.Parameter] = []
    kinds: set[Any] = set()

    for parameter in parameters.values():
        kinds.add(parameter.kind)
        if parameter.name != context and parameter.kind not in _VARIADIC:
            fields.append(parameter)

    extras = inspect.Parameter.VAR_KEYWORD in kinds
    if len(fields) == 1 and not extras and fields[0].default is inspect.Parameter.empty:
        hint = hints.get(fields[0].name)
        if isinstance(hint, type) and issubclass(hint, BaseModel):
            return hint, _called_with_model(function, context, fields[0].name)

    if inspect.Parameter.VAR_POSITIONAL in kinds:
        raise _refusal(function, "a parameter that no schema can name: write `names: list[str]` instead of *names")

    model = _model_of(function, fields, hints, path_fields, extras=extras)
    names = [name for name, parameter in parameters.items() if parameter.kind not in _VARIADIC]

    @wraps(function)
    def run(tool_context: Any, arguments: BaseModel) -> Any:
        values = {**arguments.__dict__, context: tool_context}
        return function(**{name: values[name] for name in names}, **(arguments.model_extra or {}))

    return model, run


def _context_parameter(
    parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any], context_type: type[Any], *, untyped: bool
) -> str:
    """Return the parameter that receives the context, or ""."""
    for name in parameters:
        hint = hints.get(name)
        if get_origin(hint) is Annotated:
            hint = get_args(hint)[0]

        if isinstance(hint, type) and issubclass(hint, context_type):
            return name

    first = next(iter(parameters), "")
    hint = hints.get(first, Any)
    takes_anything = hint is Any or hint is object  # a hint may have no hash
    if not untyped and takes_anything and (first in {"ctx", "context"} or len(parameters) == 2):
        return first  # spec 5's form, `(ctx, ...)`

    return ""


_VARIADIC = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def _refusal(function: Callable[..., Any], reason: str) -> TypeError:
    return TypeError(f"The tool {getattr(function, '__name__', type(function).__name__)!r} has {reason.rstrip('.')}.")


def _model_of(
    function: Callable[..., Any],
    fields: Sequence[inspect.Parameter],
    hints: Mapping[str, Any],
    path_fields: tuple[str, ...],
    *,
    extras: bool,
) -> type[BaseModel]:
    """Return a model with a field for each argument, closed unless the function has `**extras`."""
    definitions: dict[str, Any] = {}

    for field in fields:
        name = field.name
        default = field.default
        if name not in hints:
            raise _refusal(function, f"the parameter {name!r} without a type: write `{name}: str`, or what it is")
        if name.startswith("_") or (name.startswith("model_") and hasattr(BaseModel, name)):
            raise _refusal(function, f"a parameter {name!r}, a name that pydantic keeps for itself: choose another")

        hint = _described(hints[name])
        if default is None:  # `x: int = None` allows None
            hint = hint | None

        if name == PATH_NAMES[0] and name in path_fields:
            names = (name, *(other for other in PATH_NAMES[1:] if other not in hints))
            hint = Annotated[hint, Field(validation_alias=AliasChoices(*names))]

        definitions[name] = (hint, ... if default is inspect.Parameter.empty else default)

    config = ConfigDict(extra="allow" if extras else "forbid", protected_namespaces=(), validate_default=True)
    try:
        with warnings.catch_warnings():
            # A field may have the name of a method of BaseModel that we do not use, such as `json`.
            warnings.filterwarnings("ignore", message="Field name .* shadows an attribute")
            model: type[BaseModel] = create_model(function.__name__, __config__=config, **definitions)

        model.model_json_schema()
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise _refusal(function, f"a parameter of a type without a JSON schema: {reason}") from error

    return model


def _described(hint: Any) -> Any:
    """Return the type with the plain text of `Annotated[str, "what it is"]` as its description."""
    base, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    texts = [note for note in notes if isinstance(note, str)]
    if not texts:
        return hint

    metadata = [note for note in notes if not isinstance(note, str)]
    return Annotated[(base, Field(description=" ".join(texts)), *metadata)]


def _called_with_model(function: Callable[..., Any], context: str, name: str) -> Callable[[Any, Any], Any]:
    if list(inspect.signature(function).parameters) == [context, name]:
        return function

    @wraps(function)
    def run(tool_context: Any, model: BaseModel) -> Any:
        if context:
            return function(**{context: tool_context, name: model})
        return function(**{name: model})

    return run


def context_parameter(execute: Callable[..., Any], context_type: type[Any]) -> str:
    """Return the parameter of an action's method that is annotated with `context_type`, or ""."""
    try:
        hints = inspect.get_annotations(inspect.unwrap(getattr(execute, "__func__", execute)))
    except (TypeError, NameError):  # not a function, or an annotation for type checkers only
        return ""

    for name, hint in hints.items():
        if hint is context_type or f".{hint}".endswith(f".{context_type.__name__}"):
            return name

    return ""
