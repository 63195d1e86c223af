"""Copies of workspaces: made, compared with their initial files, and removed.

The folder of a copy holds the workspace, the private repository for its patch, and a note that describes the copy and
is written last, so that a copy whose making was killed is made again. While a copy is made, compared or removed, its
folder is locked. A folder that is neither empty nor that of a copy is never touched.
"""

import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from mendgraph.nodes.language.display import listed
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.copies.copy_sources import (
    BASE,
    GITLINK,
    WORKSPACE,
    CopyError,
    GitSource,
    PrivateGit,
    find_source,
    required,
)
from mendgraph.nodes.workspace.copies.installed_links import is_installed
from mendgraph.nodes.workspace.files.atomic_write import sync_folder, write_temporary
from mendgraph.nodes.workspace.files.handles import closing, open_beneath, open_directory, open_root
from mendgraph.nodes.workspace.files.tree_walk import is_bytecode
from mendgraph.nodes.workspace.processes.git import (
    HEAD,
    Repository,
    find_repository,
    find_uncommitted,
    remove_worktree_records,
    succeeded,
)

FINISHED: Final = "copy.json"
BEGUN: Final = "copy.begun.json"

_LARGEST_NOTE: Final = 1_000_000


class CopyFolder:
    """The open and locked folder of a copy."""

    def __init__(self, path: str, handle: int) -> None:
        self.path = path
        self.handle = handle

    def note(self, name: str = FINISHED) -> Mapping[str, Any] | None:
        """Return the note of a finished copy, or with `BEGUN` of an unfinished one; None if there is none."""
        try:
            with closing(open_beneath(self.handle, (name,), os.O_RDONLY)) as handle:
                note = json.loads(os.read(handle, _LARGEST_NOTE))
        except (OSError, ValueError):
            return None

        return note if isinstance(note, dict) else None

    def write_note(self, note: Mapping[str, Any], name: str = FINISHED) -> None:
        """Write the note to the disk. Raises OSError."""
        temporary = f".{name}.new"
        data = json.dumps(note, ensure_ascii=True, indent=1).encode()
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=self.handle)

        write_temporary(self.handle, temporary, data, mode=0o600)
        os.rename(temporary, name, src_dir_fd=self.handle, dst_dir_fd=self.handle)
        sync_folder(self.handle)

    def empty(self) -> ToolError | None:
        """Remove its content; CONFLICT, with nothing removed, if it is not the folder of a copy. Raises OSError."""
        names = os.listdir(self.handle)
        if names and not {FINISHED, BEGUN, f".{BEGUN}.new"} & set(names):
            message = (
                f"{quoted(self.path)} is not empty and not a copy of a workspace: name another folder, or remove it."
            )
            return ToolError(code=ToolErrorCode.CONFLICT, message=message)

        if FINISHED in names and BEGUN not in names:
            self.write_note(self.note() or {}, BEGUN)

        if FINISHED in names:
            os.unlink(FINISHED, dir_fd=self.handle)

        contents = os.listdir(self.handle)
        contents.sort(key=lambda name: name == BEGUN)  # without the note this would be no folder of a copy

        for name in contents:
            if stat.S_ISDIR(os.stat(name, dir_fd=self.handle, follow_symlinks=False).st_mode):
                shutil.rmtree(name, dir_fd=self.handle)
            else:
                os.unlink(name, dir_fd=self.handle)

        return None


@contextmanager
def copy_folder(path: str, *, make: bool) -> Iterator[CopyFolder | ToolError]:
    """Open and lock the folder at this absolute path; `make` creates it if it does not exist."""
    try:
        if make:
            os.makedirs(path, mode=0o700, exist_ok=True)

        handle = open_root(path)
    except OSError as error:
        yield os_failure(error, "use for a copy of a workspace", path)
        return

    with closing(handle):
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)

        try:
            yield CopyFolder(os.path.realpath(path), handle)
        finally:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # a forked process may have the handle


class BranchRequest(NamedTuple):
    """The request for a copy with a `branch` of its own.

    It has the `task`, whether to `commit` the changes, and the target of the `report`: a file, "-" for standard output,
    or "".
    """

    branch: str
    task: str
    commit: bool
    report: str


class Copy(NamedTuple):
    """A finished copy. `root` is the real, absolute name of the workspace in its `folder`.

    `base` is the id of the initial commit, or the hash of all initial files as a git tree. `notes` are sentences about
    what is not in it. A copy with a branch of its own has a `request`. `source` is the copied workspace. `removed`: all
    changes are committed, and `root` is an empty folder. `installed` are the names of links in it, with the folders of
    the source that tests read there.
    """

    root: str
    base: str
    folder: str
    notes: tuple[str, ...] = ()
    request: BranchRequest | None = None
    source: str = ""
    removed: bool = False
    installed: Mapping[str, str] = {}


class PinnedRevision(NamedTuple):
    """The full id of a workspace's commit, "" where it is no repository; `notes` as in `Copy`."""

    revision: str
    notes: tuple[str, ...] = ()


def pin_source(workspace: str, revision: str = "") -> PinnedRevision | ToolError:
    """Return the commit for copies of the workspace, or why no copy can be made; nothing is written.

    A batch calls it once, so that all its copies are of one commit, even if the repository changes meanwhile.
    """
    source = find_source(workspace, revision)
    if isinstance(source, ToolError):
        return source
    if isinstance(source, GitSource):
        return PinnedRevision(source.commit, source.notes)

    return PinnedRevision("")


def make_copy(workspace: str, revision: str, folder: str, *, without: Iterable[str] = ()) -> Copy | ToolError:
    """Return the copy in `folder`, made if it does not exist; CONFLICT if it is one of another workspace or revision.

    A copy whose folder was moved is made again: the records of its run belong to the old path.
    """
    path = os.path.abspath(folder)
    details = {"workspace": workspace, "revision": revision}

    with copy_folder(path, make=True) as opened:
        if isinstance(opened, ToolError):
            return opened

        try:
            note = opened.note()
            if note is not None and note.get("folder", opened.path) == opened.path:
                return _existing_copy(opened, note, details)

            _remove_records(opened, note or opened.note(BEGUN))
            return opened.empty() or _make(opened, details, without)
        except OSError as error:
            return os_failure(error, "make a copy of the workspace in", folder)


def open_copy(folder: str) -> Copy | None:
    """Return the finished copy in `folder`, also one that `remove_branch_copy` removed; None if there is none."""
    with copy_folder(os.path.abspath(folder), make=False) as opened:
        if isinstance(opened, ToolError):
            return None

        note = opened.note()
        return None if note is None else _copy(opened, note)


def list_copies(folder: str) -> list[Copy]:
    """Return the copies whose folders are in `folder`; see `open_copy`."""
    names: list[str] = []
    with suppress(FileNotFoundError):
        names = sorted(os.listdir(folder))

    copies = [open_copy(os.path.join(folder, name)) for name in names]
    return [copy for copy in copies if copy is not None]


def compare_copy(folder: str) -> bytes | ToolError:
    """Return the patch from the initial files of the copy to the current ones, b"" if they are the same."""
    with copy_folder(os.path.abspath(folder), make=False) as opened:
        if isinstance(opened, ToolError):
            return opened

        note = opened.note()
        if note is None:
            message = f"There is no finished copy of a workspace in {quoted(folder)}."
            return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)

        try:
            git = PrivateGit(os.path.join(opened.path, BASE), os.path.join(opened.path, note["root"]))
            return git.patch(note["tree"])
        except CopyError as error:
            return error.error
        except OSError as error:
            return os_failure(error, "compare the copy in", folder)


def delete_copy(folder: str) -> ToolError | None:
    """Remove the copy in `folder`, finished or not, and its worktree; no copy is no error."""
    path = os.path.abspath(folder)
    if not os.path.lexists(path):
        return None

    with copy_folder(path, make=False) as opened:
        if isinstance(opened, ToolError):
            return opened

        try:
            _remove_records(opened, opened.note() or opened.note(BEGUN))
            problem = opened.empty()
            if problem is None:
                os.rmdir(opened.path)
        except OSError as error:
            return os_failure(error, "remove the copy in", folder)

    return problem


def _make(folder: CopyFolder, details: Mapping[str, str], without: Iterable[str]) -> Copy | ToolError:
    source = find_source(details["workspace"], details["revision"], (*without, folder.path))
    if isinstance(source, ToolError):
        return source

    records = source.records(folder.path) if isinstance(source, GitSource) else ""
    first_note = {**details, "records": records}
    folder.write_note(first_note, BEGUN)

    try:
        source_copy = source.make(folder.path)
    except CopyError as error:
        _remove_records(folder, first_note)
        folder.empty()
        return error.error

    note = {**details, **source_copy._asdict(), "folder": folder.path}
    folder.write_note(note)
    return _copy(folder, note)


def _remove_records(folder: CopyFolder, note: Mapping[str, Any] | None) -> None:
    if note is not None and note.get("records"):
        remove_worktree_records(str(note["records"]), folder.path)


def _existing_copy(folder: CopyFolder, note: Mapping[str, Any], details: Mapping[str, str]) -> Copy | ToolError:
    if all(note.get(name) == value for name, value in details.items()):
        return _copy(folder, note)

    message = (
        f"{quoted(folder.path)} contains a copy of another workspace or revision"
        f" ({quoted(str(note.get('workspace')))}): name another folder, or remove it."
    )

    return ToolError(code=ToolErrorCode.CONFLICT, message=message)


def _copy(folder: CopyFolder, note: Mapping[str, Any]) -> Copy:
    root = os.path.join(folder.path, note["root"])
    request = BranchRequest(*note["wanted"]) if "wanted" in note else None
    removed = bool(note.get("removed"))
    installed = note.get("installed", {})
    return Copy(root, note["base"], folder.path, tuple(note["notes"]), request, note["workspace"], removed, installed)


# --- A copy on a branch of its own


def make_branch(workspace: str, folder: str, request: BranchRequest) -> Copy | ToolError:
    """Make a copy of the last commit in `folder`, on the new branch of the request; its notes list what is not in it.

    INVALID_ARGUMENT: the workspace is in no repository.
    """
    path = os.path.realpath(workspace)
    ref = f"refs/heads/{request.branch}"

    try:
        repository = required(find_repository(path))
        if repository is None:
            return invalid(
                f"{quoted(workspace)} is not a git repository, and an unattended run works on a new branch: create"
                " one (git init, git add, git commit), or run the task without --unattended."
            )

        uncommitted = _uncommitted_note(repository)
        copy = required(make_copy(path, HEAD, folder))
        notes = (*copy.notes, *uncommitted)

        for words in (("update-ref", ref, copy.base, ""), ("symbolic-ref", HEAD, ref)):
            required(succeeded(repository.run(*words, cwd=copy.root), "make a branch of", path))

        copy = copy._replace(notes=notes, request=request)
        with copy_folder(folder, make=False) as opened:
            opened_copy = required(opened)
            opened_copy.write_note({**(opened_copy.note() or {}), "notes": notes, "wanted": request})
    except (CopyError, OSError) as error:
        delete_copy(folder)
        if isinstance(error, CopyError):
            return error.error
        return os_failure(error, "make a copy in", folder)

    return copy


def _uncommitted_note(repository: Repository) -> list[str]:
    """Return a sentence about the files that are not committed, if there are any."""
    changed, has_untracked = required(find_uncommitted(repository))
    parts = []
    if changed:
        parts.append(listed(map(quoted, changed)))
    if has_untracked:
        parts.append("files that git does not track")

    return [f"Not included, because not committed: {' and '.join(parts)}."] if parts else []


class BranchCommit(NamedTuple):
    """The `id` of a commit, "" if the branch has no change, and the files that are not in it, each with the reason.

    Of the `merged` files only the changes of the run are in it. `is_detached`: no branch has it.
    """

    id: str
    left_out: Mapping[str, str]
    merged: tuple[str, ...] = ()
    is_detached: bool = False


def commit_branch(
    copy: Copy, files: Iterable[str], message: str, identity: Mapping[str, str]
) -> BranchCommit | ToolError:
    """Commit these files of a copy, as they are, to its branch.

    Files that git ignores, files in a submodule, and what is staged are left out. No hook or signing program is
    started, and no filter but that of git-lfs where it is installed: files with another filter are left out.
    """
    files = list(files)
    try:
        repository = open_repository(copy.root)
        left_out = find_uncommittable(repository, copy.root, files)
        git_output(repository, "read-tree", "-m", HEAD)
        stage_files(repository, [name for name in files if name not in left_out])
        tree = git_output(repository, "write-tree")
        head = git_output(repository, "rev-parse", HEAD)

        if tree != git_output(repository, "rev-parse", f"{HEAD}^{{tree}}"):
            head = git_output(repository, "commit-tree", tree, "-p", head, stdin=message.encode(), **identity)
            git_output(repository, "update-ref", "-m", "mendgraph", HEAD, head, stdin=b"", **identity)
    except CopyError as error:
        return error.error

    return BranchCommit(head if head != copy.base else "", left_out)


def stage_files(repository: Repository, names: Sequence[str], **variables: str) -> None:
    """Stage these files as they are, in the index that the variables name."""
    if shutil.which(_LFS_PROGRAM) is not None:
        repository = repository._replace(settings=(*repository.settings, *_LFS_SETTINGS))

    paths = os.fsencode("".join(f"{name}\0" for name in names))
    git_output(repository, "update-index", "--add", "--remove", "--replace", "-z", "--stdin", stdin=paths, **variables)


def find_left_out(copy: Copy, files: Sequence[str]) -> dict[str, str] | ToolError:
    """Return those of the files that a patch of the copy cannot hold, each with the reason."""
    if not os.path.lexists(os.path.join(copy.folder, WORKSPACE, ".git")):  # a copy of a folder
        return {}

    try:
        return _in_no_patch(open_repository(copy.root), files)
    except CopyError as error:
        return error.error


def remove_branch_copy(copy: Copy, branch: str) -> Mapping[str, str] | ToolError:
    """Remove the copy, and its branch if that has no commit.

    A note and an empty folder stay, for the records of its runs.

    Nothing is removed if the copy has files that are not committed: they are returned, each with the reason.
    """
    try:
        repository = open_repository(copy.root)
        remaining = _uncommitted_files(repository, copy)
        if remaining:
            reasons = dict.fromkeys(remaining, "it was changed by somebody else")
            return reasons | find_uncommittable(repository, copy.root, remaining)
    except CopyError as error:
        return error.error

    repository.run("update-ref", "-d", f"refs/heads/{branch}", copy.base)  # one with a commit is not at the base
    problem = delete_copy(copy.folder)

    with copy_folder(copy.folder, make=problem is None) as opened, suppress(OSError):
        folder = required(opened)
        parts = os.path.relpath(copy.root, copy.folder).split(os.sep)
        for end in range(1, len(parts) + 1):
            os.mkdir(os.path.join(*parts[:end]), 0o700, dir_fd=folder.handle)

        note = {"workspace": copy.source, "root": os.path.join(*parts), "base": copy.base, "notes": copy.notes}
        folder.write_note({**note, "wanted": copy.request, "removed": True})

    return problem or {}


def _uncommitted_files(repository: Repository, copy: Copy) -> list[str]:
    """Return the files that are not committed, without caches and the links to installed folders."""
    changed = git_output(repository, "ls-files", "-z", "--modified", "--others", "--exclude-standard").split("\0")
    ignored = git_output(repository, "ls-files", "-z", *_IGNORED).split("\0")
    staged = git_output(repository, "diff-index", "-z", "--cached", "--name-only", "--relative", HEAD).split("\0")
    tracked = {*git_output(repository, "ls-files", "-z", "--modified").split("\0"), *staged}
    names = dict.fromkeys([*changed, *staged, *ignored, *_filled_submodules(repository, copy.root)])
    files = [name for name in names if name and not _is_cache(copy.root, name)]
    return [name for name in files if name in tracked or not is_installed(copy.root, name, copy.installed)]


_COVERAGE: Final = ".coverage"
_IGNORED: Final = ("--others", "--ignored", "--exclude-standard")
_LFS: Final = "lfs"
_LFS_PROGRAM: Final = "git-lfs"
_LFS_SETTINGS: Final = (
    ("filter.lfs.process", "git-lfs filter-process"),
    ("filter.lfs.clean", "git-lfs clean -- %f"),
    ("filter.lfs.required", "true"),
)
"""The settings of `git lfs install` for adding files to a repository. Source: git-lfs-install(1)."""

_NO_FILTER: Final = frozenset({"unspecified", "unset", "set"})


def open_repository(root: str) -> Repository:
    """Return the repository of the folder; raises CopyError if there is none."""
    return required(find_repository(root) or invalid(f"{quoted(root)} is not a git repository."))


def git_output(repository: Repository, *words: str, stdin: bytes = b"", **variables: str) -> str:
    """Run git with these variables and return its output; raises CopyError if it fails."""
    result = repository.run(*words, stdin=stdin, **variables)
    return os.fsdecode(required(succeeded(result, "work in", repository.path)).stdout).rstrip("\n")


def find_uncommittable(repository: Repository, root: str, files: Sequence[str]) -> dict[str, str]:
    """Return those of the files that no commit holds, each with the reason."""
    return {**_filtered(repository, root, files), **_in_no_patch(repository, files)}


def _in_no_patch(repository: Repository, files: Sequence[str]) -> dict[str, str]:
    ignored = set(git_output(repository, "ls-files", "-z", *_IGNORED).split("\0"))
    modules = _submodules(repository)
    reasons: dict[str, str] = {}

    for name in files:
        for module in modules:
            if f"{name}/".startswith(f"{module}/") or module.startswith(f"{name}/"):
                reasons[name] = f"it takes the place of the submodule {quoted(module)}, or lies in it"

        if name in ignored:
            reasons[name] = "git ignores it"

    return reasons


def _filtered(repository: Repository, root: str, files: Sequence[str]) -> dict[str, str]:
    """Return the files whose filter, which would change them when added, is not run; each with the reason."""
    names = os.fsencode("".join(f"{name}\0" for name in files))
    words = git_output(repository, "check-attr", "-z", "--stdin", "filter", stdin=names).split("\0")
    reasons: dict[str, str] = {}

    for name, driver in zip(words[0::3], words[2::3], strict=False):
        if driver in _NO_FILTER or not os.path.lexists(os.path.join(root, name)):
            continue

        if driver != _LFS:
            reasons[name] = f"its filter {quoted(driver)} is not run"
        elif shutil.which(_LFS_PROGRAM) is None:
            reasons[name] = "git-lfs, which stores it, is not installed"

    return reasons


def _submodules(repository: Repository) -> list[str]:
    entries = git_output(repository, "ls-files", "--stage", "-z").split("\0")
    return [entry.partition("\t")[2] for entry in entries if entry.startswith(GITLINK)]


def _filled_submodules(repository: Repository, root: str) -> list[str]:
    """Return the folders of submodules that are not empty, though submodules are not checked out."""
    filled = []

    for name in _submodules(repository):
        with (
            suppress(OSError),
            closing(open_root(root)) as top,
            closing(open_directory(top, name.split("/"))) as folder,
        ):
            if os.listdir(folder):
                filled.append(f"{name}/")

    return filled


def _is_cache(root: str, name: str) -> bool:
    """Return whether it is a cache: bytecode of Python, data of coverage, or a file in a folder that is tagged as one.

    Source: "Cache Directory Tagging Specification", bford.info/cachedir.
    """
    parts = name.rstrip("/").split("/")
    if is_bytecode(parts) or parts[-1] == _COVERAGE:
        return True

    folders = (os.path.join(root, *parts[:end]) for end in range(1, len(parts) + 1))
    return any(os.path.isfile(os.path.join(folder, "CACHEDIR.TAG")) for folder in folders)
