"""What an action does, as it declares it or as its name says, and which of its arguments are paths."""

from typing import Final

from mendgraph.nodes.records import Effect

FILE_NAMES: Final = ("file_name", "filename", "path", "target", "directory")
"""Arguments of file actions that are paths."""

# Spec 4's names of actions, by what they do. `http_post` goes out and counts as a write.
LISTING: Final = frozenset({"list_files", "list_directory", "glob_files", "search_files"})
READING: Final = LISTING | {"read_file", "search_in_file", "file_info"}
TEXT_WRITING: Final = frozenset({"write_file", "append_file"})
WRITING: Final = TEXT_WRITING | {"edit_file", "multi_edit", "delete_file", "move_file", "create_file"}
GOING_OUT: Final = frozenset({"http_get", "http_post", "fetch_url"})


def effect_by_name(action: str) -> Effect:
    """What an action of this name does; one that is not known counts as changing the world."""
    if action in READING:
        return Effect.READ
    if action in {"http_get", "fetch_url"}:
        return Effect.NETWORK

    return Effect.WRITE


def declared_effect(action: object) -> Effect | None:
    """The effect that an action declares, None where it declares none."""
    effect = getattr(action, "effect", None)
    return effect if isinstance(effect, Effect) else None
