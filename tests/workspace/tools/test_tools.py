import json
from typing import Any

from langchain_core.messages import HumanMessage
from pydantic import Field

from mendgraph.nodes.call_model.prompts.profiles import offered_tools
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.call_model.turn_prompt import build_prompt
from mendgraph.nodes.execute_tools.registry import ActionRegistry, Tool, ToolArguments
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.execute_tools.tools.about_run import delegate, final_answer, remember, update_plan
from mendgraph.nodes.execute_tools.tools.read_file import read_skill
from mendgraph.nodes.records import EditForm, Effect, JsonMap, Profile, Protocol, ToolErrorCode
from tests.row_tables import rows
from tests.workspace.conftest import Bench

EFFECTS = {
    "read_file": Effect.READ,
    "list_files": Effect.READ,
    "glob_files": Effect.READ,
    "search_files": Effect.READ,
    "edit_file": Effect.WRITE,
    "multi_edit": Effect.WRITE,
    "write_file": Effect.WRITE,
    "append_file": Effect.WRITE,
    "move_file": Effect.WRITE,
    "delete_file": Effect.WRITE,
    "edit_blocks": Effect.WRITE,
    "apply_patch": Effect.WRITE,
    "run_command": Effect.EXECUTE,
    "run_shell": Effect.EXECUTE,
    "job_output": Effect.NONE,
    "job_kill": Effect.NONE,
    "http_get": Effect.NETWORK,
    "update_plan": Effect.NONE,
    "run_checks": Effect.READ,
    "delegate": Effect.NONE,
    "final_answer": Effect.NONE,
}

NEED_LEAVE = {"run_command", "run_shell", "job_output", "job_kill", "http_get", "delegate"}

"""Not offered before a program or a host is allowed."""


def test_tools_declare_their_effects_and_path_fields() -> None:
    specs = ActionRegistry(default_tools()).specs()
    assert {spec.name: spec.effect for spec in specs} == EFFECTS
    assert [spec.name for spec in specs if spec.terminal] == ["final_answer"]
    assert [tool.name for tool in default_tools() if tool.paths_of is not None] == ["apply_patch"]
    for spec in specs:
        properties = spec.parameters["properties"]
        assert spec.path_fields == tuple(name for name in properties if name in {"path", "paths", "target", "cwd"})
        assert not {"filename", "file_name"} & set(properties)


def test_schema_says_what_a_path_is_relative_to() -> None:
    """Source: spec 2, section "Tool Schema Updates"."""
    described = [spec.parameters["properties"].get("path") for spec in ActionRegistry(default_tools()).specs()]
    file = "Workspace-relative path under the project root."
    folder = "Directory under the project root (use `.` for root)."
    for path in described:
        assert path is None or path["description"] == (folder if path.get("default") == "." else file)


def test_system_prompt_and_tools_cost_at_most_1000_tokens_native_and_600_in_text() -> None:
    """Counted in bytes, for which no model is needed.

    Source: measured with the tokenizer of Qwen2.5-Coder, as compact JSON: native 848 tokens in 3,906 bytes (66 of them
    the system message) before spec 2's path descriptions, text 419 tokens in 1,662 bytes. So a token has no less than
    4.5 bytes in the one and 3.9 in the other.
    """
    native, text = (_first_request(protocol) for protocol in (Protocol.NATIVE, Protocol.TEXT))
    assert (_size(native.messages[0]) + _size(native.tools)) / 4.5 <= 1_000
    assert len(text.messages[0]["content"].encode()) / 3.9 <= 600


def _first_request(protocol: Protocol) -> Prompt:
    usable = {tool.name for tool in default_tools()} - NEED_LEAVE
    specs = offered_tools(
        ActionRegistry(default_tools()).specs(), EditForm.REPLACE, read_only=False, response_format=None, usable=usable
    )
    return build_prompt(Profile(protocol=protocol, edit_form=EditForm.REPLACE), specs, [HumanMessage("Hi")], (), 0.0)


def _size(value: object) -> int:
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


class Page(ToolArguments):
    """A page."""

    name: str = Field(min_length=1, max_length=9, description="Its name.")
    first: int = Field(default=1, ge=1, le=500)
    lines: tuple[str, ...] = Field(default=(), max_length=3)
    complete: bool = False
    last: int | None = Field(default=None, gt=0)
    width: int | None = 80


def test_schema_omits_redundant_fields() -> None:
    assert Page.model_json_schema()["properties"] == {
        "name": {"title": "Name", "type": "string", "description": "Its name."},
        "first": {"title": "First", "type": "integer", "default": 1, "maximum": 500},
        "lines": {"title": "Lines", "type": "array", "items": {"type": "string"}},
        "complete": {"title": "Complete", "type": "boolean"},
        "last": {"title": "Last", "type": "integer"},
        "width": {"title": "Width", "anyOf": [{"type": "integer"}, {"type": "null"}], "default": 80},
    }


@rows(None, 1, {"passed": True}, ["a"])
def test_answer_is_returned(value: Any, bench: Bench) -> None:
    assert bench.data(final_answer, answer="Done.", value=value) == {"answer": "Done."}
    assert final_answer.validate({"answer": "Done.", "value": value}) == {"answer": "Done.", "value": value}
    assert final_answer.terminal


UNAVAILABLE = [
    (delegate, {"task": "Look."}, ToolErrorCode.UNAVAILABLE, "Only a run of the agent has children: do this part"),
    (remember, {"text": "make test"}, ToolErrorCode.UNAVAILABLE, "Nothing is remembered in this run: say it in your"),
    (read_skill, {"name": "deploy"}, ToolErrorCode.NOT_FOUND, "The user has no skills, or none are told in this run"),
]


@rows(*UNAVAILABLE)
def test_tool_that_is_unavailable_in_a_run_says_so(
    tool: Tool, arguments: JsonMap, code: ToolErrorCode, message: str, bench: Bench
) -> None:
    error = bench.error(tool, **arguments)
    assert error.code is code
    assert error.message.startswith(message)


@rows(
    ({"mode": "write"}, "paths is missing: with mode 'write', name the files and folders that may be changed"),
    ({"paths": ["a.py"]}, "paths is for mode 'write': an explorer changes nothing and may read everything"),
)
def test_delegate_requires_paths_only_in_mode_write(arguments: JsonMap, problem: str) -> None:
    problems = delegate.validate({"task": "Look.", **arguments})
    assert isinstance(problems, list)
    assert problem in problems[0]


STEPS = [{"title": "read"}, {"title": "fix", "status": "in_progress"}, {"title": "look", "status": "done"}]


def test_plan_is_stored_and_counted(bench: Bench) -> None:
    output = bench.run(update_plan, steps=STEPS)
    assert output.result.data == {"pending": 1, "in_progress": 1, "done": 1}
    assert output.plan is not None
    assert [(step.title, step.status.value) for step in output.plan.steps] == [
        ("read", "pending"),
        ("fix", "in_progress"),
        ("look", "done"),
    ]


@rows(
    ([{"title": "a", "status": "in_progress"}] * 2, "at most one step may be in_progress"),
    ([{"title": ""}], "steps.0.title: string should have at least 1 character"),
    ([{"title": "a"}] * 51, "steps: tuple should have at most 50 items after validation, not 51"),
)
def test_invalid_plan_is_refused(steps: Any, error: str) -> None:
    errors = update_plan.validate({"steps": steps})
    assert isinstance(errors, list)
    assert error in errors[0]
