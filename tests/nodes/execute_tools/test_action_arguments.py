import pytest

from nodes.execute_tools.action_arguments import (
    check_content,
    effect_of,
    is_writer,
    lists,
    named_arguments,
    names_a_folder,
    path_fields,
)
from nodes.records import Effect, JsonMap


@pytest.mark.parametrize(
    ("action", "effect", "writer", "listing"),
    [
        ("read_file", Effect.READ, False, False),
        ("search_in_file", Effect.READ, False, False),
        ("list_files", Effect.READ, False, True),
        ("write_file", Effect.WRITE, True, False),
        ("append_file", Effect.WRITE, True, False),
        ("delete_file", Effect.WRITE, True, False),
        ("http_get", Effect.NETWORK, False, False),
        ("http_post", Effect.WRITE, True, False),
        ("launch_rocket", Effect.WRITE, False, False),
    ],
)
def test_what_an_action_does_by_its_name(action: str, effect: Effect, writer: bool, listing: bool) -> None:
    assert (effect_of(action), is_writer(action), lists(action)) == (effect, writer, listing)


def test_only_file_actions_name_files() -> None:
    assert path_fields("read_file") == ("file_name", "filename", "path", "target", "directory")
    assert path_fields("http_get") == path_fields("launch_rocket") == ()


@pytest.mark.parametrize("action", ["write_file", "append_file"])
@pytest.mark.parametrize("arguments", [{}, {"content": None}, {"content": 3}])
def test_writers_supply_content(action: str, arguments: JsonMap) -> None:
    with pytest.raises(ValueError, match=r"^Missing or invalid 'content' for write/append operation\.$"):
        check_content(action, arguments)
    check_content(action, {"content": ""})
    check_content("read_file", arguments)


def test_arguments_are_copied_under_their_names() -> None:
    given = {"a": object()}
    found = named_arguments(given)
    assert found == given
    assert found is not given


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (None, "the arguments of an action are a mapping, not NoneType"),
        ([("a", 1)], "the arguments of an action are a mapping, not list"),
        ({"a": 1, 5: 1}, "the names of arguments are texts, not int"),
    ],
)
def test_what_has_no_names_is_no_arguments(arguments: object, message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        named_arguments(arguments)


@pytest.mark.parametrize(
    ("action", "field", "folder"),
    [
        ("move_file", "target", True),
        ("move_file", "directory", True),
        ("move_file", "path", False),
        ("delete_file", "target", False),
        ("read_file", "directory", False),
    ],
)
def test_only_what_is_moved_goes_into_a_folder(action: str, field: str, folder: bool) -> None:
    assert names_a_folder(action, field) is folder
