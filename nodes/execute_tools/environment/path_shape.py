"""What can be a path at all, before anything is looked up."""

import os.path
from collections.abc import Set as AbstractSet
from typing import Final

from nodes.execute_tools.environment.failures import quoted
from nodes.records import ToolError, ToolErrorCode

LONGEST_NAME: Final = 255
LONGEST_PATH: Final = 4096
"""Bytes. Source: NAME_MAX and PATH_MAX of Linux."""


def malformed(path: str) -> ToolError | None:
    """Why this is no path, or None. Whatever a model sends is looked at, so it need not even be a string."""
    if not isinstance(path, str) or not path.strip():
        return _invalid("The path is empty: name a file or directory of the workspace.")
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return _invalid(f"The path {quoted(path)} is not valid Unicode text.")
    if b"\0" in encoded:
        return _invalid(f"The path {quoted(path)} contains a NUL character.")
    if len(encoded) > LONGEST_PATH or any(len(part) > LONGEST_NAME for part in encoded.split(b"/")):
        return _invalid(f"The path {quoted(path)} is too long: {LONGEST_NAME} bytes a name, {LONGEST_PATH} in all.")
    return None


def names_no_file(path: str, meant: str) -> ToolError | None:
    """Why this path can only name a directory, with the name that may be meant instead, or None."""
    if not path.endswith(("/", "/.")):
        return None
    return _invalid(f"The path {quoted(path)} names a directory, and a file is needed.", meant)


def extension_denial(name: str, allowed: AbstractSet[str]) -> ToolError | None:
    """Why a file of this name may not be used, or None. `allowed` is in lower case with the dot; empty allows all.

    Source: spec 4, `allowed_exts`.
    """
    extension = os.path.splitext(name)[1]
    if not allowed or extension.lower() in allowed:
        return None
    message = f"Extension {quoted(extension)} not allowed. Allowed: {', '.join(sorted(allowed))}."
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


def _invalid(message: str, *suggestions: str) -> ToolError:
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message, suggestions=suggestions)
