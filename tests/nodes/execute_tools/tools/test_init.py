from nodes.execute_tools.registry import ActionRegistry
from nodes.execute_tools.tools import default_tools
from nodes.records import Effect

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


def test_the_tools_and_what_guard_must_know_of_them() -> None:
    specs = ActionRegistry(default_tools()).specs()
    assert {spec.name: spec.effect for spec in specs} == EFFECTS
    assert [spec.name for spec in specs if spec.terminal] == ["final_answer"]
    path_names = {"path", "paths", "target", "cwd"}
    for spec in specs:
        assert spec.path_fields == tuple(name for name in spec.parameters["properties"] if name in path_names)
    assert [tool.name for tool in default_tools() if tool.paths_of is not None] == ["apply_patch"]


def test_descriptions_are_short_and_every_argument_has_one() -> None:
    for tool in default_tools():
        assert len(tool.description) <= LONGEST_DESCRIPTION
        for argument in tool.spec.parameters["properties"].values():
            assert 0 < len(argument["description"]) <= LONGEST_DESCRIPTION
