"""Create a copy, compare it, and apply its patch."""

import subprocess
from pathlib import Path

from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.copies.workspace_copies import Copy, compare_copy, make_copy


def made_copy(workspace: Path, folder: Path, revision: str = "") -> Copy:
    copy = make_copy(str(workspace), revision, str(folder))
    assert isinstance(copy, Copy), copy
    return copy


def error_of(result: object) -> str:
    """The code and the message of an error."""
    assert isinstance(result, ToolError), result
    return f"{result.code.value}: {result.message}"


def patch_of(copy: Copy) -> bytes:
    patch = compare_copy(copy.folder)
    assert isinstance(patch, bytes), patch
    return patch


def apply_patch(patch: bytes, folder: str) -> None:
    subprocess.run(["git", "apply", "--allow-empty", "-"], input=patch, cwd=folder, check=True, capture_output=True)
