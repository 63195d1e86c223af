"""Links in a copy to the folders with what is installed for a project, which git does not store.

A folder `node_modules` becomes a folder of links, one for each package. So a link to a package of the project itself,
as npm, pnpm and yarn create them for their workspaces, leads to the package in the copy, and tools can store their
caches beside the packages.
"""

import os
from collections.abc import Iterable, Iterator
from typing import Final

INSTALLED: Final = (".venv", "venv", "node_modules")
"""Folders that a project's tests need and git does not store."""
PACKAGES: Final = "node_modules"
_CACHES: Final = (".cache", ".vite", ".vite-temp", ".vitest")


def link_installed(workspace: str, root: str, package_folders: Iterable[str] = ()) -> list[str]:
    """Create the links in the copy at `root`; return their names, relative to it.

    `package_folders` are the relative names of folders with packages of their own.
    """
    names = [*INSTALLED, *(os.path.join(folder, PACKAGES) for folder in package_folders)]
    links = []

    for name in dict.fromkeys(map(os.path.normpath, names)):
        target = os.path.join(workspace, name)
        link = os.path.join(root, name)
        if not os.path.isdir(target) or os.path.lexists(link) or not os.path.isdir(os.path.dirname(link)):
            continue

        if os.path.basename(name) == PACKAGES:
            _link_packages(target, link, os.path.realpath(workspace), root)
        else:
            os.symlink(os.path.realpath(target), link)

        links.append(name)

    return links


def _link_packages(target: str, link: str, workspace: str, root: str) -> None:
    """Create a folder with links to the packages in `target`; one of the workspace becomes that of the copy."""
    os.mkdir(link)
    with os.scandir(target) as entries:
        for entry in entries:
            name = os.path.join(link, entry.name)
            if entry.name.startswith("@") and entry.is_dir(follow_symlinks=False):
                _link_packages(entry.path, name, workspace, root)
            elif entry.name not in _CACHES:
                os.symlink(_target_in_copy(os.path.realpath(entry.path), workspace, root), name)


def _target_in_copy(real: str, workspace: str, root: str) -> str:
    """Return the place of a package in the copy if it belongs to the workspace itself."""
    place = os.path.relpath(real, workspace)
    if place.startswith(os.pardir) or PACKAGES in place.split(os.sep):
        return real

    return os.path.join(root, place)


def installed_folders(root: str) -> tuple[str, ...]:
    """Return the targets of the links in the copy at `root`: folders of the user's workspace that tests read."""
    folders: dict[str, None] = {}
    for name in INSTALLED:
        path = os.path.join(root, name)
        if os.path.islink(path):
            folders[os.path.realpath(path)] = None
        elif name == PACKAGES and os.path.isdir(path):
            folders.update(dict.fromkeys(_package_folders(path, os.path.realpath(root))))

    return tuple(folders)


def _package_folders(folder: str, root: str) -> Iterator[str]:
    """Yield the outermost `node_modules` of the target of each link."""
    with os.scandir(folder) as entries:
        for entry in entries:
            real = os.path.realpath(entry.path)
            if entry.name.startswith("@") and entry.is_dir(follow_symlinks=False):
                yield from _package_folders(entry.path, root)
            elif entry.is_symlink() and f"/{PACKAGES}/" in real and not real.startswith(f"{root}/"):
                yield f"{real.partition(f'/{PACKAGES}/')[0]}/{PACKAGES}"
