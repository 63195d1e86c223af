import pytest
from pydantic import Field

from nodes.execute_tools.registry import Tool
from nodes.execute_tools.tools import default_tools
from nodes.execute_tools.tools.arguments import ToolArguments

FILE = "Workspace-relative path under the project root."
FOLDER = "Directory under the project root (use `.` for root)."
"""Source: spec 2, section "Tool Schema Updates"."""
WITH_PATH = [tool for tool in default_tools() if "path" in tool.path_fields]


@pytest.mark.parametrize("tool", WITH_PATH, ids=lambda tool: tool.name)
def test_the_schema_shows_path_only_and_says_what_it_is_relative_to(tool: Tool) -> None:
    properties = tool.spec.parameters["properties"]
    whole = properties["path"].get("default") == "."
    assert properties["path"]["description"] == (FOLDER if whole else FILE)
    assert not {"filename", "file_name"} & set(properties)


@pytest.mark.parametrize("name", ["path", "filename", "file_name"])
def test_models_may_call_it_by_three_names(name: str) -> None:
    [read_file] = [tool for tool in default_tools() if tool.name == "read_file"]
    assert read_file.validate({name: "a"}) == {"path": "a", "start_line": 1, "limit": 0, "start_column": 1}


@pytest.mark.parametrize("tool", default_tools(), ids=lambda tool: tool.name)
def test_other_names_are_errors(tool: Tool) -> None:
    errors = tool.validate({"nonsense": 1})
    assert isinstance(errors, list)
    assert any(error.startswith("nonsense: unknown argument") for error in errors)


class Page(ToolArguments):
    """A page."""

    name: str = Field(min_length=1, max_length=9, description="Its name.")
    first: int = Field(default=1, ge=1, le=500)
    lines: tuple[str, ...] = Field(default=(), max_length=3)
    whole: bool = False


def test_the_schema_leaves_out_what_tells_a_model_nothing() -> None:
    assert Page.model_json_schema()["properties"] == {
        "name": {"title": "Name", "type": "string", "description": "Its name."},
        "first": {"title": "First", "type": "integer", "default": 1, "maximum": 500},
        "lines": {"title": "Lines", "type": "array", "items": {"type": "string"}},
        "whole": {"title": "Whole", "type": "boolean"},
    }
