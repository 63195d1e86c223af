"""What spec 4's environment knows of actions by their names: which arguments are paths, texts and addresses."""

from collections.abc import Mapping
from dataclasses import dataclass
from posixpath import splitext
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from nodes.records import Effect, JsonMap

_PATH_FIELDS: Final = ("file_name", "filename", "path", "target", "directory")
_READING: Final = frozenset({"read_file", "search_in_file", "file_info"})
_LISTING: Final = frozenset({"list_files", "list_directory", "glob_files", "search_files"})
_TEXT_WRITING: Final = frozenset({"write_file", "append_file"})
_WRITING: Final = _TEXT_WRITING | {"edit_file", "multi_edit", "delete_file", "move_file", "create_file"}
_GOING_OUT: Final = frozenset({"http_get", "http_post", "fetch_url"})


@dataclass(frozen=True)
class ActionRules:
    """What actions may do. Empty sets mean no restriction (of what is switched on). Source: spec 4."""

    allowed_exts: frozenset[str] = frozenset()
    allow_net: bool = False
    allowed_domains: frozenset[str] = frozenset()

    def path_fields(self, action: str) -> tuple[str, ...]:
        """The arguments that name files, where this is a file action."""
        return _PATH_FIELDS if action in _READING | _LISTING | _WRITING else ()

    def access(self, action: str) -> Literal["read_file", "write_file", "list_dir"]:
        """What the paths of this action are wanted for."""
        return "list_dir" if action in _LISTING else "write_file" if action in _WRITING else "read_file"

    def effect(self, action: str) -> Effect:
        """What an action of this name does; one that is not known counts as changing the world."""
        if action in _READING | _LISTING:
            return Effect.READ
        return Effect.NETWORK if action in {"http_get", "fetch_url"} else Effect.WRITE


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


def names_a_folder(action: str, field: str) -> bool:
    """Whether this argument may be a folder instead of a file: the kind of the file is then that of what is moved."""
    return action == "move_file" and field in {"target", "directory"}


def check_content(action: str, arguments: JsonMap) -> None:
    """Writers must supply content.

    Raises:
        ValueError: they do not.
    """
    if action in _TEXT_WRITING and not isinstance(arguments.get("content"), str):
        raise ValueError("Missing or invalid 'content' for write/append operation.")


def check_extension(rules: ActionRules, path: str) -> None:
    """Only files of allowed kinds.

    Raises:
        PermissionError: this one is not.
    """
    extension = splitext(path)[1].lower()
    if rules.allowed_exts and extension not in rules.allowed_exts:
        raise PermissionError(f"Extension '{extension}' not allowed.")


def check_domain(rules: ActionRules, action: str, arguments: JsonMap) -> None:
    """Only where the network is on, and only to allowed hosts.

    Raises:
        PermissionError: the network is off, or the host is not allowed.
        ValueError: there is no address.
    """
    if action not in _GOING_OUT:
        return
    if not rules.allow_net:
        raise PermissionError("Network access is disabled in this Environment.")
    url = arguments.get("url")
    if not isinstance(url, str) or not url:
        raise ValueError("A non-empty 'url' is required.")
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".").lower()
    if parts.scheme.lower() not in {"http", "https"} or not host or parts.username is not None:
        raise PermissionError(f"Only plain http and https addresses are allowed, not '{url[:200]}'.")
    if rules.allowed_domains and host not in rules.allowed_domains:
        raise PermissionError(f"Domain '{host}' not allowed.")
