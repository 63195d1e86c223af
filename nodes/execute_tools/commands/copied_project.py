"""The project of which a workspace is a copy in a linked worktree, as unattended runs and batches make them.

What is installed for the project stays beside the original. A package that is installed from the project's own folder
("editable") would be the original's, which programs cannot see.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from mendgraph.nodes.workspace.files.handles import closing, open_directory, open_root, read_beginning
from mendgraph.nodes.workspace.processes.git import linked_repository

ENVIRONMENTS: Final = (".venv", "venv")
_REFERENCE: Final = re.compile(r".+\.pth|__editable__.*_finder\.py")
"""Files of `site-packages` that name the folders of editable packages."""
_FOLDER: Final = re.compile(r"^(/[^\n]+)$|'(/[^'\n]+)'", re.MULTILINE)


def original_project(root: str) -> str | None:
    """Return the folder of the main worktree whose copy is the workspace `root` (a path without links)."""
    folder = root

    while True:
        repository = linked_repository(folder)
        if repository is not None and os.path.basename(repository) == ".git":
            return os.path.normpath(os.path.join(os.path.dirname(repository), os.path.relpath(root, folder)))

        parent = os.path.dirname(folder)
        if parent == folder or os.path.lexists(os.path.join(folder, ".git")):
            return None

        folder = parent


def editable_folders(root: str, readable: Sequence[str] = ()) -> list[str]:
    """Return the folders of the copy that take the place of those of the project's editable packages.

    The environments are the usual ones of the project, and the `readable` folders that are one. Python searches these
    folders before its standard library: one with a module of the same name is left out.
    """
    project = original_project(root)
    if project is None:
        return []

    folders: dict[str, None] = {}
    usual = [os.path.realpath(os.path.join(project, name)) for name in ENVIRONMENTS]
    for environment in dict.fromkeys((*usual, *readable)):
        for text in _references(environment):
            for line, quoted in _FOLDER.findall(text):
                path = os.path.realpath(line or os.path.dirname(quoted))
                place = os.path.normpath(os.path.join(root, os.path.relpath(path, project)))
                is_inside = f"{path}/".startswith(f"{project}/")
                if is_inside and os.path.isdir(place) and not _hides_standard_library(place):
                    folders[place] = None

    return list(folders)


def _hides_standard_library(folder: str) -> bool:
    with suppress(OSError), closing(open_root(folder)) as handle:
        for name in _names(handle):
            module, _, suffix = name.partition(".")
            is_module = suffix.endswith(("py", "so")) or "__init__.py" in _names(handle, name)
            if module in sys.stdlib_module_names and is_module:
                return True

    return False


def _references(environment: str) -> Iterator[str]:
    """Yield the texts in which an environment names the folders of editable packages."""
    with suppress(OSError), closing(open_root(environment)) as handle:
        for library in _names(handle, "lib"):
            packages = ("lib", library, "site-packages")
            for name in _names(handle, *packages):
                if _REFERENCE.fullmatch(name):
                    yield _text(handle, (*packages, name))


def _names(folder_fd: int, *parts: str) -> list[str]:
    with suppress(OSError), closing(open_directory(folder_fd, parts)) as folder:
        return sorted(os.listdir(folder))

    return []


def _text(folder_fd: int, parts: Sequence[str]) -> str:
    with suppress(OSError):
        return read_beginning(folder_fd, parts).decode(errors="replace")

    return ""
