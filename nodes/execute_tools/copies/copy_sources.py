"""What copies of workspaces are made of: a git repository at a commit, or a folder.

Each source fills the folder of a copy, and what the copy began with is kept in a private repository beside the
workspace, so that a patch can be made later.
"""

import json
import os
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, NoReturn, TypeAlias, TypeVar

from mendgraph.nodes.execute_tools.files.handles import closing, open_directory, open_regular, open_root
from mendgraph.nodes.execute_tools.processes.git import (
    HEAD,
    Repository,
    add_worktree,
    find_commit,
    find_repository,
    find_tree,
    find_uncommitted,
    init_repository,
    malformed_revision,
    records_path,
    run_git,
    succeeded,
)
from mendgraph.nodes.execute_tools.processes.processes import ProcessResult
from mendgraph.nodes.execute_tools.store.run_folder import Identity
from mendgraph.nodes.language.display import listed
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, os_failure, quoted

WORKSPACE: Final = "workspace"
BASE: Final = "base.git"

_NAMED: Final = 3
"""Files that a message names."""

Result = TypeVar("Result")


class CopyError(Exception):
    """Why a copy cannot be made or compared."""

    def __init__(self, error: ToolError) -> None:
        super().__init__(error.message)
        self.error = error


def required(found: Result | ToolError) -> Result:
    """What was found; CopyError where that is an error."""
    if isinstance(found, ToolError):
        raise CopyError(found)
    return found


# --- What a copy began with

MOST_PATCH_BYTES: Final = 500_000_000
"""A patch is held in memory."""

_SETTINGS: Final = (
    ("core.compression", "1"),
    ("core.bigFileThreshold", "16m"),
    ("core.protectNTFS", "false"),
    ("core.protectHFS", "false"),
)
_BYTE_FOR_BYTE: Final = "* -text -ident -filter -working-tree-encoding !diff\n"
"""Outweighs the `.gitattributes` of the workspace, so that a patch says what the files hold."""

_DIFF: Final = (
    *("diff-index", "--cached", "-p", "--binary", "--full-index", "--find-renames", "-l400"),
    *("--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/"),
)
GITLINK: Final = "160000 "
"""How a line of the index begins that names the commit of a submodule."""


class PrivateGit:
    """A repository at `path` that the workspace `root` knows nothing of, with the files that it began with.

    Nothing in the workspace decides what it takes: neither attributes nor another repository inside. A file that was
    there in the beginning stays in view, though it may be ignored later; one that was ignored stays out of it, and what
    lies in a submodule. Methods raise CopyError, and OSError where the disk refuses.
    """

    def __init__(self, path: str, root: str) -> None:
        self._path = path
        self._root = root

    def make(self, objects: str = "", object_format: str = "sha1", hidden: Sequence[str] = ()) -> None:
        """Make it; it has what the repository with the folder `objects` has, if one is named, and nothing `hidden`."""
        required(init_repository(self._path, object_format, _SETTINGS))
        self._write("info/attributes", _BYTE_FOR_BYTE.encode())
        self._write("info/exclude", b"".join(map(_pattern, map(os.fsencode, hidden))))

        if objects:
            self._write("objects/info/alternates", os.fsencode(json.dumps(objects, ensure_ascii=False)) + b"\n")

    def keep(self, tree: str = "") -> tuple[str, list[bytes]]:
        """Remember the files as they are: their tree, and the submodules of the known `tree`, which are left out."""
        modules: list[bytes] = []

        if tree:
            self._git("read-tree", tree)
            self._git("update-index", "-q", "--refresh")  # what is not touched later need not be read again
            entries = self._git("ls-files", "--stage", "-z").split(b"\0")
            modules = [entry.partition(b"\t")[2] for entry in entries if entry.startswith(GITLINK.encode())]
            self._index(modules, "--force-remove")
            self._write("info/exclude", b"".join(map(_pattern, modules)))
        else:
            hidden = self._git("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
            self._write("info/exclude", b"".join(map(_pattern, hidden.split(b"\0")[:-1])))

        changed = self._look() or bool(modules) or not tree
        return self._git("write-tree").decode().strip() if changed else tree, modules

    def patch(self, tree: str) -> bytes:
        """How the files of this tree become what is there now."""
        with suppress(FileNotFoundError):  # of a comparison that was killed
            os.unlink(os.path.join(self._path, "index.lock"))

        self._git("read-tree", "-m", tree)
        self._look()
        return self._git(*_DIFF, tree)

    def _look(self) -> bool:
        """Take all that is there into the index, and out of it what is gone; says whether that was anything."""
        listed_names = self._git("ls-files", "-z", "--modified", "--others", "--exclude-standard").split(b"\0")[:-1]
        names = (name for path in listed_names for name in (self._below(path) if path.endswith(b"/") else (path,)))
        changed = dict.fromkeys(name for name in names if b".git" not in name.lower().split(b"/"))
        self._index(changed, "--add", "--replace")

        return bool(changed)

    def _below(self, folder: bytes) -> Iterator[bytes]:
        """The files of another repository inside, of which git itself would tell the commit alone."""
        with closing(open_root(self._root)) as root:
            for above, folders, files, folder_fd in os.fwalk(os.fsdecode(folder), dir_fd=root):
                for name in (*folders, *files):
                    mode = os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode
                    if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
                        yield os.fsencode(os.path.join(above, name))

    def _index(self, names: Iterable[bytes], *how: str) -> None:
        names_text = b"".join(name + b"\0" for name in names)
        if names_text:
            self._git("update-index", *how, "--remove", "-z", "--stdin", given=names_text)

    def _git(self, *arguments: str, given: bytes = b"") -> bytes:
        argv = (f"--git-dir={self._path}", f"--work-tree={self._root}", *arguments)
        found = run_git(argv, cwd=self._root, settings=_SETTINGS, given=given, max_output_bytes=MOST_PATCH_BYTES)
        if isinstance(found, ProcessResult) and found.truncated:
            message = f"The patch has more than {MOST_PATCH_BYTES:,} bytes: what was changed is in the copy itself."
            raise CopyError(ToolError(code=ToolErrorCode.IO_ERROR, message=message))

        return required(succeeded(found, "compare the files of the copy in", self._path)).stdout

    def _write(self, name: str, data: bytes) -> None:
        path = os.path.join(self._path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)


def _pattern(name: bytes) -> bytes:
    """The line of an ignore file that hides this name alone; none can hold a line end."""
    escaped = b"".join(b"\\" + bytes([byte]) if byte in b"*?[\\ " else bytes([byte]) for byte in name)
    return b"" if b"\n" in name else b"/" + escaped + b"\n"


# --- Sources


class Made(NamedTuple):
    """A copy that is complete but for its note. `root` is the workspace, below the copy's folder.

    `tree` is what is in it, `base` the commit that it is of; `records` is where a repository knows of it.
    """

    root: str
    base: str
    tree: str
    notes: tuple[str, ...] = ()
    records: str = ""


class GitSource(NamedTuple):
    """A repository at a commit, with the workspace's own `tree` in it; the copy is a worktree of it."""

    repository: Repository
    commit: str
    tree: str
    notes: tuple[str, ...] = ()

    def records(self, folder: str) -> str:
        """Where the repository keeps what it knows of the worktree in this folder."""
        return records_path(self.repository.common, folder)

    def make(self, folder: str, handle: int) -> Made:
        """Fill the empty folder."""
        records = required(add_worktree(self.repository, self.commit, handle, folder, WORKSPACE))
        root = os.path.join(WORKSPACE, self.repository.prefix).rstrip("/")
        git = PrivateGit(os.path.join(folder, BASE), os.path.join(folder, root))
        links = _link_installed(self.repository.path, os.path.join(folder, root))
        git.make(os.path.join(self.repository.common, "objects"), self.repository.object_format, links)
        tree, modules = git.keep(self.tree)
        named = ", ".join(quoted(os.fsdecode(name)) for name in sorted(modules)[:_NAMED])
        notes = (*self.notes, f"Submodules are empty folders in a copy: {named}.") if modules else self.notes

        return Made(root, self.commit, tree, notes, records)


INSTALLED: Final = (".venv", "venv", "node_modules")
"""What a project's tests need and git does not have: a link in the copy leads to it."""


def _link_installed(workspace: str, root: str) -> list[str]:
    """Make these links in the copy at `root`; their names."""
    links = [name for name in INSTALLED if os.path.isdir(os.path.join(workspace, name))]
    links = [name for name in links if not os.path.lexists(os.path.join(root, name))]
    for name in links:
        os.symlink(os.path.realpath(os.path.join(workspace, name)), os.path.join(root, name))

    return links


def installed_folders(root: str) -> tuple[str, ...]:
    """Where the links of the copy at `root` lead: folders of the person's own workspace that tests have to see."""
    links = (os.path.join(root, name) for name in INSTALLED)
    return tuple(os.path.realpath(link) for link in links if os.path.islink(link))


class FolderSource(NamedTuple):
    """A folder without a repository; `without` are folders in it that are left out."""

    path: str
    without: tuple[Identity, ...] = ()

    def make(self, folder: str, handle: int) -> Made:
        """Fill the empty folder."""
        os.mkdir(WORKSPACE, 0o700, dir_fd=handle)
        with closing(open_root(self.path)) as source, closing(open_directory(handle, [WORKSPACE])) as target:
            left_out = copy_tree(source, target, self.without)

        named = ", ".join(map(quoted, left_out[:_NAMED]))
        git = PrivateGit(os.path.join(folder, BASE), os.path.join(folder, WORKSPACE))
        git.make()
        tree, _ = git.keep()
        notes = (f"What is no file or folder was left out, such as {named}.",) if named else ()

        return Made(WORKSPACE, tree, tree, notes)


Source: TypeAlias = GitSource | FolderSource
"""What a copy can be made of. `make` raises CopyError, and OSError where the disk refuses."""


def find_source(workspace: str, revision: str = "", without: Iterable[str] = ()) -> Source | ToolError:
    """What the workspace is, and the commit that the revision names where it is a repository.

    Without a revision it is HEAD, and CONFLICT if files that git knows have changes that are not committed. `without`
    are folders that are left out of a folder's copy.
    """
    path = os.path.abspath(os.path.expanduser(workspace))
    try:
        status = os.stat(path)
    except OSError as error:
        return os_failure(error, "copy the workspace", workspace)

    if not stat.S_ISDIR(status.st_mode):
        return invalid(f"The workspace {quoted(workspace)} is no folder: unpack an archive first.")

    path = os.path.realpath(path)
    if isinstance(repository := find_repository(path), ToolError):
        return repository
    if repository is not None and (git_source := _git_source(repository, revision)) is not None:
        return git_source

    return _no_revision(path, revision) or FolderSource(path, _identities(without))


def _git_source(repository: Repository, revision: str) -> GitSource | ToolError | None:
    """None for a folder inside of a repository that knows nothing of it."""
    commit = find_commit(repository, revision)
    if isinstance(commit, ToolError):
        has_tracked_files = bool(repository.line("ls-files", "--cached", "--", "."))  # has git any file of this folder?
        stranger = not revision and repository.prefix and not has_tracked_files
        return None if stranger else commit

    tree = find_tree(repository, commit)
    if tree is None:
        if not revision and repository.prefix:
            return None

        message = f"The folder {quoted(repository.prefix)} is not in the commit {commit} of its repository."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)

    if revision:
        return GitSource(repository, commit, tree)
    if isinstance(uncommitted := find_uncommitted(repository), ToolError):
        return uncommitted

    changed, untracked = uncommitted
    if changed:
        return _not_committed(repository, changed)

    note = "Files that git does not track are in no copy: commit what is needed."
    return GitSource(repository, commit, tree, (note,) if untracked else ())


def _not_committed(repository: Repository, changed: Sequence[str]) -> ToolError:
    message = (
        f"The repository {quoted(repository.path)} has changes that are not committed ({listed(map(quoted, changed))}),"
        ' and copies are made of commits. Commit or stash them, or say "revision": "HEAD" to work without them.'
    )

    return ToolError(code=ToolErrorCode.CONFLICT, message=message, suggestions=(HEAD,))


def _no_revision(path: str, revision: str) -> ToolError | None:
    if not revision:
        return None

    message = f"{quoted(path)} is no git repository, so it has no revision {quoted(revision)}: leave the revision out."
    return malformed_revision(revision) or invalid(message)


def _identities(folders: Iterable[str]) -> tuple[Identity, ...]:
    entries = []

    for folder in folders:
        with suppress(OSError):
            status = os.stat(folder)
            entries.append((status.st_dev, status.st_ino))

    return tuple(entries)


# --- Trees of files, walked by handle


def _raise(error: OSError) -> NoReturn:
    raise error


def copy_tree(source_fd: int, target_fd: int, without: Collection[Identity] = ()) -> tuple[str, ...]:
    """Copy all that the open folder `source_fd` holds into the empty folder `target_fd`, but for the folders `without`.

    Gives the names of special files that were left out. Raises OSError: the disk refuses.
    """
    left_out: list[str] = []
    copied: list[tuple[list[str], os.stat_result]] = [([], os.fstat(source_fd))]

    for above, folders, files, folder_fd in os.fwalk(".", dir_fd=source_fd, onerror=_raise):
        parts = [] if above == "." else os.path.normpath(above).split("/")
        names = sorted([*folders, *files])

        with closing(open_directory(target_fd, parts)) as target_folder:
            for name in names:
                try:
                    status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
                except FileNotFoundError:  # it was there a moment ago
                    continue

                if (status.st_dev, status.st_ino) in without:
                    folders.remove(name)
                elif stat.S_ISLNK(status.st_mode):
                    os.symlink(os.readlink(name, dir_fd=folder_fd), name, dir_fd=target_folder)
                elif stat.S_ISDIR(status.st_mode):
                    os.mkdir(name, 0o700, dir_fd=target_folder)
                    copied.append(([*parts, name], status))
                elif stat.S_ISREG(status.st_mode):
                    _copy_file(folder_fd, target_folder, name)
                else:
                    left_out.append("/".join([*parts, name]))

    for parts, status in reversed(copied):  # a folder that nobody may write gets its mode last
        with closing(open_directory(target_fd, parts)) as folder:
            _like(folder, status)

    return tuple(left_out)


def _copy_file(here: int, there: int, name: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle, status = open_regular(here, (name,), os.O_RDONLY)

    with os.fdopen(handle, "rb") as source, os.fdopen(os.open(name, flags, 0o600, dir_fd=there), "wb") as target:
        shutil.copyfileobj(source, target, 1_048_576)
        target.flush()
        _like(target.fileno(), status)


def _like(handle: int, status: os.stat_result) -> None:
    os.fchmod(handle, stat.S_IMODE(status.st_mode) & 0o777)
    os.utime(handle, ns=(status.st_atime_ns, status.st_mtime_ns))
