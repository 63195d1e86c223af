"""The sources of workspace copies: a git repository at a commit, or a folder.

Each source fills the folder of a copy, and stores the initial files in a private repository beside the workspace, from
which a patch can be made later.
"""

import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias, TypeVar

from mendgraph.nodes.language.display import listed
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.copies.installed_links import link_installed
from mendgraph.nodes.workspace.files.handles import closing, open_root
from mendgraph.nodes.workspace.processes.git import (
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
from mendgraph.nodes.workspace.processes.processes import ProcessResult

WORKSPACE: Final = "workspace"
BASE: Final = "base.git"

_PROJECT_FILES: Final = frozenset({"package.json", "pyproject.toml", "setup.py", "requirements.txt", "manage.py"})
"""Files of a folder for which packages may be installed in it."""

_MOST_NAMES: Final = 3
"""Files that a message lists."""

Result = TypeVar("Result")


class CopyError(Exception):
    """A copy cannot be made or compared."""

    def __init__(self, error: ToolError) -> None:
        super().__init__(error.message)
        self.error = error


def required(result: Result | ToolError) -> Result:
    """Return the result. Raises CopyError if it is an error."""
    if isinstance(result, ToolError):
        raise CopyError(result)
    return result


# --- The initial files of a copy

MOST_PATCH_BYTES: Final = 500_000_000
"""A patch is held in memory."""

_SETTINGS: Final = (
    ("core.compression", "1"),
    ("core.bigFileThreshold", "16m"),
    ("core.protectNTFS", "false"),
    ("core.protectHFS", "false"),
)
_BYTE_FOR_BYTE: Final = "* -text -ident -filter -working-tree-encoding !diff\n"
"""It overrides the `.gitattributes` of the workspace, so that a patch holds the bytes of the files."""

_DIFF: Final = (
    *("diff-index", "--cached", "-p", "--binary", "--full-index", "--find-renames", "-l400"),
    *("--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/"),
)
GITLINK: Final = "160000 "
"""The mode of a submodule in a line of the index."""


class PrivateGit:
    """A repository at `path` with the initial files of the workspace `root`, which does not refer to it.

    Neither attributes nor nested repositories of the workspace change what it stores. A file that existed in the
    beginning is compared even if it is ignored later; files that were ignored, and those in submodules, never are.
    Methods raise CopyError, and OSError where the disk refuses.
    """

    def __init__(self, path: str, root: str) -> None:
        self._path = path
        self._root = root

    def create(self, objects: str = "", object_format: str = "sha1", hidden: Sequence[str] = ()) -> None:
        """Create it without the `hidden` names; it shares the objects in the folder `objects`, if one is named."""
        required(init_repository(self._path, object_format, _SETTINGS))
        self._write("info/attributes", _BYTE_FOR_BYTE.encode())
        self._write_excluded(map(os.fsencode, hidden))

        if objects:
            self._write("objects/info/alternates", os.fsencode(json.dumps(objects, ensure_ascii=False)) + b"\n")

    def store(self, tree: str = "") -> tuple[str, list[bytes]]:
        """Store the files as they are; return their tree, and the submodules of `tree`, which are excluded."""
        if not tree:
            ignored = self._git("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
            self._write_excluded(ignored.split(b"\0")[:-1])
            self._update_index()
            return self._git("write-tree").decode().strip(), []

        self._git("read-tree", tree)
        self._git("update-index", "-q", "--refresh")  # unchanged files need not be read again
        entries = self._git("ls-files", "--stage", "-z").split(b"\0")
        modules = [entry.partition(b"\t")[2] for entry in entries if entry.startswith(GITLINK.encode())]
        self._change_index(modules, "--force-remove")
        self._write_excluded(modules)

        if self._update_index() or modules:
            tree = self._git("write-tree").decode().strip()

        return tree, modules

    def patch(self, tree: str) -> bytes:
        """Return the patch from the files of this tree to the current ones."""
        with suppress(FileNotFoundError):  # of a comparison that was killed
            os.unlink(os.path.join(self._path, "index.lock"))

        self._git("read-tree", "-m", tree)
        self._update_index()
        return self._git(*_DIFF, tree)

    def _update_index(self) -> bool:
        """Add all current files to the index and remove deleted ones; return whether that changed anything."""
        changed: dict[bytes, None] = {}
        folders: set[bytes] = set()

        for path in self._list_files("--others", "--exclude-standard"):
            names = self._files_below(path) if path.endswith(b"/") else [path]
            changed.update(dict.fromkeys(name for name in names if b".git" not in name.lower().split(b"/")))
            folders.update(_folders_above(path))

        removed = dict.fromkeys(self._list_files("--deleted"))
        modified = self._list_files("--modified")
        removed.update(dict.fromkeys(path for path in modified if path in folders))  # a folder has replaced the file
        self._change_index(removed, "--force-remove")
        changed.update(dict.fromkeys(path for path in modified if path not in removed))
        self._change_index(changed, "--add", "--replace")
        return bool(changed or removed)

    def _list_files(self, *options: str) -> list[bytes]:
        return self._git("ls-files", "-z", *options).split(b"\0")[:-1]

    def _files_below(self, folder: bytes) -> Iterator[bytes]:
        """Yield the files of a nested repository, of which git would store only the commit."""
        with closing(open_root(self._root)) as root:
            for parent, folders, files, folder_fd in os.fwalk(os.fsdecode(folder), dir_fd=root):
                for name in (*folders, *files):
                    mode = os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode
                    if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
                        yield os.fsencode(os.path.join(parent, name))

    def _change_index(self, names: Iterable[bytes], *options: str) -> None:
        names_text = b"".join(name + b"\0" for name in names)
        if names_text:
            self._git("update-index", *options, "--remove", "-z", "--stdin", stdin=names_text)

    def _git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        argv = (f"--git-dir={self._path}", f"--work-tree={self._root}", *arguments)
        result = run_git(argv, cwd=self._root, settings=_SETTINGS, stdin=stdin, max_output_bytes=MOST_PATCH_BYTES)
        if isinstance(result, ProcessResult) and result.truncated:
            message = f"The patch has more than {MOST_PATCH_BYTES:,} bytes: the changes are in the copy."
            raise CopyError(ToolError(code=ToolErrorCode.IO_ERROR, message=message))

        return required(succeeded(result, "compare the files of the copy in", self._path)).stdout

    def _write_excluded(self, names: Iterable[bytes]) -> None:
        self._write("info/exclude", b"".join(_pattern(name) for name in names if b"\n" not in name))

    def _write(self, name: str, data: bytes) -> None:
        path = os.path.join(self._path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)


_PATTERN_SIGN: Final = re.compile(rb"[*?\[\\ ]")


def _folders_above(path: bytes) -> Iterator[bytes]:
    """Yield the folders that contain the path, relative to the workspace."""
    position = path.find(b"/")
    while position >= 0:
        yield path[:position]
        position = path.find(b"/", position + 1)


def _pattern(name: bytes) -> bytes:
    """Return the line of an ignore file for exactly this name, which has no line end."""
    return b"/" + _PATTERN_SIGN.sub(rb"\\\g<0>", name) + b"\n"


# --- Sources


class SourceCopy(NamedTuple):
    """A copy without its note. `root` is the workspace, relative to the copy's folder.

    `tree` is the git tree of its files, `base` their commit; `records` is where a repository stores its worktree.
    `installed` are the names of the links to installed folders, with these folders.
    """

    root: str
    base: str
    tree: str
    notes: tuple[str, ...] = ()
    records: str = ""
    installed: Mapping[str, str] = {}


class GitSource(NamedTuple):
    """A repository at a commit, with the workspace's `tree` in it; the copy is a worktree."""

    repository: Repository
    commit: str
    tree: str
    notes: tuple[str, ...] = ()

    def records(self, folder: str) -> str:
        """Return where the repository stores the worktree in this folder."""
        return records_path(self.repository.common, folder)

    def make(self, folder: str) -> SourceCopy:
        """Fill the empty folder."""
        records = required(add_worktree(self.repository, self.commit, folder, WORKSPACE))
        root = os.path.join(WORKSPACE, self.repository.prefix).rstrip("/")
        path = os.path.join(folder, root)
        git = PrivateGit(os.path.join(folder, BASE), path)
        tracked = frozenset(self._list_names("ls-files", "-z"))
        installed = link_installed(self.repository.path, path, self._project_folders(), tracked)
        git.create(os.path.join(self.repository.common, "objects"), self.repository.object_format, list(installed))
        tree, modules = git.store(self.tree)
        notes = self.notes
        if modules:
            names = ", ".join(quoted(os.fsdecode(name)) for name in sorted(modules)[:_MOST_NAMES])
            notes = (*notes, f"Submodules are empty folders in a copy: {names}.")

        return SourceCopy(root, self.commit, tree, notes, records, installed)

    def _project_folders(self) -> list[str]:
        """Return the folders of the workspace with the files of a project that has packages of its own."""
        files = self._list_names("ls-tree", "--full-tree", "-r", "-z", "--name-only", self.tree)
        return [os.path.dirname(file) for file in files if os.path.basename(file) in _PROJECT_FILES]

    def _list_names(self, *words: str) -> list[str]:
        result = required(succeeded(self.repository.run(*words), "list the files of", self.repository.path))
        return os.fsdecode(result.stdout).split("\0")[:-1]


class FolderSource(NamedTuple):
    """A folder without a repository; `without` are folders in it that are left out."""

    path: str
    without: tuple[str, ...] = ()

    def make(self, folder: str) -> SourceCopy:
        """Fill the empty folder."""
        left_out: list[str] = []

        def ignore(parent: str, names: list[str]) -> set[str]:
            ignored = set()
            for name in names:
                path = os.path.join(parent, name)
                try:
                    mode = os.lstat(path).st_mode
                except FileNotFoundError:  # it was just removed
                    ignored.add(name)
                    continue

                if stat.S_ISDIR(mode):
                    if os.path.realpath(path) in self.without:
                        ignored.add(name)
                elif not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                    ignored.add(name)
                    left_out.append(os.path.relpath(path, self.path))

            return ignored

        root = os.path.join(folder, WORKSPACE)
        try:
            shutil.copytree(self.path, root, symlinks=True, ignore=ignore, copy_function=_copy_file)
        except shutil.Error as error:  # a folder that cannot be read
            path, _, reason = error.args[0][0]
            message = f"Cannot copy {quoted(path)}: {reason}."
            raise CopyError(ToolError(code=ToolErrorCode.IO_ERROR, message=message)) from error

        git = PrivateGit(os.path.join(folder, BASE), root)
        git.create()
        tree, _ = git.store()
        notes: tuple[str, ...] = ()
        if left_out:
            names = ", ".join(map(quoted, sorted(left_out)[:_MOST_NAMES]))
            notes = (f"Special files were left out, such as {names}.",)

        return SourceCopy(WORKSPACE, tree, tree, notes)


def _copy_file(source: str, target: str) -> None:
    """Copy one file. Raises CopyError: `copytree` would collect an OSError, and the disk would not look full."""
    try:
        shutil.copy2(source, target, follow_symlinks=False)
        if not os.path.islink(target):
            os.chmod(target, stat.S_IMODE(os.stat(target).st_mode) & 0o777)  # no set-user-ID bit
    except FileNotFoundError:  # it was just removed
        return
    except OSError as error:
        raise CopyError(os_failure(error, "copy", source)) from error


Source: TypeAlias = GitSource | FolderSource
"""The source of a copy. `make` raises CopyError, and OSError where the disk refuses."""


def find_source(workspace: str, revision: str = "", without: Iterable[str] = ()) -> Source | ToolError:
    """Return the source of copies of this workspace, in a repository at the commit of the revision.

    Without a revision the commit is HEAD; CONFLICT if tracked files have changes that are not committed. `without` are
    folders that the copy of a folder leaves out.
    """
    path = os.path.abspath(os.path.expanduser(workspace))
    try:
        status = os.stat(path)
    except OSError as error:
        return os_failure(error, "copy the workspace", workspace)

    if not stat.S_ISDIR(status.st_mode):
        return invalid(f"The workspace {quoted(workspace)} is not a folder: unpack an archive first.")

    path = os.path.realpath(path)
    repository = find_repository(path)
    if isinstance(repository, ToolError):
        return repository

    if repository is not None:
        git_source = _git_source(repository, revision)
        if git_source is not None:
            return git_source

    if revision:
        return malformed_revision(revision) or invalid(
            f"{quoted(path)} is not a git repository, so it has no revision {quoted(revision)}: omit the revision."
        )

    return FolderSource(path, tuple(map(os.path.realpath, without)))


def _git_source(repository: Repository, revision: str) -> GitSource | ToolError | None:
    """Return the source at the commit of the revision; None for a folder of which the repository tracks nothing."""
    is_subfolder = not revision and bool(repository.prefix)
    commit = find_commit(repository, revision)
    if isinstance(commit, ToolError):
        is_tracked = bool(repository.line("ls-files", "--cached", "--", "."))
        return commit if is_tracked or not is_subfolder else None

    tree = find_tree(repository, commit)
    if tree is None:
        if is_subfolder:
            return None

        message = f"The folder {quoted(repository.prefix)} is not in the commit {commit} of its repository."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)

    if revision:
        return GitSource(repository, commit, tree)

    uncommitted = find_uncommitted(repository)
    if isinstance(uncommitted, ToolError):
        return uncommitted

    changed, has_untracked = uncommitted
    if changed:
        return _not_committed(repository, changed)
    if not has_untracked:
        return GitSource(repository, commit, tree)

    return GitSource(
        repository, commit, tree, ("Copies do not contain files that git does not track: commit what is needed.",)
    )


def _not_committed(repository: Repository, changed: Sequence[str]) -> ToolError:
    message = (
        f"The repository {quoted(repository.path)} has changes that are not committed ({listed(map(quoted, changed))}),"
        ' and copies are made of commits. Commit or stash them, or say "revision": "HEAD" to work without them.'
    )

    return ToolError(code=ToolErrorCode.CONFLICT, message=message, suggestions=(HEAD,))
