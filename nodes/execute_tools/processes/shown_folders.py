"""What of the folders that are shown beside the workspace no program may see: secrets, and ways out of the sandbox.

The same rules hold as in the workspace, for names and contents. A folder is looked through once, and again when its own
time has changed; a file that is judged by what it holds is read again when it has changed. Where installers put
packages, such as `site-packages`, there are tens of thousands of files, with keys that are public, as tests use them.
Only names in which people keep logins are judged there, and again when the outermost folder has changed. The packages
of our own Python installation are not looked through.
"""

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.files.bare_repositories import is_bare_repository, is_repository_data
from mendgraph.nodes.execute_tools.files.handles import beginning, closing, open_root
from mendgraph.nodes.execute_tools.files.sandbox import ContentJudge
from mendgraph.nodes.execute_tools.files.tree_walk import GIT_DIRECTORY
from mendgraph.nodes.execute_tools.processes.workspace_cover import SETTLED_NS, Denied, HeldSecrets, too_late
from mendgraph.nodes.records import ToolError, ToolErrorCode

MOST_HIDDEN: Final = 300
"""Files and folders that are mounted over beside the workspace: each takes bubblewrap about a millisecond."""

_NESTED: Final = ("site-packages", "dist-packages", "node_modules")
"""Folders of packages that lie in others, and are looked at again when their own time has changed."""

_PACKAGES: Final = re.compile(
    rf"/(?:{'|'.join(_NESTED)}|lib(?:64)?/python3\.\d+t?|pkg/mod|\.cargo/(?:registry|git)|\.rustup)$"
)
_LOGIN: Final = re.compile(r"(?i)\..*|.*\.env|_netrc|pip\.(?:conf|ini)|credentials.*|secrets\..*")
"""Names of files and folders in which people keep logins; whether they do the rules say."""


class Hidden(NamedTuple):
    """Absolute names: `files` are secrets, sockets, pipes and devices, `folders` look empty.

    `texts` are files of repositories that may hold logins, see `repository_texts`.
    """

    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


class _Kind(Enum):
    PLAIN, PACKAGES, REPOSITORY, INSTALLATION = auto(), auto(), auto(), auto()


class _Place(NamedTuple):
    """A folder to look at: its absolute name, and the name by which the rules judge it."""

    path: str
    judged: str
    kind: _Kind


@dataclass
class _Contents:
    """What was found in a folder whose status gave this `stamp`.

    `judged` pairs the absolute names of files of which the contents tell with the names for the rules. `numbers` pairs
    the inode number of every other file with its absolute name.
    """

    stamp: tuple[int, ...]
    inner: list[_Place] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    judged: list[tuple[str, str]] = field(default_factory=list)
    numbers: list[tuple[int, str]] = field(default_factory=list)


class _TimeIsOverError(Exception):
    """The deadline has come."""


class ShownFolders:
    """Finds what is to be hidden in folders that are shown beside the workspace, and remembers what it has seen.

    `denied` and `contents` judge names that begin with the shown folder's own, `refused` absolute names of what is in
    none of the `installations`. Not for several threads at a time.
    """

    def __init__(self, denied: Denied, contents: ContentJudge, refused: Denied = lambda _: False) -> None:
        self._denied = denied
        self._judges_content = contents
        self._refused = refused
        self._holds = HeldSecrets(contents)
        self._known: dict[str, _Contents] = {}

    def find(
        self,
        folders: Iterable[str],
        root: str,
        deadline: float,
        repository: str | None = None,
        installations: Sequence[str] = (),
    ) -> Hidden | ToolError:
        """What is to be hidden now in the folders, but not in the workspace `root`.

        `repository` is another shown folder, of git's own. The packages of `installations` are not looked through: they
        are like the system's, and it takes half a second. TIMEOUT at `deadline` (of the monotonic clock), UNAVAILABLE
        where there is too much.
        """
        waiting = [
            _Place(name, os.path.basename(name), _Kind.INSTALLATION if name in installations else _kind_of(name))
            for name in folders
        ]

        if repository is not None:
            waiting.append(_Place(repository, GIT_DIRECTORY, _Kind.REPOSITORY))

        found: list[_Contents] = []
        try:
            while waiting:
                place = waiting.pop()
                if place.path == root:
                    continue

                contents = self._look_at(place, deadline)
                if contents is not None:
                    found.append(contents)
                    waiting += contents.inner

            hidden = self._hidden(found, deadline)
        except _TimeIsOverError:
            return too_late(f"One of the folders shown beside {root}")

        if len(hidden.files) + len(hidden.folders) <= MOST_HIDDEN:
            return hidden

        return _too_much()

    def _look_at(self, place: _Place, deadline: float) -> _Contents | None:
        """What is in the folder, which is looked through only if it has changed; None for what is no folder."""
        if time.monotonic() > deadline:
            raise _TimeIsOverError

        try:
            status = os.stat(place.path, follow_symlinks=False)
        except OSError:
            return None

        if not stat.S_ISDIR(status.st_mode):
            return None

        stamp = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        cached = self._known.get(place.path)
        if cached is not None and cached.stamp == stamp:
            return cached

        contents = _Contents(stamp)

        if place.kind is _Kind.PACKAGES:
            self._look_through_packages(place, contents, deadline)
        else:
            self._look_through(place, contents)

        if time.time_ns() - status.st_ctime_ns > SETTLED_NS:
            self._known[place.path] = contents
        else:  # it may change without its time telling
            self._known.pop(place.path, None)

        return contents

    def _look_through(self, place: _Place, contents: _Contents) -> None:
        entries = _entries(place.path)
        is_repository = place.kind is _Kind.REPOSITORY or is_bare_repository({entry.name for entry in entries})

        for entry in entries:
            name = f"{place.judged}/{entry.name}"
            if entry.is_symlink():
                continue

            if entry.is_dir(follow_symlinks=False):
                kind = _Kind.REPOSITORY if is_repository else _kind_of(entry.path)
                if place.kind is _Kind.INSTALLATION and kind is _Kind.PACKAGES:
                    continue

                if place.kind is _Kind.INSTALLATION and kind is _Kind.PLAIN:
                    kind = _Kind.INSTALLATION

                self._add_folder(_Place(entry.path, name, kind), contents)
            elif not entry.is_file(follow_symlinks=False):
                contents.files.append(entry.path)
            elif not is_repository:
                self._add_file(entry, name, contents, installed=place.kind is _Kind.INSTALLATION)
            elif not is_repository_data(name):
                hidden = self._is_denied(f"git/{entry.name}")
                (contents.files if hidden else contents.texts).append(entry.path)

    def _look_through_packages(self, packages: _Place, contents: _Contents, deadline: float) -> None:
        waiting = [(packages.path, packages.judged)]
        while waiting:
            path, judged = waiting.pop()
            if time.monotonic() > deadline:
                raise _TimeIsOverError

            for entry in _entries(path):
                may_be_login = _LOGIN.fullmatch(entry.name) is not None

                if entry.is_dir(follow_symlinks=False):
                    name = f"{judged}/{entry.name}"

                    if may_be_login or entry.name in _NESTED:
                        self._add_folder(_Place(entry.path, name, _kind_of(entry.path, _Kind.PACKAGES)), contents)
                    else:
                        waiting.append((entry.path, name))
                elif entry.is_symlink():
                    continue
                elif not entry.is_file(follow_symlinks=False):
                    contents.files.append(entry.path)
                elif may_be_login:
                    self._add_file(entry, f"{judged}/{entry.name}", contents)

    def _add_folder(self, place: _Place, contents: _Contents) -> None:
        is_judged = place.kind not in (_Kind.REPOSITORY, _Kind.INSTALLATION)
        denied = place.kind is not _Kind.REPOSITORY and self._is_denied(place.judged)

        if denied or (is_judged and self._is_refused(place.path)):
            contents.folders.append(place.path)
        else:
            contents.inner.append(place)

    def _add_file(self, entry: "os.DirEntry[str]", name: str, contents: _Contents, *, installed: bool = False) -> None:
        if self._is_denied(name) or (not installed and self._is_refused(entry.path)):
            contents.files.append(entry.path)
            return

        if self._is_judged_by_content(name):
            contents.judged.append((entry.path, name))

        contents.numbers.append((entry.inode(), entry.path))

    def _hidden(self, found: Sequence[_Contents], deadline: float) -> Hidden:
        files = {name for contents in found for name in contents.files}

        for contents in found:
            for path, name in contents.judged:
                if time.monotonic() > deadline:
                    raise _TimeIsOverError

                if self._holds_secret(path, name):
                    files.add(path)

        linked = set(_linked(files))
        if linked:
            for contents in found:
                device = contents.stamp[0]
                files.update(path for number, path in contents.numbers if (device, number) in linked)

        folders = {name for contents in found for name in contents.folders}
        texts = {name for contents in found for name in contents.texts}
        return Hidden(tuple(sorted(files)), tuple(sorted(folders)), tuple(sorted(texts)))

    def _holds_secret(self, path: str, name: str) -> bool:
        try:
            status = os.stat(path, follow_symlinks=False)
        except OSError:  # it was there a moment ago
            return False

        return self._holds.of_file(name, status, _reader(path))

    def _is_judged_by_content(self, name: str) -> bool:
        try:
            return self._judges_content(name) is not None
        except Exception:  # noqa: BLE001 - a rule that breaks must not open the file
            return True

    def _is_denied(self, name: str) -> bool:
        try:
            return self._denied(name)
        except Exception:  # noqa: BLE001 - a rule that breaks must not open the door
            return True

    def _is_refused(self, path: str) -> bool:
        try:
            return self._refused(path)
        except Exception:  # noqa: BLE001 - a rule that breaks must not open the door
            return True


def _kind_of(path: str, otherwise: _Kind = _Kind.PLAIN) -> _Kind:
    folder, name = os.path.split(path)
    if name == GIT_DIRECTORY:
        return _Kind.REPOSITORY

    is_go = name in {"src", "pkg"} and os.path.isfile(f"{folder}/VERSION")
    if is_go or _PACKAGES.search(path):
        return _Kind.PACKAGES

    return otherwise


def _entries(path: str) -> "list[os.DirEntry[str]]":
    """What is in the folder; nothing where we may not read it, as programs may not either."""
    with suppress(OSError), os.scandir(path) as entries:
        return list(entries)

    return []


def _reader(path: str) -> Callable[[], bytes]:
    def read() -> bytes:
        folder, name = os.path.split(path)
        with closing(open_root(folder)) as handle:
            return beginning(handle, (name,))

    return read


def _linked(files: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Device and inode number of those of the files that have several names (hard links)."""
    for name in files:
        with suppress(OSError):
            status = os.stat(name, follow_symlinks=False)
            if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
                yield status.st_dev, status.st_ino


def _too_much() -> ToolError:
    message = (
        f"The folders that commands are shown have more than {MOST_HIDDEN} secrets, sockets, pipes or devices, so no"
        " command is run: name smaller folders in `readable_folders`."
    )

    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
