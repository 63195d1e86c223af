"""The effects of actions by name or declaration, and their path arguments."""

from typing import Final

from mendgraph.nodes.records import Effect

FILE_NAMES: Final = ("file_name", "filename", "path", "target", "directory")
"""Path arguments of file actions."""

# Spec 4's names of actions. `http_post` uses the network and counts as a write.
LISTING: Final = frozenset({"list_files", "list_directory", "glob_files", "search_files"})
READING: Final = LISTING | {"read_file", "search_in_file", "file_info"}
TEXT_WRITING: Final = frozenset({"write_file", "append_file"})
WRITING: Final = TEXT_WRITING | {"edit_file", "multi_edit", "delete_file", "move_file", "create_file"}
GOING_OUT: Final = frozenset({"http_get", "http_post", "fetch_url"})


def effect_by_name(action: str) -> Effect:
    """Return the effect of an action with this name; an unknown one counts as a write."""
    if action in READING:
        return Effect.READ
    if action in {"http_get", "fetch_url"}:
        return Effect.NETWORK

    return Effect.WRITE


def declared_effect(action: object) -> Effect | None:
    """Return the effect that an action declares, or None."""
    effect = getattr(action, "effect", None)
    return effect if isinstance(effect, Effect) else None
