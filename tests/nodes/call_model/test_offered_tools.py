import pytest

from nodes.call_model.offered_tools import offered_tools, owes_a_value
from nodes.execute_tools.tools import default_tools
from nodes.records import EditForm

SPECS = [tool.spec for tool in default_tools()]
READING = ["read_file", "list_files", "glob_files", "search_files"]
SCHEMA = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}


@pytest.mark.parametrize(
    ("edit_form", "read_only", "names"),
    [
        (EditForm.REPLACE, False, [*READING, "edit_file", "write_file", "update_plan", "final_answer"]),
        (EditForm.BLOCKS, False, [*READING, "write_file", "edit_blocks", "update_plan", "final_answer"]),
        (EditForm.REPLACE, True, [*READING, "update_plan", "final_answer"]),
        (EditForm.BLOCKS, True, [*READING, "update_plan", "final_answer"]),
    ],
)
def test_one_way_to_edit_and_none_where_nothing_may_change(
    edit_form: EditForm, read_only: bool, names: list[str]
) -> None:
    offered = offered_tools(SPECS, edit_form, read_only=read_only, answer_schema=None)
    assert [spec.name for spec in offered] == names
    assert all(spec in SPECS for spec in offered)
    assert not any(map(owes_a_value, offered))


def test_the_terminal_tool_shows_the_schema_of_the_answer() -> None:
    plain, told = (
        offered_tools(SPECS, EditForm.REPLACE, read_only=False, answer_schema=schema) for schema in (None, SCHEMA)
    )
    assert told[:-1] == plain[:-1]
    parameters = told[-1].parameters
    assert parameters["properties"] == {**plain[-1].parameters["properties"], "value": SCHEMA}
    assert parameters["required"] == ["answer", "value"]
    assert owes_a_value(told[-1])
    assert [*plain] == [spec for spec in SPECS if spec.name != "edit_blocks"]
