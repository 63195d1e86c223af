"""The secrets, sockets and devices in readable folders, which no program may see.

The rules for names and contents are those of the workspace. A folder is searched once, and again when its own status
has changed; a file that is judged by its content is read again when it has changed. Folders of packages, such as
`site-packages`, hold tens of thousands of files, with public keys in tests. Only files and folders with the usual names
of logins are judged there, and again only when the outermost folder has changed. The packages of our own Python
installation are not searched.
"""

import os
import re
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.commands.status_cache import StatusCache
from mendgraph.nodes.execute_tools.commands.workspace_cover import (
    ContentRule,
    NameRule,
    SearchError,
    applies,
    check_time,
    never,
)
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.bare_repositories import is_bare_repository, is_repository_data
from mendgraph.nodes.workspace.files.handles import closing, open_root, read_beginning
from mendgraph.nodes.workspace.files.sandbox import ContentJudge
from mendgraph.nodes.workspace.files.tree_walk import GIT_DIRECTORY

MOST_HIDDEN: Final = 300
"""Files and folders that are mounted over beside the workspace: each takes bubblewrap about a millisecond."""

_MOST_CACHED: Final = 200_000
"""Folders whose content is cached."""

_NESTED: Final = ("site-packages", "dist-packages", "node_modules")
"""Folders of packages inside of others; they are searched again when their own status has changed."""

_PACKAGES: Final = re.compile(
    rf"/(?:{'|'.join(_NESTED)}|lib(?:64)?/python3\.\d+t?|pkg/mod|\.cargo/(?:registry|git)|\.rustup)$"
)
_LOGIN: Final = re.compile(r"(?i)\..*|.*\.env|_netrc|pip\.(?:conf|ini)|credentials.*|secrets\..*")
"""Usual names of files and folders with logins; the rules decide whether one is denied."""


class Hidden(NamedTuple):
    """Absolute names: `files` are secrets, sockets, pipes and devices, `folders` look empty.

    `texts` are files of repositories that may hold logins, see `repository_texts`.
    """

    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


class _Kind(Enum):
    PLAIN, PACKAGES, REPOSITORY, INSTALLATION = auto(), auto(), auto(), auto()


class _Folder(NamedTuple):
    """A folder to search: its absolute name, and the name by which the rules judge it."""

    path: str
    judged_name: str
    kind: _Kind


@dataclass
class _Contents:
    """The result of the search of a folder on this `device`.

    `files` and `folders` are hidden. `judged_files` pairs the absolute names of files that are judged by content with
    their names for the rules. `inodes` pairs the inode number of each file that is not hidden with its absolute name.
    """

    device: int
    subfolders: list[_Folder] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    judged_files: list[tuple[str, str]] = field(default_factory=list)
    inodes: list[tuple[int, str]] = field(default_factory=list)


class ShownFolders:
    """Searches readable folders for what has to be hidden, with a cache. It is not thread-safe.

    `denied` and `contents` judge names that begin with the readable folder's own name; `refused` judges absolute names
    outside of the `installations`.
    """

    def __init__(self, denied: NameRule, contents: ContentJudge, refused: NameRule = never) -> None:
        self._denied = denied
        self._content_judge = contents
        self._refused = refused
        self._content_rule = ContentRule(contents)
        self._cache = StatusCache[_Contents](_MOST_CACHED)

    def find(
        self,
        folders: Iterable[str],
        root: str,
        deadline: float,
        repository: str | None = None,
        installations: Sequence[str] = (),
        hidden_files: Sequence[str] = (),
    ) -> Hidden | ToolError:
        """Return what has to be hidden in the folders now, without the workspace `root`.

        `repository` is one more readable folder, that of a git repository. The packages of `installations` are not
        searched: they are like the system's, and a search takes half a second. Hard links of `hidden_files`, those of
        the workspace, are hidden as well. TIMEOUT at `deadline` (of the monotonic clock), UNAVAILABLE if there is too
        much to hide.
        """
        pending = []
        for name in folders:
            kind = _Kind.INSTALLATION if name in installations else _kind_of(name)
            pending.append(_Folder(name, os.path.basename(name), kind))

        if repository is not None:
            pending.append(_Folder(repository, GIT_DIRECTORY, _Kind.REPOSITORY))

        searched: list[_Contents] = []
        try:
            while pending:
                folder = pending.pop()
                contents = None
                if folder.path != root:
                    contents = self._contents(folder, deadline)

                if contents is not None:
                    searched.append(contents)
                    pending += contents.subfolders

            hidden = self._hidden(searched, hidden_files, deadline)
        except SearchError as error:
            return error.reason

        if len(hidden.files) + len(hidden.folders) <= MOST_HIDDEN:
            return hidden

        message = (
            f"The folders that commands are shown have more than {MOST_HIDDEN} secrets, sockets, pipes or devices, so"
            " no command is run: name smaller folders in `readable_folders`."
        )
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)

    def _contents(self, folder: _Folder, deadline: float) -> _Contents | None:
        """Return the contents of the folder, from the cache if it is unchanged; None if it is not a folder."""
        _check_time(deadline)
        try:
            status = os.stat(folder.path, follow_symlinks=False)
        except OSError:
            return None

        if not stat.S_ISDIR(status.st_mode):
            return None

        return self._cache.value(folder.path, status, lambda: self._search(folder, status.st_dev, deadline))

    def _search(self, folder: _Folder, device: int, deadline: float) -> _Contents:
        """Search the entries of a folder; of a folder of packages also what lies below them."""
        contents = _Contents(device)
        pending = [(folder.path, folder.judged_name)]

        while pending:
            path, judged_name = pending.pop()
            _check_time(deadline)
            entries = _entries(path)
            is_packages = folder.kind is _Kind.PACKAGES
            is_repository = folder.kind is _Kind.REPOSITORY
            if not is_packages and is_bare_repository({entry.name for entry in entries}):
                is_repository = True

            for entry in entries:
                name = f"{judged_name}/{entry.name}"
                is_judged = not is_packages or _LOGIN.fullmatch(entry.name) is not None

                if entry.is_symlink():
                    continue

                if entry.is_dir(follow_symlinks=False):
                    kind = _Kind.REPOSITORY if is_repository else _kind_of(entry.path, folder.kind)
                    if is_judged or entry.name in _NESTED:
                        self._add_folder(_Folder(entry.path, name, kind), folder, contents)
                    else:
                        pending.append((entry.path, name))
                elif not entry.is_file(follow_symlinks=False):
                    contents.files.append(entry.path)
                elif entry.name == GIT_DIRECTORY:  # of a linked worktree: it only names a folder
                    contents.texts.append(entry.path)
                elif is_repository:
                    self._add_repository_file(entry, name, contents)
                elif is_judged:
                    self._add_file(entry, name, folder, contents)

        return contents

    def _add_folder(self, folder: _Folder, above: _Folder, contents: _Contents) -> None:
        if above.kind is _Kind.INSTALLATION and folder.kind is _Kind.PACKAGES:
            return

        is_hidden = False
        if folder.kind is not _Kind.REPOSITORY:
            is_hidden = applies(self._denied, folder.judged_name) or self._is_refused(folder.path, folder.kind)

        if is_hidden:
            contents.folders.append(folder.path)
        else:
            contents.subfolders.append(folder)

    def _add_file(self, entry: "os.DirEntry[str]", name: str, above: _Folder, contents: _Contents) -> None:
        if applies(self._denied, name) or self._is_refused(entry.path, above.kind):
            contents.files.append(entry.path)
            return

        if applies(lambda judged_name: self._content_judge(judged_name) is not None, name):
            contents.judged_files.append((entry.path, name))

        contents.inodes.append((entry.inode(), entry.path))

    def _add_repository_file(self, entry: "os.DirEntry[str]", name: str, contents: _Contents) -> None:
        if is_repository_data(name):
            return

        if applies(self._denied, f"git/{entry.name}"):
            contents.files.append(entry.path)
        else:
            contents.texts.append(entry.path)

    def _is_refused(self, path: str, kind: _Kind) -> bool:
        return kind is not _Kind.INSTALLATION and applies(self._refused, path)

    def _hidden(self, searched: Sequence[_Contents], hidden_files: Sequence[str], deadline: float) -> Hidden:
        files: set[str] = set()
        folders: set[str] = set()
        texts: set[str] = set()

        for contents in searched:
            files.update(contents.files)
            folders.update(contents.folders)
            texts.update(contents.texts)

            for path, name in contents.judged_files:
                _check_time(deadline)
                if self._is_denied_by_content(path, name):
                    files.add(path)

        hard_links = _hard_links((*files, *hidden_files))
        for contents in searched if hard_links else ():
            files.update(path for inode, path in contents.inodes if (contents.device, inode) in hard_links)

        return Hidden(tuple(sorted(files)), tuple(sorted(folders)), tuple(sorted(texts)))

    def _is_denied_by_content(self, path: str, name: str) -> bool:
        def read() -> bytes:
            folder, file_name = os.path.split(path)
            with closing(open_root(folder)) as handle:
                return read_beginning(handle, (file_name,))

        try:
            status = os.stat(path, follow_symlinks=False)
        except OSError:  # it was just removed
            return False

        return self._content_rule.denies(name, status, read)


def _kind_of(path: str, otherwise: _Kind = _Kind.PLAIN) -> _Kind:
    folder, name = os.path.split(path)
    if name == GIT_DIRECTORY:
        return _Kind.REPOSITORY

    is_go = name in {"src", "pkg"} and os.path.isfile(f"{folder}/bin/go")
    if is_go or _PACKAGES.search(path):
        return _Kind.PACKAGES

    return otherwise


def _check_time(deadline: float) -> None:
    check_time(deadline, "One of the folders shown to commands")


def _entries(path: str) -> "list[os.DirEntry[str]]":
    """Return the entries of the folder, none if we may not read it, as programs may not either."""
    with suppress(OSError), os.scandir(path) as entries:
        return list(entries)

    return []


def _hard_links(files: Iterable[str]) -> set[tuple[int, int]]:
    """Return device and inode number of those of the files that have several names."""
    identities = set()

    for name in files:
        with suppress(OSError):
            status = os.stat(name, follow_symlinks=False)
            if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
                identities.add((status.st_dev, status.st_ino))

    return identities
