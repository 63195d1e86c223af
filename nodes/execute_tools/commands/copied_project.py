"""The project of which a workspace is a copy in a linked worktree, as unattended runs and batches make them.

What is installed for the project stays beside the original. A package that is installed from the project's own folder
("editable") would be the original's, which programs cannot see.
"""

import glob
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from mendgraph.nodes.workspace.processes.git import linked_repository

ENVIRONMENTS: Final = (".venv", "venv")
_REFERENCES: Final = ("*.pth", "__editable__*_finder.py")
"""Files of `site-packages` that name the folders of editable packages."""
_FOLDER: Final = re.compile(r"^(/[^\n]+)$|'(/[^'\n]+)'", re.MULTILINE)
_LARGEST: Final = 100_000


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


def editable_folders(root: str) -> list[str]:
    """Return the folders of the copy that take the place of those of the project's editable packages."""
    project = original_project(root)
    if project is None:
        return []

    folders: dict[str, None] = {}
    for name in _references(project):
        for found in _FOLDER.findall(_text(name)):
            path = os.path.realpath(found[0] or os.path.dirname(found[1]))
            place = os.path.normpath(os.path.join(root, os.path.relpath(path, project)))
            if f"{path}/".startswith(f"{project}/") and os.path.isdir(place):
                folders[place] = None

    return list(folders)


def _references(project: str) -> Iterator[str]:
    for environment in ENVIRONMENTS:
        for pattern in _REFERENCES:
            folder = os.path.join(glob.escape(project), environment, "lib", "python3*", "site-packages")
            yield from sorted(glob.glob(os.path.join(folder, pattern)))


def _text(name: str) -> str:
    with suppress(OSError), open(name, encoding="utf-8", errors="replace") as file:
        return file.read(_LARGEST)

    return ""
