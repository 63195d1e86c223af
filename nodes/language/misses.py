"""Edits whose old text is not in the file: how they are recognised, and what is said of those that miss again."""

from typing import Final

from nodes.records import ToolError, ToolErrorCode

MISSED: Final = "old_str does not occur in"
"""How the error of such an edit begins, after what multi_edit says of the edits before."""
WHOLE_FORM_AFTER: Final = 2
"""Misses on one file in one turn after which the whole file is asked for: who cannot quote it can still write it."""


def is_miss(error: ToolError | None) -> bool:
    """Whether an edit failed because its old text is not in the file."""
    return error is not None and error.code is ToolErrorCode.INVALID_ARGUMENT and MISSED in error.message


def miss_advice(path: str, misses: int) -> str:
    """What is added to the error of the last of so many misses on this file, "" where nothing is yet.

    It names the form that needs no old text. The file is read first, as write_file replaces only what was read.
    """
    if misses < WHOLE_FORM_AFTER:
        return ""
    return (
        f"That is miss {misses} on {path} in this turn: read_file it, then give its whole new text with write_file"
        " instead of old_str and new_str."
    )
