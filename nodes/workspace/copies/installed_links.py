"""Links in a copy to the folders with what is installed for a project, which git does not store.

A folder `node_modules` becomes a folder of links, one for each package. So a link to a package of the project itself,
as npm, pnpm and yarn create them for their workspaces, leads to the package in the copy, and tools can store their
caches beside the packages. Git ignores all of it.
"""

import os
from collections.abc import Collection, Iterable
from typing import Final

from mendgraph.nodes.workspace.files.tree_walk import VIRTUAL_ENVIRONMENTS

PACKAGES: Final = "node_modules"
_IGNORE_FILE: Final = ".gitignore"
_CACHES: Final = (".cache", ".vite", ".vite-temp", ".vitest")


def link_installed(
    workspace: str, root: str, project_folders: Iterable[str] = (), tracked: Collection[str] = ()
) -> dict[str, str]:
    """Create the links in the copy at `root`; return their names, relative to it, and the folders of the workspace.

    `project_folders` are the relative names of folders with projects of their own. What git tracks, in the copy or
    among the `tracked` names, gets no link: a link in a repository could lead to any folder.
    """
    installed: dict[str, str] = {}
    names = [
        os.path.normpath(os.path.join(folder, name))
        for folder in ("", *project_folders)
        for name in (*VIRTUAL_ENVIRONMENTS, PACKAGES)
    ]

    for name in dict.fromkeys(names):
        link = os.path.join(root, name)
        folder = _installed_folder(os.path.realpath(workspace), name)
        has_place = os.path.isdir(os.path.dirname(link)) and not os.path.lexists(link)
        if folder is None or name in tracked or not has_place:
            continue

        if _is_environment(name):
            os.symlink(folder, link)
        else:
            _link_packages(folder, link, os.path.realpath(workspace), root)
            with open(os.path.join(link, _IGNORE_FILE), "x", encoding="utf-8") as file:
                file.write("*\n")

        installed[name] = folder

    return installed


def _installed_folder(workspace: str, name: str) -> str | None:
    """Return the real name of the workspace's folder; one that is elsewhere must be a virtual environment."""
    folder = os.path.realpath(os.path.join(workspace, name))
    is_inside = folder == os.path.join(workspace, name)
    is_environment = _is_environment(name) and os.path.isfile(os.path.join(folder, "pyvenv.cfg"))
    return folder if os.path.isdir(folder) and (is_inside or is_environment) else None


def _is_environment(name: str) -> bool:
    return os.path.basename(name) in VIRTUAL_ENVIRONMENTS


def _link_packages(target: str, link: str, workspace: str, root: str) -> None:
    """Create a folder with links to the packages in `target`; one of the workspace becomes that of the copy."""
    os.mkdir(link)
    with os.scandir(target) as entries:
        for entry in entries:
            name = os.path.join(link, entry.name)
            if entry.name.startswith("@") and entry.is_dir(follow_symlinks=False):
                _link_packages(entry.path, name, workspace, root)
            elif entry.name not in (*_CACHES, _IGNORE_FILE):
                os.symlink(_target_in_copy(os.path.realpath(entry.path), workspace, root), name)


def _target_in_copy(real: str, workspace: str, root: str) -> str:
    """Return the place of a package in the copy if it belongs to the workspace itself."""
    place = os.path.relpath(real, workspace)
    if place.startswith(os.pardir) or PACKAGES in place.split(os.sep):
        return real

    return os.path.join(root, place)


def is_installed(root: str, name: str, installed: Iterable[str]) -> bool:
    """Return whether this untracked file of the copy is one of its `installed` links, or in a cache beside them."""
    for folder in installed:
        if not f"{name}/".startswith(f"{folder}/"):
            continue

        parts = name[len(folder) + 1 :].split("/")
        is_package = len(parts) == 1 or (len(parts) == 2 and parts[0].startswith("@"))
        if parts[0] in _CACHES or parts == [_IGNORE_FILE] or (is_package and os.path.islink(os.path.join(root, name))):
            return True

    return False
