from mendgraph.nodes.call_model.prompts.profiles import offered_tools, owes_a_value
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.records import EditForm
from tests.nodes.rows import rows

SPECS = [tool.spec for tool in default_tools()]
READING = ["read_file", "list_files", "glob_files", "search_files"]
MOVING = ["move_file", "delete_file"]
OUTSIDE = ["run_command", "http_get"]
ENDING = ["update_plan", "final_answer"]
SCHEMA = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}


@rows(
    (EditForm.REPLACE, False, [*READING, "edit_file", "write_file", *MOVING, *OUTSIDE, *ENDING]),
    (EditForm.BLOCKS, False, [*READING, "write_file", "edit_blocks", *OUTSIDE, *ENDING]),
    (EditForm.PATCH, False, [*READING, "write_file", "apply_patch", *OUTSIDE, *ENDING]),
    (EditForm.REPLACE, True, [*READING, "http_get", *ENDING]),
    (EditForm.BLOCKS, True, [*READING, "http_get", *ENDING]),
)
def test_one_way_to_edit_and_none_where_nothing_may_change(
    edit_form: EditForm, read_only: bool, names: list[str]
) -> None:
    offered = offered_tools(SPECS, edit_form, read_only=read_only, response_format=None)
    assert [spec.name for spec in offered] == names
    assert all(spec in SPECS for spec in offered)
    assert not any(map(owes_a_value, offered))


def test_terminal_tool_shows_the_schema_of_the_answer() -> None:
    plain, told = (
        offered_tools(SPECS, EditForm.REPLACE, read_only=False, response_format=schema) for schema in (None, SCHEMA)
    )
    assert told[:-1] == plain[:-1]
    parameters = told[-1].parameters
    assert parameters["properties"] == {**plain[-1].parameters["properties"], "value": SCHEMA}
    assert parameters["required"] == ["answer", "value"]
    assert owes_a_value(told[-1])
    hidden = {"edit_blocks", "apply_patch", "multi_edit", "append_file", "run_checks", "delegate"}
    assert [*plain] == [spec for spec in SPECS if spec.name not in hidden]


@rows(*EditForm)
def test_tools_that_a_run_cannot_use_and_the_checks_of_the_machine_are_offered_to_no_model(edit_form: EditForm) -> None:
    assert "run_checks" in {spec.name for spec in SPECS}
    usable = frozenset({"read_file", "final_answer", "run_checks"})
    for few in (False, True):
        whole = offered_tools(SPECS, edit_form, read_only=False, response_format=None, few=few)
        assert "run_checks" not in {spec.name for spec in whole}
        offered = offered_tools(SPECS, edit_form, read_only=False, response_format=None, usable=usable, few=few)
        assert [spec.name for spec in offered] == ["read_file", "final_answer"]


def test_note_of_the_run_stands_behind_the_description() -> None:
    plain, noted = (
        offered_tools(SPECS, EditForm.REPLACE, read_only=False, response_format=None, notes=notes)
        for notes in ({}, {"run_command": "Allowed: make."})
    )
    [(before, after)] = [(old, new) for old, new in zip(plain, noted, strict=True) if old != new]
    assert (before.name, after.description) == ("run_command", f"{before.description} Allowed: make.")
