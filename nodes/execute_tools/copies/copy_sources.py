"""What copies of workspaces are made of: a git repository at a commit, or a folder.

Each source fills the folder of a copy, and says what the copy began with, so that a patch can be made later.
"""

import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from mendgraph.nodes.execute_tools.copies.copy_folders import WORKSPACE, CopyFolder, PrivateGit, TreeRecord, record_tree
from mendgraph.nodes.execute_tools.copies.trees import copy_tree
from mendgraph.nodes.execute_tools.files.failures import invalid, os_failure, quoted
from mendgraph.nodes.execute_tools.files.handles import closing, open_beneath, open_directory, open_regular, open_root
from mendgraph.nodes.execute_tools.processes.git import (
    HEAD,
    Repository,
    add_worktree,
    find_commit,
    find_repository,
    find_tree,
    find_uncommitted,
    git_failure,
    malformed_revision,
    records_path,
)
from mendgraph.nodes.execute_tools.store.run_folder import Identity, folder_identity
from mendgraph.nodes.records import ToolError, ToolErrorCode

BASE: Final = "base.git"
RECORD: Final = "base.json"

_NAMED: Final = 3
"""Files that a message names."""
_GITLINK: Final = "160000"
_REGULAR: Final = "100"
_ATTRIBUTES: Final = ".gitattributes"


class Made(NamedTuple):
    """A copy that is complete but for its note. `root` is the workspace, below the copy's folder."""

    root: str
    base: str
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

    def make(self, folder: CopyFolder) -> Made | ToolError:
        """Fill the empty folder."""
        records = add_worktree(self.repository, self.commit, folder.handle, folder.path, WORKSPACE)
        if isinstance(records, ToolError):
            return records
        tracked = _tracked_files(self.repository, os.path.join(folder.path, WORKSPACE))
        if isinstance(tracked, ToolError):
            return tracked
        root = os.path.join(WORKSPACE, self.repository.prefix).rstrip("/")
        git = PrivateGit(os.path.join(folder.path, BASE))
        problem = git.make(os.path.join(self.repository.common, "objects"), self.repository.object_format)
        if problem is not None:
            return problem
        with closing(open_directory(folder.handle, root.split("/"))) as root_fd:
            record = record_tree(
                root_fd, tracked=[name for name, (mode, _) in tracked.files.items() if mode != _GITLINK]
            )
            modules = [name for name, (mode, _) in tracked.files.items() if mode == _GITLINK]
            converted = self._converted(root_fd, tracked, record)
            base = git.keep(root_fd, converted, tree=self.tree, gone=modules)
            if isinstance(base, ToolError):
                return base
            _write_record(folder, record)
            notes = (*self.notes, *_modules_note(modules))
        return Made(root, self.commit, notes, records)

    def _converted(self, root_fd: int, tracked: "_Tracked", record: TreeRecord) -> list[str]:
        """The files whose bytes are not those of the commit, as git's attributes say that they are converted."""
        own = os.path.join(self.repository.common, "info", "attributes")
        if not tracked.has_attributes and not os.path.exists(own):
            return []
        new = "sha256" if self.repository.object_format == "sha256" else "sha1"
        named = ((name, *tracked.files[name]) for name in record.files)
        return [
            name for name, mode, blob in named if mode.startswith(_REGULAR) and _blob_id(root_fd, name, new) != blob
        ]


class FolderSource(NamedTuple):
    """A folder without a repository; `without` are folders in it that are left out."""

    path: str
    without: tuple[Identity, ...] = ()

    def make(self, folder: CopyFolder) -> Made | ToolError:
        """Fill the empty folder."""
        os.mkdir(WORKSPACE, 0o700, dir_fd=folder.handle)
        with closing(open_root(self.path)) as source, closing(open_directory(folder.handle, [WORKSPACE])) as target:
            left_out = copy_tree(source, target, self.without)
        git = PrivateGit(os.path.join(folder.path, BASE))
        problem = git.make()
        if problem is not None:
            return problem
        with closing(open_directory(folder.handle, [WORKSPACE])) as root_fd:
            record = record_tree(root_fd)
            base = git.keep(root_fd, record.files)
        if isinstance(base, ToolError):
            return base
        _write_record(folder, record)
        named = ", ".join(map(quoted, left_out[:_NAMED]))
        notes = (f"What is no file or folder was left out, such as {named}.",) if named else ()
        return Made(WORKSPACE, base, notes)


def read_record(folder: CopyFolder) -> TreeRecord:
    """What the copy began with.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    with (
        closing(open_beneath(folder.handle, (RECORD,), os.O_RDONLY)) as handle,
        open(handle, "rb", closefd=False) as file,
    ):
        try:
            return TreeRecord.from_json(json.load(file))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error


Source: TypeAlias = GitSource | FolderSource
"""What a copy can be made of. `make` fills its empty folder, and raises OSError where the disk refuses."""


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
    repository = find_repository(path)
    if isinstance(repository, ToolError):
        return repository
    if repository is not None:
        found = _git_source(repository, revision)
        if found is not None:
            return found
    return _no_revision(path, revision) or FolderSource(path, _identities(without))


def _git_source(repository: Repository, revision: str) -> GitSource | ToolError | None:
    """None for a folder inside of a repository that knows nothing of it."""
    commit = find_commit(repository, revision)
    if isinstance(commit, ToolError):
        known = bool(repository.line("ls-files", "--cached", "--", "."))  # has git any file of this folder?
        stranger = not revision and repository.prefix and not known
        return None if stranger else commit
    tree = find_tree(repository, commit)
    if tree is None:
        return None if not revision and repository.prefix else _not_in(repository, commit)
    if revision:
        return GitSource(repository, commit, tree)
    uncommitted = find_uncommitted(repository)
    if isinstance(uncommitted, ToolError):
        return uncommitted
    if uncommitted.changed:
        return _not_committed(repository, uncommitted.changed)
    note = "Files that git does not track are in no copy: commit what is needed."
    return GitSource(repository, commit, tree, (note,) if uncommitted.untracked else ())


def _not_committed(repository: Repository, changed: Sequence[str]) -> ToolError:
    named = ", ".join(map(quoted, changed[:_NAMED])) + (
        f" and {len(changed) - _NAMED} more" if changed[_NAMED:] else ""
    )
    message = (
        f"The repository {quoted(repository.path)} has changes that are not committed ({named}), and copies are made of"
        ' commits. Commit or stash them, or say "revision": "HEAD" to work without them.'
    )
    return ToolError(code=ToolErrorCode.CONFLICT, message=message, suggestions=(HEAD,))


def _not_in(repository: Repository, commit: str) -> ToolError:
    message = f"The folder {quoted(repository.prefix)} is not in the commit {commit} of its repository."
    return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)


def _no_revision(path: str, revision: str) -> ToolError | None:
    if not revision:
        return None
    message = f"{quoted(path)} is no git repository, so it has no revision {quoted(revision)}: leave the revision out."
    return malformed_revision(revision) or ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def _identities(folders: Iterable[str]) -> tuple[Identity, ...]:
    return tuple(found for folder in folders if (found := folder_identity(folder)) is not None)


class _Tracked(NamedTuple):
    files: Mapping[str, tuple[str, str]]
    has_attributes: bool


def _tracked_files(repository: Repository, top: str) -> _Tracked | ToolError:
    found = repository.run("ls-files", "--stage", "-z", cwd=top)
    if isinstance(found, ToolError):
        return found
    if found.exit_code or found.truncated:
        return git_failure(found, "list the files of", repository.path)
    files: dict[str, tuple[str, str]] = {}
    has_attributes, inside = False, f"{repository.prefix}/" if repository.prefix else ""
    for entry in found.stdout.split(b"\0")[:-1]:
        said, _, raw = entry.partition(b"\t")
        mode, blob, _stage = said.decode().split(" ")
        name = os.fsdecode(raw)
        has_attributes = has_attributes or name.rpartition("/")[2] == _ATTRIBUTES
        if name.startswith(inside):
            files[name.removeprefix(inside)] = mode, blob
    return _Tracked(files, has_attributes)


def _modules_note(modules: Collection[str]) -> tuple[str, ...]:
    named = ", ".join(quoted(name) for name in sorted(modules)[:_NAMED])
    return (f"Submodules are empty folders in a copy: {named}.",) if modules else ()


def _blob_id(root_fd: int, name: str, algorithm: str) -> str:
    handle, status = open_regular(root_fd, name.split("/"), os.O_RDONLY)
    digest: Any = hashlib.new(algorithm, b"blob %d\0" % status.st_size, usedforsecurity=False)
    with closing(handle):
        while chunk := os.read(handle, 1_048_576):
            digest.update(chunk)
    return str(digest.hexdigest())


def _write_record(folder: CopyFolder, record: TreeRecord) -> None:
    folder.write(RECORD, json.dumps(record.as_json(), ensure_ascii=True, separators=(",", ":")).encode())
