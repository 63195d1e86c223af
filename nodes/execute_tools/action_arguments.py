"""What spec 4's environment knows of actions by their names: which arguments are paths and texts, what is done."""

from collections.abc import Mapping
from typing import Any, Final

from nodes.records import Effect, JsonMap

_PATH_FIELDS: Final = ("file_name", "filename", "path", "target", "directory")
_READING: Final = frozenset({"read_file", "search_in_file", "file_info"})
_LISTING: Final = frozenset({"list_files", "list_directory", "glob_files", "search_files"})
_TEXT_WRITING: Final = frozenset({"write_file", "append_file"})
_WRITING: Final = _TEXT_WRITING | {"edit_file", "multi_edit", "delete_file", "move_file", "create_file"}

GOING_OUT: Final = frozenset({"http_get", "http_post", "fetch_url"})
"""Actions whose `url` is judged. Source: spec 4."""


def path_fields(action: str) -> tuple[str, ...]:
    """The arguments that name files, where this is a file action."""
    return _PATH_FIELDS if action in _READING | _LISTING | _WRITING else ()


def lists(action: str) -> bool:
    """Whether what this action names are folders, which are of no kind."""
    return action in _LISTING


def names_a_folder(action: str, field: str) -> bool:
    """Whether this argument may be a folder instead of a file: the kind of the file is then that of what is moved."""
    return action == "move_file" and field in {"target", "directory"}


def effect_of(action: str) -> Effect:
    """What an action of this name does; one that is not known counts as changing the world."""
    if action in _READING | _LISTING:
        return Effect.READ
    return Effect.NETWORK if action in {"http_get", "fetch_url"} else Effect.WRITE


def is_writer(action: str) -> bool:
    """Whether an action of this name is known to change something."""
    return action in _WRITING or action == "http_post"


def named_arguments(arguments: object) -> dict[str, Any]:
    """A copy of the arguments of a call, which has each of them by its name.

    Raises:
        TypeError: it is no mapping, or one of its keys is no text.
    """
    if not isinstance(arguments, Mapping):
        raise TypeError(f"the arguments of an action are a mapping, not {type(arguments).__name__}")
    found = dict(arguments)
    if wrong := next((type(key).__name__ for key in found if not isinstance(key, str)), ""):
        raise TypeError(f"the names of arguments are texts, not {wrong}")
    return found


def check_content(action: str, arguments: JsonMap) -> None:
    """Writers must supply content.

    Raises:
        ValueError: they do not.
    """
    if action in _TEXT_WRITING and not isinstance(arguments.get("content"), str):
        raise ValueError("Missing or invalid 'content' for write/append operation.")
