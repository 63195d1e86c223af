"""What pytest will make of a folder of tests: its root directory, and where the plugin looks for cassettes there.

Source: pytest's reference, "Initialization: determining rootdir and configfile" and "Configuration file formats".
"""

import os
from collections.abc import Mapping
from configparser import ConfigParser, Error as IniError
from dataclasses import dataclass
from typing import Any, Final

from graph.cassettes.replayed_run import anything_goes
from nodes.execute_tools.environment.failures import quoted
from nodes.language.documents import DocumentProblem, read_toml
from nodes.records import ToolError, ToolErrorCode

LIBRARY: Final = "cassettes"
"""Where the plugin looks, below the root directory, where the option does not say otherwise."""

_OPTION: Final = "mendgraph_cassettes"
_TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "pytest.toml": ("pytest",),
    ".pytest.toml": ("pytest",),
    "pytest.ini": ("pytest",),
    ".pytest.ini": ("pytest",),
    "pyproject.toml": ("tool.pytest", "tool.pytest.ini_options"),
    "tox.ini": ("pytest",),
    "setup.cfg": ("tool:pytest",),
}
"""The files that pytest reads, in its order, and what its options stand under."""


@dataclass(frozen=True)
class TestsRoot:
    """`folder` is the root directory; `configured` says whether pytest finds it by itself, from wherever it starts."""

    __test__ = False

    folder: str
    configured: bool


def tests_root(target: str, workspace: str) -> TestsRoot:
    """The nearest folder above `target` that is set up for pytest, or the workspace, or outside of it the target."""
    folder = os.path.realpath(target)
    while folder != os.path.dirname(folder):
        if any(os.path.isfile(os.path.join(folder, name)) for name in (*_TABLES, "setup.py")):
            return TestsRoot(folder, configured=True)
        folder = os.path.dirname(folder)
    inside = os.path.realpath(target).startswith(f"{workspace.rstrip('/')}/")
    return TestsRoot(workspace if inside else os.path.realpath(target), configured=False)


def library_of(root: str) -> str | ToolError:
    """The folder of cassettes, relative to the root directory; one outside of it is refused."""
    for name, tables in _TABLES.items():
        if not os.path.isfile(os.path.join(root, name)):
            continue
        content = anything_goes(root).read_file(name)
        if isinstance(content, ToolError):
            return content
        try:
            found = _tables_of(name, content.data.decode("utf-8"))
        except (ValueError, IniError) as error:
            reason = str(error).partition("\n")[0]
            message = f"{quoted(os.path.join(root, name))} cannot be read, so pytest would not start: {reason}."
            return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
        own = [found[table] for table in tables if isinstance(found.get(table), Mapping)]
        if own:
            said = next((each[_OPTION] for each in own if _OPTION in each), LIBRARY)
            return _inside(root, name, said)
        if name.removeprefix(".") in {"pytest.toml", "pytest.ini"}:  # pytest reads on in no other file
            return LIBRARY
    return LIBRARY


def _tables_of(name: str, text: str) -> Mapping[str, Any]:
    """The tables of a file by their names.

    Raises:
        ValueError, configparser.Error: it cannot be read.
    """
    if not name.endswith(".toml"):
        parser = ConfigParser(interpolation=None, strict=False, allow_no_value=True)
        parser.read_string(text)
        return dict(parser)
    document = read_toml(text)
    if isinstance(document, DocumentProblem):
        raise ValueError(document.message)
    tool = document.get("tool")
    pytest = tool.get("pytest") if isinstance(tool, dict) else None
    options = pytest.get("ini_options") if isinstance(pytest, dict) else None
    return {**document, "tool.pytest": pytest, "tool.pytest.ini_options": options}


def _inside(root: str, name: str, said: object) -> str | ToolError:
    path = os.path.relpath(os.path.join(root, said), root) if isinstance(said, str) and said else ".."
    if path == ".." or path.startswith(f"..{os.sep}"):
        message = (
            f"{_OPTION} in {quoted(os.path.join(root, name))} is {said!r}, which is no folder below it: name one there,"
            " or write the test elsewhere with --output."
        )
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    return path.replace(os.sep, "/")
