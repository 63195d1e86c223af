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

from mendgraph.nodes.workspace.files.handles import beginning_if_readable, closing, list_names, open_root
from mendgraph.nodes.workspace.files.tree_walk import VIRTUAL_ENVIRONMENTS
from mendgraph.nodes.workspace.processes.git import linked_repository

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
    usual = [os.path.realpath(os.path.join(project, name)) for name in VIRTUAL_ENVIRONMENTS]
    for environment in dict.fromkeys((*usual, *readable)):
        for path in _editable_paths(environment):
            folder = os.path.normpath(os.path.join(root, os.path.relpath(path, project)))
            is_inside = f"{path}/".startswith(f"{project}/")
            if is_inside and os.path.isdir(folder) and not _hides_standard_library(folder):
                folders[folder] = None

    return list(folders)


def _hides_standard_library(folder: str) -> bool:
    """Return whether the folder has a module or package of a name in the standard library."""
    with suppress(OSError), closing(open_root(folder)) as handle:
        for name in list_names(handle):
            is_module = name.endswith((".py", ".so")) or "__init__.py" in list_names(handle, name)
            if is_module and name.partition(".")[0] in sys.stdlib_module_names:
                return True

    return False


def _editable_paths(environment: str) -> Iterator[str]:
    """Yield the folders that an environment names for its editable packages."""
    with suppress(OSError), closing(open_root(environment)) as handle:
        for library in list_names(handle, "lib"):
            packages = ("lib", library, "site-packages")
            references = [name for name in list_names(handle, *packages) if _REFERENCE.fullmatch(name)]

            for name in references:
                text = beginning_if_readable(handle, *packages, name).decode(errors="replace")
                for line, package in _FOLDER.findall(text):
                    yield os.path.realpath(line or os.path.dirname(package))
