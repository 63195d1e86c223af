import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator

from mendgraph.nodes.execute_tools.registry import ActionRegistry, ToolContext, ToolOutput, argument_schema, tool
from mendgraph.nodes.execute_tools.signatures import read_signature
from mendgraph.nodes.records import Effect, JsonMap, ToolError, ToolSpec
from mendgraph.nodes.workspace.files.workspace import Workspace
from tests.row_tables import rows


class PathArguments(BaseModel):
    path: str = Field(validation_alias=AliasChoices("path", "filename", "file_name"))
    limit: int = 5


class OpenArguments(BaseModel):
    model_config = ConfigDict(extra="allow")

    x: int


@tool(effect=Effect.READ, path_fields=("path",))
def show(context: ToolContext, arguments: PathArguments) -> ToolOutput:
    """Shows a file,
    or a part of it.

    More for programmers.
    """
    return ToolOutput.ok(path=arguments.path, limit=arguments.limit, timeout=context.timeout_s)


@tool(effect=Effect.NONE, name="open_ended")
def _open_ended(_: ToolContext, arguments: OpenArguments) -> ToolOutput:
    """Takes what it is given."""
    return ToolOutput.ok(**arguments.model_dump())


@tool(effect=Effect.WRITE, terminal=True)
async def later(_: ToolContext, arguments: OpenArguments) -> ToolOutput:
    """Answers later."""
    await asyncio.sleep(0)
    return ToolOutput.ok(x=arguments.x)


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(Workspace(str(tmp_path), lambda *_: None))


@pytest.fixture
def registry() -> ActionRegistry:
    return ActionRegistry([show, _open_ended, later])


def test_typed_function_is_a_tool() -> None:
    assert show.spec == ToolSpec(
        name="show",
        description="Shows a file, or a part of it.",
        parameters={
            "type": "object",
            "properties": {"path": {"type": "string"}, "limit": {"type": "integer", "default": 5}},
            "required": ["path"],
            "additionalProperties": False,
        },
        effect=Effect.READ,
        path_fields=("path",),
    )


def test_registry_looks_up_tools_by_name(registry: ActionRegistry) -> None:
    assert registry.get("show") is show
    assert registry.get("nope") is None
    assert registry.names() == {"show", "open_ended", "later"}
    assert registry.specs() == (show.spec, _open_ended.spec, later.spec)


@rows(
    ("show", {"path": "a"}, {"path": "a", "limit": 5}),
    ("show", {"filename": "a", "limit": "7"}, {"path": "a", "limit": 7}),
    ("show", {"file_name": "a"}, {"path": "a", "limit": 5}),
    ("show", {}, ["path: field required"]),
    ("show", {"path": "a", "limt": 1}, ["limt: unknown argument, did you mean 'limit'?"]),
    ("show", {"path": "\ud800"}, ["path: str is not valid UTF-8: surrogates not allowed"]),
    ("open_ended", {"x": "2", "extra": 7}, {"x": 2, "extra": 7}),
    ("nope", {}, ["unknown tool 'nope'"]),
)
def test_arguments_are_normalized_or_described_as_errors(
    name: str, arguments: dict[str, Any], expected: dict[str, Any] | list[str], registry: ActionRegistry
) -> None:
    assert registry.validate(name, arguments) == expected


def test_tool_without_a_docstring_is_refused() -> None:
    def mute(context: ToolContext, arguments: OpenArguments) -> ToolOutput:
        raise NotImplementedError

    with pytest.raises(ValueError, match="'mute' has no docstring"):
        tool(effect=Effect.NONE)(mute)


class Moody(BaseModel):
    """Its validator breaks instead of refusing."""

    x: int

    @field_validator("x")
    @classmethod
    def look_up(cls, value: int) -> int:
        """Raise what pydantic does not turn into a refusal."""
        raise KeyError(value)


@tool(effect=Effect.NONE)
def moody(_: ToolContext, arguments: Moody) -> ToolOutput:
    """Never runs."""
    return ToolOutput.ok(**arguments.model_dump())


def test_exception_in_a_validator_refuses_the_arguments() -> None:
    assert moody.validate({"x": 1}) == ["the arguments could not be checked (KeyError: 1)"]


@tool(effect=Effect.READ, path_fields=("path",))
def count_lines(
    context: ToolContext, path: str, encoding: Annotated[Literal["utf-8", "latin-1"], "How it is written."] = "utf-8"
) -> dict[str, int] | ToolError:
    """Count the lines of a file."""
    content = context.workspace.read_file(path)
    return content if isinstance(content, ToolError) else {"lines": len(content.data.decode(encoding).splitlines())}


def test_function_with_plain_arguments_is_a_tool(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n2\n", encoding="utf-8")
    spec, written = count_lines.spec, {"description": "How it is written.", "default": "utf-8"}
    assert (spec.name, spec.description, spec.effect) == ("count_lines", "Count the lines of a file.", Effect.READ)
    assert (spec.path_fields, spec.parameters["required"]) == (("path",), ["path"])
    encoding = {"type": "string", "enum": ["utf-8", "latin-1"], **written}
    assert spec.parameters["properties"] == {"path": {"type": "string"}, "encoding": encoding}
    assert count_lines.validate({"file_name": "a.txt"}) == {"path": "a.txt", "encoding": "utf-8"}
    assert count_lines.s(context, path="a.txt") == asyncio.run(count_lines.a(context, filename="a.txt")) == {"lines": 2}


def _paths(arguments: JsonMap) -> list[str]:
    """The paths that stand in an argument."""
    return [str(arguments["a"])]


def test_effect_is_required_and_path_fields_must_exist() -> None:
    wrong: list[Any] = [None, "read"]
    for effect in wrong:
        with pytest.raises(TypeError, match=r"A tool needs an effect, as in @tool\(effect=Effect.READ\)"):
            tool(_paths, effect=effect)
    with pytest.raises(TypeError, match="'_paths' has no argument 'pth', which its path_fields name: it has arguments"):
        tool(effect=Effect.READ, path_fields=("pth",))(_paths)


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


def called(function: Callable[..., Any], **arguments: Any) -> Any:
    """What the function gives back for these arguments, as a model would write them."""
    model, run = read_signature(function, ("path",), ToolContext)
    return run(Context(), model.model_validate(arguments))


def test_context_argument_is_found_by_its_type_in_any_position() -> None:
    def first(context: Context, a: int) -> object:
        return context.name, a

    def last(a: int, context: Context) -> object:
        return context.name, a

    def default(a: int = Field(description="A number.")) -> object:
        return "context", a

    assert [called(function, a=1) for function in (first, last, default)] == [("context", 1)] * 3


def test_single_model_argument_stands_for_all_arguments() -> None:
    def model_first(point: Point, context: Context) -> object:
        return context, point.x

    def model_alone(point: Point) -> object:
        return Context(), point.x

    def untyped(context: Any, point: Point) -> object:
        return context, point.x

    functions: list[Callable[..., object]] = [model_first, model_alone, untyped]
    for function in functions:
        model, run = read_signature(function, (), ToolContext)
        assert model is Point
        assert run(Context(), Point(x=1)) == (Context(), 1)


def _extras(context: Context, path: str = "", **extra: Any) -> object:
    assert context == Context()
    return path, extra


def test_extra_arguments_need_no_type_and_cannot_replace_the_context() -> None:
    def untyped(ctx, x: int = 0, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN003, ANN202 - spec 5's form
        return ctx, x, kwargs

    assert called(untyped, x="1", other=[2]) == (Context(), 1, {"other": [2]})
    assert argument_schema(read_signature(untyped, (), ToolContext)[0])["additionalProperties"] is True
    with pytest.raises(TypeError, match="context"):
        called(_extras, context="forged")
    assert [called(_extras, **{name: "a"}) for name in ("path", "filename", "file_name")] == [("a", {})] * 3


def test_nested_closed_model_of_an_open_tool_stays_closed() -> None:
    class Closed(BaseModel):
        model_config = ConfigDict(extra="forbid")

        x: int

    @tool(effect=Effect.NONE)
    def nested(inner: Closed, **extra: Any) -> JsonMap:
        """Takes anything beside a closed model."""
        return {"x": inner.x, **extra}

    assert isinstance(nested.validate({"inner": {"x": 1}, "more": 2}), dict)
    assert isinstance(nested.validate({"inner": {"x": 1, "y": 2}}), list)


def test_annotation_with_unhashable_metadata_is_accepted() -> None:
    def measured(path: Annotated[str, {"unit": "m"}]) -> object:
        return path

    assert called(measured, path="a") == "a"


def test_argument_with_default_none_may_be_none() -> None:
    def implicit(x: int = None) -> object:  # type: ignore[assignment]  # noqa: RUF013 - as people write it
        return x

    assert (called(implicit), called(implicit, x=None), called(implicit, x=1)) == (None, None, 1)


def _no_type(x) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - the mistake
    raise NotImplementedError


def _many(*names: str) -> None:
    raise NotImplementedError


def _private(_x: int) -> None:
    raise NotImplementedError


def _reserved(model_dump: int) -> None:
    raise NotImplementedError


def _callback(call: Callable[[], int]) -> None:
    raise NotImplementedError


def _unreadable(x: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821 - the mistake
    raise NotImplementedError


REFUSED: list[tuple[Callable[..., Any], str]] = [
    (_no_type, "has the parameter 'x' without a type: write `x: str`, or what it is."),
    (_many, "has a parameter that no schema can name: write `names: list[str]` instead of *names."),
    (_private, "has a parameter '_x', a name that pydantic keeps for itself: choose another."),
    (_reserved, "has a parameter 'model_dump', a name that pydantic keeps for itself: choose another."),
    (_unreadable, "has an annotation that cannot be read (name 'Nowhere' is not defined): import it at run time."),
    (_callback, "has a parameter of a type without a JSON schema: "),
]


@rows(*REFUSED)
def test_incomplete_signature_is_refused_with_the_remedy(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        read_signature(function, (), ToolContext)
    assert str(caught.value).startswith(f"The tool {function.__name__!r} {message}")
