import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, strategies
from pydantic import BaseModel, Field

from mendgraph.nodes.execute_tools.argument_schema import argument_schema
from mendgraph.nodes.execute_tools.registry import Signature, ToolContext, read_signature


class Context(ToolContext):
    """Stands for the engine's."""

    name = "context"

    def __init__(self) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context)

    def __hash__(self) -> int:
        return 0


class Point(BaseModel):
    x: int
    y: int = 0


def read(function: Callable[..., Any], path_fields: tuple[str, ...] = ()) -> Signature:
    return read_signature(function, path_fields)


def called(function: Callable[..., Any], **arguments: Any) -> Any:
    """What the function gives back for these arguments, as a model would write them."""
    signature = read(function, ("path",))
    return signature.run(Context(), signature.arguments.model_validate(arguments))


def test_each_parameter_is_an_argument() -> None:
    def show(
        context: Context,
        path: str,
        limit: Annotated[int, Field(ge=1, description="Lines.")] = 5,
        encoding: Annotated[Literal["utf-8", "latin-1"], "How it is written."] = "utf-8",
        names: tuple[str, ...] = (),
    ) -> None:
        raise NotImplementedError

    assert argument_schema(read(show).arguments) == {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1, "description": "Lines.", "default": 5},
            "encoding": {
                "type": "string",
                "enum": ["utf-8", "latin-1"],
                "description": "How it is written.",
                "default": "utf-8",
            },
            "names": {"type": "array", "items": {"type": "string"}, "default": []},
        },
        "required": ["path"],
        "additionalProperties": False,
    }


def _first(context: Context, a: int) -> object:
    return context.name, a


def _last(a: int, context: Context) -> object:
    return context.name, a


def _keyword(a: int, *, where: Annotated[Context, "it"]) -> object:
    return where.name, a


def _positional(a: int, context: Context, /) -> object:
    return context.name, a


def _default(a: int = Field(description="A number.")) -> object:
    return "context", a


@pytest.mark.parametrize("function", [_first, _last, _keyword, _positional, _default])
def test_the_context_is_found_by_its_type_wherever_it_stands(function: Callable[..., Any]) -> None:
    assert called(function, a=1) == ("context", 1)


def test_a_function_may_do_without_a_context() -> None:
    def double(a: int) -> int:
        return 2 * a

    def nothing() -> str:
        return "nothing"

    assert (called(double, a=2), called(nothing)) == (4, "nothing")


def test_a_coroutine_function_stays_one() -> None:
    async def double(a: int, context: Context) -> object:
        return 2 * a, context.name

    signature = read(double)
    assert inspect.iscoroutinefunction(inspect.unwrap(signature.run))
    assert asyncio.run(signature.run(Context(), signature.arguments(a=2))) == (4, "context")


def _model_last(context: Context, point: Point) -> object:
    return context, point.x


def _model_first(point: Point, context: Context) -> object:
    return context, point.x


def _model_alone(point: Point) -> object:
    return Context(), point.x


def _untyped(context: Any, point: Point) -> object:
    return context, point.x


def _unannotated(context, point: Point) -> object:  # type: ignore[no-untyped-def]  # noqa: ANN001 - today's form
    return context, point.x


@pytest.mark.parametrize("function", [_model_last, _model_first, _model_alone, _untyped, _unannotated])
def test_a_single_model_stands_for_all_arguments(function: Callable[..., Any]) -> None:
    signature = read(function)
    assert signature.arguments is Point
    assert signature.run(Context(), Point(x=1)) == (Context(), 1)


def _extras(context: Context, path: str = "", **rest: Any) -> object:
    assert context == Context()
    return path, rest


def test_extras_need_no_type_and_those_that_have_one_are_checked() -> None:
    def untyped(ctx, x: int = 0, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN003, ANN202 - spec 5's form
        return ctx, x, kwargs

    def typed(**rest: int) -> object:
        return rest

    assert called(untyped, x="1", other=[2]) == (Context(), 1, {"other": [2]})
    assert argument_schema(read(untyped).arguments)["additionalProperties"] is True
    assert called(typed, a="1", b=2) == {"a": 1, "b": 2}
    assert argument_schema(read(typed).arguments)["additionalProperties"] == {"type": "integer"}
    with pytest.raises(ValueError, match="valid integer"):
        called(typed, a="many")


def test_an_extra_argument_cannot_take_the_place_of_the_context() -> None:
    with pytest.raises(ValueError, match="'context' cannot be given"):
        called(_extras, context="forged")


@pytest.mark.parametrize("name", ["path", "filename", "file_name"])
def test_a_path_may_be_called_by_each_of_its_names(name: str) -> None:
    assert called(_extras, **{name: "a.py"}) == ("a.py", {})


def test_another_argument_keeps_its_name_beside_a_path() -> None:
    def rename(path: str, filename: str) -> object:
        return path, filename

    assert called(rename, path="a", filename="b") == ("a", "b")
    assert called(rename, file_name="a", filename="b") == ("a", "b")


def test_names_of_pydantic_that_nobody_needs_are_free() -> None:
    def odd(json: str, copy: int, schema: str, model_dumps: str) -> object:
        return json, copy, schema, model_dumps

    given_values = {"json": "a", "copy": 1, "schema": "b", "model_dumps": "c"}
    assert called(odd, **given_values) == ("a", 1, "b", "c")
    assert read(odd).arguments.model_validate(given_values).model_dump() == given_values


def test_a_method_is_a_function_without_its_self() -> None:
    class Counter:
        def up(self, by: int) -> int:
            return by + 1

    assert called(Counter().up, by=2) == 3


# --- What is refused


def _no_type(x) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - the mistake
    raise NotImplementedError


def _many(*names: str) -> None:
    raise NotImplementedError


def _private(_x: int) -> None:
    raise NotImplementedError


def _reserved(model_dump: int) -> None:
    raise NotImplementedError


def _implicit(x: int = None) -> None:  # type: ignore[assignment]  # noqa: RUF013 - the mistake
    raise NotImplementedError


def _foreign(thread: threading.Thread) -> None:
    raise NotImplementedError


def _callback(call: Callable[[], int]) -> None:
    raise NotImplementedError


def _unreadable(x: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821 - the mistake
    raise NotImplementedError


def _twice(a: Context, b: Context) -> None:
    raise NotImplementedError


def _yields(x: int) -> Iterator[int]:
    yield x


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (Point, "is no function: write one that calls it."),
        (_no_type, "has the parameter 'x' without a type: write `x: str`, or what it is."),
        (_many, "takes *names, which no schema can name: write `names: list[str]` instead."),
        (_private, "has a parameter '_x', a name that pydantic keeps for itself: choose another."),
        (_reserved, "has a parameter 'model_dump', a name that pydantic keeps for itself: choose another."),
        (_implicit, "has a default for 'x' that is not of its type: write `x: ... | None = None`."),
        (
            _unreadable,
            "has an annotation that cannot be read (name 'Nowhere' is not defined): import what it names at run time.",
        ),
        (_twice, "takes the context twice, as a and b: leave one of them."),
        (_yields, "yields its values, and a call has one result: return a list."),
    ],
)
def test_a_signature_that_says_too_little_is_refused_with_the_remedy(
    function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(TypeError) as caught:
        read(function)
    assert str(caught.value) == f"The tool {function.__name__!r} {message}"


@pytest.mark.parametrize(("function", "name"), [(_foreign, "thread"), (_callback, "call")])
def test_a_type_that_has_no_json_schema_is_refused(function: Callable[..., Any], name: str) -> None:
    message = f"The tool {function.__name__!r} has the parameter {name!r} of a type without a JSON schema: "
    with pytest.raises(TypeError, match=message):
        read(function)


def _total(a: int, b: float = 0.5, c: str | None = None, d: tuple[int, ...] = ()) -> object:
    return a, b, c, d


@given(
    strategies.integers(-(2**63), 2**63 - 1),
    strategies.floats(allow_nan=False, allow_infinity=False),
    strategies.none() | strategies.text(strategies.characters(exclude_categories=["Cs"])),
    strategies.lists(strategies.integers()),
)
def test_whatever_fits_the_types_arrives_as_it_is(a: int, b: float, c: str | None, d: list[int]) -> None:
    assert called(_total, a=a, b=b, c=c, d=d) == (a, b, c, tuple(d))
