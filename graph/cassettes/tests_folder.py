"""The folder of tests: pytest's root directory, and the files and values that are written there."""

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mendgraph.nodes.execute_tools.files.file_changes import MOST_CHANGES
from mendgraph.nodes.execute_tools.files.workspace import Change, DeleteFile, FileContent, Workspace, WriteFile
from mendgraph.nodes.records import ToolError, ToolErrorCode, quoted

_CONFIGURATIONS: Final = (
    *("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml"),
    *("tox.ini", "setup.cfg", "setup.py"),
)
"""The files that pytest reads first, in its order. Source: its reference, "Configuration file formats"."""


def tests_root(target: str, workspace: str) -> tuple[str, bool]:
    """Pytest's root directory for tests in `target`, and whether pytest finds it without an option.

    It is the nearest folder above that is set up for pytest, or the workspace, or outside of it the target.
    Source: pytest's reference, "Initialization: determining rootdir and configfile".
    """
    real = folder = os.path.realpath(target)
    while folder != os.path.dirname(folder):
        if any(os.path.isfile(os.path.join(folder, name)) for name in _CONFIGURATIONS):
            return folder, True
        folder = os.path.dirname(folder)

    if real.startswith(f"{workspace.rstrip('/')}/"):
        return workspace, False

    return real, False


def pytest_command(path: str, root: str, *, configured: bool) -> str:
    """The command that runs the test at `path` from any folder; `configured`: pytest finds its root by itself."""
    if configured:
        return shlex.join(["pytest", path])

    return shlex.join(["pytest", "--rootdir", root, path])


def write_files(root: str, contents: Mapping[str, bytes], beside: str, *, force: bool) -> ToolError | None:
    """Write the files; CONFLICT where one exists, unless `force`. Other files in the folder `beside` are deleted."""
    if not os.path.isdir(root):
        os.makedirs(root)
    workspace = Workspace(root, lambda *_: None)
    changes: list[Change] = []
    for path, data in contents.items():
        sha256 = ""
        if workspace.exists(path):
            current = workspace.read_file(path)
            if isinstance(current, ToolError):
                return current

            sha256 = current.sha256
            if not force and current.data != data:
                message = f"{quoted(os.path.join(root, path))} is there already: take another --name, or --force."
                return ToolError(code=ToolErrorCode.CONFLICT, message=message)
        changes.append(WriteFile(path, data, expected_sha256=sha256))
    old = [entry.path for entry in workspace.walk(beside) if entry.kind == "file" and entry.path not in contents]
    for path in old:
        content = workspace.read_file(path)
        if isinstance(content, FileContent):
            changes.append(DeleteFile(content.path, content.sha256))

    return change_files(workspace, changes)


def change_files(workspace: Workspace, changes: Sequence[Change]) -> ToolError | None:
    """Make all changes; up to `MOST_CHANGES` are atomic."""
    for start in range(0, len(changes), MOST_CHANGES):
        done = workspace.change_files(changes[start : start + MOST_CHANGES])
        if isinstance(done, ToolError):
            return done
    return None


def literal(value: Any) -> str:
    """The value as Python code: a text in double quotes where it needs no escapes, anything else as its `repr`."""
    if isinstance(value, str) and value.isprintable() and not {'"', "\\"} & set(value):
        return f'"{value}"'

    return repr(value)
