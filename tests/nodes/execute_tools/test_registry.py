import asyncio
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator

from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext, ToolOutput, tool
from mendgraph.nodes.records import Effect, JsonMap, Plan, ToolError, ToolSpec


class PathArguments(BaseModel):
    path: str = Field(validation_alias=AliasChoices("path", "filename", "file_name"))
    limit: int = 5


class AnyArguments(BaseModel):
    model_config = ConfigDict(extra="allow")


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


def test_a_typed_function_is_a_tool() -> None:
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


def test_the_registry_finds_by_name(registry: ActionRegistry) -> None:
    assert registry.get("show") is show
    assert registry.get("nope") is None
    assert registry.names() == {"show", "open_ended", "later"}
    assert registry.specs() == (show.spec, _open_ended.spec, later.spec)


def test_two_tools_of_one_name_are_a_programming_error() -> None:
    with pytest.raises(ValueError, match="Two tools are called 'show'"):
        ActionRegistry([show, show])


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("show", {"path": "a"}, {"path": "a", "limit": 5}),
        ("show", {"filename": "a", "limit": "7"}, {"path": "a", "limit": 7}),
        ("show", {"file_name": "a"}, {"path": "a", "limit": 5}),
        ("show", {}, ["path: field required"]),
        ("show", {"path": "a", "limt": 1}, ["limt: unknown argument, did you mean 'limit'?"]),
        ("show", {"path": "\ud800"}, ["path: str is not valid UTF-8: surrogates not allowed"]),
        ("open_ended", {"x": "2", "extra": 7}, {"x": 2, "extra": 7}),
        ("nope", {}, ["unknown tool 'nope'"]),
    ],
)
def test_arguments_become_canonical_or_sentences(
    registry: ActionRegistry, name: str, arguments: dict[str, Any], expected: dict[str, Any] | list[str]
) -> None:
    assert registry.validate(name, arguments) == expected


def test_canonical_arguments_are_valid_once_more(registry: ActionRegistry) -> None:
    once = registry.validate("show", {"filename": "a", "limit": "7"})
    assert isinstance(once, dict)
    assert registry.validate("show", once) == once


def test_an_async_tool_cannot_run_synchronously_inside_a_loop(context: ToolContext) -> None:
    async def inside() -> None:
        later.s(context, x=1)

    with pytest.raises(RuntimeError, match=r"asyncio\.run\(\) cannot be called"):
        asyncio.run(inside())


def test_a_context_has_defaults(context: ToolContext) -> None:
    assert (context.files_read, context.plan, context.timeout_s) == ({}, Plan(), 30.0)


def test_a_tool_without_a_docstring_is_a_programming_error() -> None:
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


def test_a_validator_that_breaks_refuses_the_arguments() -> None:
    assert moody.validate({"x": 1}) == ["the arguments could not be checked (KeyError: 1)"]


# --- Functions with a signature of their own


@tool(effect=Effect.READ, path_fields=("path",))
def count_lines(
    context: ToolContext, path: str, encoding: Annotated[Literal["utf-8", "latin-1"], "How it is written."] = "utf-8"
) -> dict[str, int] | ToolError:
    """Count the lines of a file."""
    found = context.workspace.read_file(path)
    return found if isinstance(found, ToolError) else {"lines": len(found.data.decode(encoding).splitlines())}


@tool(effect=Effect.NONE)
async def add(a: int, b: int = 2, **rest: Any) -> int:
    """Add two numbers."""
    await asyncio.sleep(0)
    return a + b + len(rest)


def test_a_function_with_arguments_of_its_own_is_a_tool(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n2\n", encoding="utf-8")
    assert count_lines.spec == ToolSpec(
        name="count_lines",
        description="Count the lines of a file.",
        parameters={
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "encoding": {
                    "type": "string",
                    "enum": ["utf-8", "latin-1"],
                    "default": "utf-8",
                    "description": "How it is written.",
                },
            },
            "required": ["path"],
            "additionalProperties": False,
        },
        effect=Effect.READ,
        path_fields=("path",),
    )
    assert count_lines.validate({"file_name": "a.txt"}) == {"path": "a.txt", "encoding": "utf-8"}
    assert count_lines.s(context, path="a.txt") == asyncio.run(count_lines.a(context, filename="a.txt")) == {"lines": 2}


def test_unknown_arguments_are_passed_to_a_tool_that_takes_them(context: ToolContext) -> None:
    assert add.asynchronous
    assert add.validate({"a": 1, "c": 7}) == {"a": 1, "b": 2, "c": 7}
    assert add.s(context, a=1, c=7) == asyncio.run(add.a(context, a=1, c=7)) == 4


def test_a_function_becomes_a_tool_by_a_call_too() -> None:
    def double(a: int) -> int:
        """Double it."""
        return 2 * a

    made = tool(double, effect=Effect.NONE, name="twice", self_timed=True, paths_of=_paths)
    assert (made.name, made.self_timed, made.paths_of) == ("twice", True, _paths)
    assert (count_lines.self_timed, count_lines.paths_of) == (False, None)


def _paths(arguments: JsonMap) -> list[str]:
    """The paths that stand in an argument."""
    return [str(arguments["a"])]


@pytest.mark.parametrize("effect", [None, "read"])
def test_an_effect_is_never_guessed(effect: Any) -> None:
    message = r"A tool has to say its effect, as in @tool\(effect=Effect.READ\); there are Effect.NONE, Effect.READ,"
    with pytest.raises(TypeError, match=message):
        tool(_paths, effect=effect)


def test_a_bare_decorator_is_refused() -> None:
    with pytest.raises(TypeError, match="A tool has to say its effect"):

        @tool  # type: ignore[call-overload]  # the mistake, which mypy sees too
        def bare(a: int) -> int:
            """Does nothing."""
            return a


def test_path_fields_that_no_argument_has_are_refused() -> None:
    message = "'_paths' has no argument 'pth', which its path_fields name: it has arguments"
    with pytest.raises(TypeError, match=message):
        tool(effect=Effect.READ, path_fields=("pth",))(_paths)


# --- Tools with a JSON schema

SCHEMA: JsonMap = {
    "type": "object",
    "title": "Add",
    "properties": {"a": {"$ref": "#/$defs/Number"}, "b": {"type": "integer", "default": 2}},
    "required": ["a"],
    "$defs": {"Number": {"type": "integer", "title": "Number"}},
}


def by_schema(schema: JsonMap) -> Tool:
    return Tool("add", "Adds.", AnyArguments, Effect.NONE, lambda _, given: given.model_extra, schema=schema)


def test_a_tool_may_have_a_schema_instead_of_a_model(context: ToolContext) -> None:
    made = by_schema(SCHEMA)
    assert made.spec.parameters == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 2}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert made.validate({"a": 1}) == {"a": 1, "b": 2}
    assert made.validate({"a": "1", "c": 3}) == [
        "c: unknown argument (known: a, b)",
        "a: input should be a valid integer",
    ]
    assert made.s(context, a=1, b=2) == {"a": 1, "b": 2}
    assert {made: "found"}[made] == "found"


def test_a_broken_schema_is_refused_when_the_tool_is_made() -> None:
    with pytest.raises(
        ValueError, match="The tool 'add' has a schema that cannot be used: its reference 'x' leads out"
    ):
        by_schema({"properties": {"a": {"$ref": "x"}}})
    with pytest.raises(ValueError, match=r"The tool 'add' has a schema that cannot be used: at \$\.properties"):
        by_schema({"properties": 7})
