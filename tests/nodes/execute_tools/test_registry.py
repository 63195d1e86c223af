import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator

from nodes.execute_tools.environment.workspace import Workspace
from nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext, ToolOutput, tool
from nodes.records import Effect, Plan, ToolError, ToolErrorCode, ToolResult, ToolSpec


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


def test_only_what_reads_is_cacheable_unless_it_is_said() -> None:
    @tool(effect=Effect.READ, cacheable=False)
    def clock(context: ToolContext, arguments: OpenArguments) -> ToolOutput:
        """Tells the time."""
        raise NotImplementedError

    assert [each.cacheable for each in (show, _open_ended, later, clock)] == [True, False, False, False]
    assert [each.terminal for each in (show, _open_ended, later, clock)] == [False, False, True, False]


def test_the_registry_finds_by_name(registry: ActionRegistry) -> None:
    assert registry.get("show") is show
    assert registry.get("nope") is None
    assert registry.names() == {"show", "open_ended", "later"}
    assert registry.specs() == (show.spec, _open_ended.spec, later.spec)
    assert registry.closest("shwo") == ("show",)


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


def test_both_ways_of_running(context: ToolContext) -> None:
    expected = ToolOutput.ok(path="a", limit=5, timeout=30.0)
    assert show.s(context, path="a") == expected
    assert asyncio.run(show.a(context, filename="a")) == expected
    assert later.s(context, x=1) == asyncio.run(later.a(context, x=1)) == ToolOutput.ok(x=1)


def test_an_async_tool_cannot_run_synchronously_inside_a_loop(context: ToolContext) -> None:
    async def inside() -> None:
        later.s(context, x=1)

    with pytest.raises(RuntimeError, match=r"asyncio\.run\(\) cannot be called"):
        asyncio.run(inside())


def test_outputs_are_envelopes() -> None:
    error = ToolError(code=ToolErrorCode.NOT_FOUND, message="m")
    assert ToolOutput.ok(a=1, error="x").result == ToolResult(ok=True, data={"a": 1, "error": "x"})
    assert ToolOutput.failed(error).result == ToolResult(ok=False, error=error)


def test_a_context_has_defaults(context: ToolContext) -> None:
    assert (context.files_read, context.plan, context.timeout_s) == ({}, Plan(), 30.0)


def test_a_tool_without_a_docstring_is_a_programming_error() -> None:
    def mute(context: ToolContext, arguments: OpenArguments) -> ToolOutput:
        raise NotImplementedError

    with pytest.raises(ValueError, match="'mute' has no docstring"):
        tool(effect=Effect.NONE)(mute)


def test_a_tool_without_a_model_is_a_programming_error() -> None:
    def vague(context: ToolContext, arguments: Any) -> ToolOutput:
        """Is vague."""
        raise NotImplementedError

    with pytest.raises(TypeError, match="'vague' needs two parameters"):
        tool(effect=Effect.NONE)(vague)


def test_a_tool_can_be_made_without_the_decorator() -> None:
    made = Tool("t", "d", OpenArguments, Effect.READ, lambda *_: ToolOutput.ok())
    assert (made.spec.name, made.cacheable, made.asynchronous) == ("t", False, False)


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
