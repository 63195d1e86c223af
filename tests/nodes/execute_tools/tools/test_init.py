import json

from langchain_core.messages import HumanMessage

from nodes.call_model.offered_tools import offered_tools
from nodes.call_model.prompt import Prompt, build_prompt
from nodes.execute_tools.registry import ActionRegistry
from nodes.execute_tools.tools import default_tools
from nodes.records import EditForm, Effect, Profile, Protocol

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
    "http_get": Effect.NETWORK,
    "update_plan": Effect.NONE,
    "run_checks": Effect.READ,
    "final_answer": Effect.NONE,
}
LONGEST_DESCRIPTION = 100
NEED_LEAVE = {"run_command", "http_get"}
"""Not offered before a program or a host is allowed."""


def test_the_tools_and_what_guard_must_know_of_them() -> None:
    specs = ActionRegistry(default_tools()).specs()
    assert {spec.name: spec.effect for spec in specs} == EFFECTS
    assert [spec.name for spec in specs if spec.terminal] == ["final_answer"]
    path_names = {"path", "paths", "target", "cwd"}
    for spec in specs:
        assert spec.path_fields == tuple(name for name in spec.parameters["properties"] if name in path_names)
    assert [tool.name for tool in default_tools() if tool.paths_of is not None] == ["apply_patch"]


def test_descriptions_are_short() -> None:
    for tool in default_tools():
        assert 0 < len(tool.description) <= LONGEST_DESCRIPTION
        for argument in tool.spec.parameters["properties"].values():
            assert len(argument.get("description", "")) <= LONGEST_DESCRIPTION


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
        ActionRegistry(default_tools()).specs(),
        EditForm.REPLACE,
        read_only=False,
        answer_schema=None,
        usable=usable,
    )
    return build_prompt(Profile(protocol=protocol, edit_form=EditForm.REPLACE), specs, [HumanMessage("Hi")], (), 0.0)


def _size(value: object) -> int:
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())
