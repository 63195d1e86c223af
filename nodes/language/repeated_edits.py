"""Two `old_str` in one object are two edits.

A small model that has two changes to make in a file writes both into one object. JSON would keep the last of them and
silently lose the first; as one `multi_edit` call nothing is lost and nothing is guessed. Any other equal keys stay a
typed problem. Source: 7 of 551 logged replies of a 1.5B model.
"""

from typing import Any, Final, NamedTuple

from nodes.language.json_arguments import ArgumentProblem, Pairs, decode_arguments, decode_strictly
from nodes.records import JsonMap

EDIT_TOOL: Final = "edit_file"
MULTI_EDIT_TOOL: Final = "multi_edit"
OLD, NEW, EDITS = "old_str", "new_str", "edits"


class RepeatedEdits(dict[str, Any]):
    """The arguments of `multi_edit`, made of an object with several pairs of old and new text."""


class DecodedCall(NamedTuple):
    """The tool that a call is of, and its arguments."""

    tool: str
    arguments: JsonMap


def decode_call(tool: str, text: str, known_tools: frozenset[str]) -> DecodedCall | ArgumentProblem:
    """Decode the arguments of a call as `decode_arguments` does; several edits in one object become `multi_edit`."""
    arguments = decode_arguments(text)
    if isinstance(arguments, dict):
        return DecodedCall(tool, arguments)
    joined = decode_strictly(text, join=join_edits)
    split = split_call(tool, joined, known_tools) if isinstance(joined, RepeatedEdits) else None
    return split or arguments


def split_call(tool: str, arguments: JsonMap, known_tools: frozenset[str]) -> DecodedCall | None:
    """The call that these arguments, decoded with `join_edits`, make; None where edits stand in them out of place."""
    if isinstance(arguments, RepeatedEdits):
        splits = tool in {EDIT_TOOL, MULTI_EDIT_TOOL} and MULTI_EDIT_TOOL in known_tools
        return DecodedCall(MULTI_EDIT_TOOL, dict(arguments)) if splits else None
    return None if _holds_repeated(arguments) else DecodedCall(tool, arguments)


def join_edits(pairs: Pairs) -> RepeatedEdits | None:
    """The object as several edits in order: the first `old_str` with the first `new_str`, and so on.

    None unless there is one new text for each old one, and nothing else is repeated or holds more than one value.
    """
    old = [value for key, value in pairs if key == OLD]
    new = [value for key, value in pairs if key == NEW]
    others = [(key, value) for key, value in pairs if key not in {OLD, NEW}]
    rest = dict(others)
    are_texts = all(isinstance(value, str) for value in (*old, *new))
    is_plain = len(rest) == len(others) and EDITS not in rest and not any(map(_is_container, rest.values()))
    if len(old) != len(new) or not are_texts or not is_plain:
        return None
    return RepeatedEdits({**rest, EDITS: [{OLD: each, NEW: by} for each, by in zip(old, new, strict=True)]})


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list)


def _holds_repeated(value: Any) -> bool:
    if isinstance(value, RepeatedEdits):
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_holds_repeated, inner))
