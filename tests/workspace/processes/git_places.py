"""Repositories and folders for tests of copies, and their content."""

import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mendgraph.nodes.workspace.processes.git import Repository, find_repository

IDENTITY: Final = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
FILES: Final = {"a.txt": "a\n", "src/b.py": "b = 1\n", ".gitignore": "*.log\nbuild/\n"}

Tree = dict[str, tuple[bool, bytes]]
"""For each file and link whether it is executable, and its bytes, or "-> " and the target."""


def git(folder: Path, *arguments: str) -> str:
    """Run git and return its output."""
    done = subprocess.run(["git", "-C", str(folder), *IDENTITY, *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write these files into the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def repository(folder: Path, files: Mapping[str, str | bytes] = FILES) -> Path:
    """A repository with one commit of these files."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    write(folder, files)
    return commit_all(folder)


def commit_all(folder: Path) -> Path:
    """Commit all files."""
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "more")
    return folder


def head(folder: Path) -> str:
    """The id of the current commit."""
    return git(folder, "rev-parse", "HEAD").strip()


def repository_of(path: Path) -> Repository:
    """Open the repository of this folder."""
    repository = find_repository(str(path))
    assert isinstance(repository, Repository), repository
    return repository


def tree(folder: Path) -> Tree:
    """All files and links, without `.git`."""
    entries: Tree = {}
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != ".git"]
        for name in (
            *names,
            *(folder_name for folder_name in folders if os.path.islink(os.path.join(above, folder_name))),
        ):
            path = Path(above, name)
            relative, mode = path.relative_to(folder).as_posix(), path.lstat().st_mode
            if name == ".git":
                continue
            if stat.S_ISLNK(mode):
                entries[relative] = False, b"-> " + os.fsencode(os.readlink(path))
            elif stat.S_ISREG(mode):
                entries[relative] = bool(mode & stat.S_IXUSR), path.read_bytes()
    return entries


def protected_files(folder: Path) -> dict[str, bytes]:
    """The files of a repository that must not change: those of `.git` except objects and records of worktrees."""
    root = folder / ".git"
    names = (path for path in root.rglob("*") if path.is_file())
    return {
        name: path.read_bytes()
        for path in names
        if not (name := path.relative_to(root).as_posix()).startswith(("objects/", "worktrees/"))
    }
