import pytest

from mendgraph.nodes.execute_tools.call_policy import allowed_tools
from mendgraph.nodes.records import Effect, ToolError, ToolErrorCode, ToolSpec


def spec(name: str, effect: Effect, *, terminal: bool = False) -> ToolSpec:
    return ToolSpec(name=name, description="d", parameters={}, effect=effect, terminal=terminal)


SPECS = (
    spec("plan", Effect.NONE),
    spec("read_file", Effect.READ),
    spec("write_file", Effect.WRITE),
    spec("run_command", Effect.EXECUTE),
    spec("http_get", Effect.NETWORK),
    spec("final_answer", Effect.EXECUTE, terminal=True),
)
LOOKING = {"plan", "read_file", "final_answer"}
EVERYTHING = LOOKING | {"write_file", "run_command", "http_get"}


@pytest.mark.parametrize(
    ("role", "tools"),
    [
        (None, EVERYTHING),
        ("reader", LOOKING),
        ("editor", LOOKING | {"write_file"}),
        ("operator", EVERYTHING),
        ("tester", {"read_file", "run_command", "final_answer"}),
        ("mute", {"final_answer"}),
    ],
)
def test_what_a_role_may_use(role: str | None, tools: set[str]) -> None:
    custom = {"tester": ["read_file", "run_command"], "mute": [], "broken": ["no such tool"]}
    assert allowed_tools(role, custom, iter(SPECS)) == frozenset(tools)


@pytest.mark.parametrize(
    ("role", "error"),
    [
        (
            "raeder",
            ToolError(
                code=ToolErrorCode.INVALID_ARGUMENT,
                message="There is no role 'raeder'. Did you mean reader or editor or tester?",
                suggestions=("reader", "editor", "tester"),
            ),
        ),
        (
            "xyz",
            ToolError(
                code=ToolErrorCode.INVALID_ARGUMENT,
                message="There is no role 'xyz'. There are: editor, operator, reader, tester.",
                suggestions=("editor", "operator", "reader", "tester"),
            ),
        ),
        (
            "tester",
            ToolError(
                code=ToolErrorCode.UNKNOWN_TOOL,
                message="The role 'tester' names an unknown tool, 'raed_file'. Did you mean read_file or write_file?",
                suggestions=("read_file", "write_file"),
            ),
        ),
    ],
)
def test_unknown_names_are_errors_that_say_what_was_meant(role: str, error: ToolError) -> None:
    assert allowed_tools(role, {"tester": ["read_file", "raed_file"]}, SPECS) == error


def test_a_built_in_role_cannot_be_widened() -> None:
    assert allowed_tools("reader", {"reader": ["write_file"]}, SPECS) == ToolError(
        code=ToolErrorCode.INVALID_ARGUMENT,
        message="The role 'reader' is built in and cannot be redefined: give yours another name.",
    )
