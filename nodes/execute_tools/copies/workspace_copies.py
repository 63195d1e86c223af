"""Copies of workspaces: made once, whatever is killed meanwhile, compared with their beginning, and taken away.

A copy has a folder of its own with the workspace in it, beside the workspace what is needed for a patch, and a note of
what it is, which is written last. While a copy is made, compared or removed, its folder is locked. A folder that is
neither empty nor ours is never touched.
"""

import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from mendgraph.nodes.execute_tools.copies.copy_sources import (
    BASE,
    GITLINK,
    INSTALLED,
    WORKSPACE,
    CopyError,
    GitSource,
    PrivateGit,
    find_source,
    required,
)
from mendgraph.nodes.execute_tools.files.atomic_write import sync_folder, write_temporary
from mendgraph.nodes.execute_tools.files.handles import closing, open_beneath, open_directory, open_root
from mendgraph.nodes.execute_tools.processes.command_changes import is_bytecode
from mendgraph.nodes.execute_tools.processes.git import (
    HEAD,
    Repository,
    find_repository,
    find_uncommitted,
    remove_worktree_records,
    succeeded,
)
from mendgraph.nodes.language.display import listed
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, os_failure, quoted

FINISHED: Final = "copy.json"
BEGUN: Final = "copy.begun.json"

_LARGEST_NOTE: Final = 1_000_000


class CopyFolder:
    """An open folder that nobody else prepares or removes meanwhile."""

    def __init__(self, path: str, handle: int) -> None:
        self.path = path
        self.handle = handle

    def note(self, name: str = FINISHED) -> Mapping[str, Any] | None:
        """What is noted of the copy; None where it is not finished, or with `BEGUN` not even begun."""
        try:
            with closing(open_beneath(self.handle, (name,), os.O_RDONLY)) as handle:
                note_read = json.loads(os.read(handle, _LARGEST_NOTE))
        except (OSError, ValueError):
            return None

        return note_read if isinstance(note_read, dict) else None

    def write_note(self, note: Mapping[str, Any], name: str = FINISHED) -> None:
        """Note what the copy is; it is on the disk when this returns. Raises OSError: it could not be written."""
        temporary = f".{name}.new"
        data = json.dumps(note, ensure_ascii=True, indent=1).encode()
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=self.handle)

        write_temporary(self.handle, temporary, data, mode=0o600)
        os.rename(temporary, name, src_dir_fd=self.handle, dst_dir_fd=self.handle)
        sync_folder(self.handle)

    def empty(self) -> ToolError | None:
        """Take away all that is in it; CONFLICT, and nothing is touched, where this is no folder of a copy.

        Raises OSError: something could not be taken away.
        """
        names = os.listdir(self.handle)
        if names and not {FINISHED, BEGUN, f".{BEGUN}.new"} & set(names):
            message = (
                f"{quoted(self.path)} is not empty and holds no copy of a workspace: name another folder, or remove it."
            )

            return ToolError(code=ToolErrorCode.CONFLICT, message=message)

        if FINISHED in names and BEGUN not in names:
            self.write_note(self.note() or {}, BEGUN)

        if FINISHED in names:
            os.unlink(FINISHED, dir_fd=self.handle)

        for name in sorted(os.listdir(self.handle), key=BEGUN.__eq__):
            if stat.S_ISDIR(os.stat(name, dir_fd=self.handle, follow_symlinks=False).st_mode):
                shutil.rmtree(name, dir_fd=self.handle)
            else:
                os.unlink(name, dir_fd=self.handle)

        return None


@contextmanager
def copy_folder(path: str, *, make: bool) -> Iterator[CopyFolder | ToolError]:
    """The folder at this absolute path, made where there is none if `make` says so; NOT_FOUND otherwise."""
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
                fcntl.flock(handle, fcntl.LOCK_UN)  # a copy of this process may have the handle


class Wanted(NamedTuple):
    """What a copy with a `branch` of its own is for.

    The `task`, whether to `commit` what is done, and where the `report` goes: a file, "-" for standard output, or "".
    """

    branch: str
    task: str
    commit: bool
    report: str


class Copy(NamedTuple):
    """A finished copy. `root` is the workspace in it, by its real, absolute name.

    `base` is what it began with: a commit's id, or the hash of all files as a git tree. `folder` is its own folder,
    with the workspace and what belongs to it. `notes` are sentences about what is not in it. `wanted` is there for
    one with a branch of its own.
    """

    root: str
    base: str
    folder: str
    notes: tuple[str, ...] = ()
    wanted: Wanted | None = None


class Pinned(NamedTuple):
    """What a workspace is at this moment: the full id of a commit, "" where it is no repository; `notes` as above."""

    revision: str
    notes: tuple[str, ...] = ()


def pin_source(workspace: str, revision: str = "") -> Pinned | ToolError:
    """What copies of the workspace are made of from now on, or why none can be: nothing is written.

    A batch asks once, so that all of its copies are of one commit, though the repository goes on meanwhile.
    """
    if isinstance(source_found := find_source(workspace, revision), ToolError):
        return source_found
    if isinstance(source_found, GitSource):
        return Pinned(source_found.commit, source_found.notes)

    return Pinned("")


def make_copy(workspace: str, revision: str, folder: str, *, without: Iterable[str] = ()) -> Copy | ToolError:
    """The copy in `folder`, made if it is not there yet; CONFLICT where it is one of something else.

    One that was moved or copied here is made anew: what is kept of its run is known by the place where it was.
    """
    path = os.path.abspath(folder)
    details = {"workspace": workspace, "revision": revision}

    with copy_folder(path, make=True) as opened:
        if isinstance(opened, ToolError):
            return opened

        try:
            note = opened.note()
            if note is not None and note.get("folder", opened.path) == opened.path:
                return _known(opened, note, details)

            _forget(opened, note or opened.note(BEGUN))
            return opened.empty() or _make(opened, details, without)
        except OSError as error:
            return os_failure(error, "make a copy of the workspace in", folder)


def open_copy(folder: str) -> Copy | None:
    """The finished copy in `folder`, None where there is none."""
    with copy_folder(os.path.abspath(folder), make=False) as opened:
        note = None if isinstance(opened, ToolError) else opened.note()
        if note is None or isinstance(opened, ToolError):
            return None
        return _copy(opened, note)


def compare_copy(folder: str) -> bytes | ToolError:
    """How the workspace in the copy differs from its beginning, as git tells it; b"" where it does not."""
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
    """Take away the copy in `folder`, finished or not, and what a repository knows of it. None there is no error."""
    path = os.path.abspath(folder)
    if not os.path.lexists(path):
        return None

    with copy_folder(path, make=False) as opened:
        if isinstance(opened, ToolError):
            return opened

        try:
            _forget(opened, opened.note() or opened.note(BEGUN))
            problem = opened.empty()
            if problem is None:
                os.rmdir(opened.path)
        except OSError as error:
            return os_failure(error, "remove the copy in", folder)

    return problem


def _make(folder: CopyFolder, asked: Mapping[str, str], without: Iterable[str]) -> Copy | ToolError:
    workspace = asked["workspace"]
    revision = asked["revision"]
    left_out = (*without, *_own_folders(folder.path, workspace))

    if isinstance(source := find_source(workspace, revision, left_out), ToolError):
        return source

    note_written = {**asked, "records": source.records(folder.path) if isinstance(source, GitSource) else ""}
    folder.write_note(note_written, BEGUN)

    try:
        problem = source.make(folder.path, folder.handle)
    except CopyError as error:
        _forget(folder, note_written)
        folder.empty()
        return error.error

    note = {**asked, **problem._asdict(), "folder": folder.path}
    folder.write_note(note)
    return _copy(folder, note)


def _forget(folder: CopyFolder, note: Mapping[str, Any] | None) -> None:
    if note is not None and note.get("records"):
        remove_worktree_records(str(note["records"]), folder.path)


def _own_folders(folder: str, workspace: str) -> tuple[str, ...]:
    """What is left out of a copy that is made inside its own source: itself, and the copies beside it."""
    beside = os.path.dirname(folder)
    inside = os.path.realpath(beside) == os.path.realpath(os.path.expanduser(workspace))
    return (folder,) if inside else (folder, beside)


def _known(folder: CopyFolder, note: Mapping[str, Any], asked: Mapping[str, str]) -> Copy | ToolError:
    if all(note.get(name) == value for name, value in asked.items()):
        return _copy(folder, note)

    message = (
        f"{quoted(folder.path)} holds a copy of another workspace or revision ({quoted(str(note.get('workspace')))}):"
        " name another folder, or remove it."
    )

    return ToolError(code=ToolErrorCode.CONFLICT, message=message)


def _copy(folder: CopyFolder, note: Mapping[str, Any]) -> Copy:
    root = os.path.join(folder.path, note["root"])
    branch_request = Wanted(*note["wanted"]) if "wanted" in note else None
    return Copy(root, note["base"], folder.path, tuple(note["notes"]), branch_request)


# --- A copy on a branch of its own


def make_branch(workspace: str, folder: str, wanted: Wanted) -> Copy | ToolError:
    """A copy of the last commit in `folder`, on the new branch that is wanted; its notes say what is not in it.

    INVALID_ARGUMENT where the workspace is in no repository.
    """
    path = os.path.realpath(workspace)
    ref = f"refs/heads/{wanted.branch}"

    try:
        repository = required(find_repository(path))
        if repository is None:
            return invalid(
                f"{quoted(workspace)} is no git repository, and an unattended run works on a branch of its own: make"
                " it one (git init, git add, git commit), or run the task without --unattended."
            )

        changed, untracked = required(find_uncommitted(repository))
        copy = required(make_copy(path, HEAD, folder))
        left_parts = [*[listed(map(quoted, changed))] * bool(changed), *["files that git does not track"] * untracked]
        notes = (*copy.notes, *[f"Not in it, as it is not committed: {' and '.join(left_parts)}."] * bool(left_parts))

        for words in (("update-ref", ref, copy.base, ""), ("symbolic-ref", HEAD, ref)):
            required(succeeded(repository.run(*words, cwd=copy.root), "make a branch of", path))

        copy = copy._replace(notes=notes, wanted=wanted)
        with copy_folder(folder, make=False) as opened:
            opened_copy = required(opened)
            opened_copy.write_note({**(opened_copy.note() or {}), "notes": notes, "wanted": wanted})
    except (CopyError, OSError) as error:
        delete_copy(folder)
        if isinstance(error, CopyError):
            return error.error
        return os_failure(error, "make a copy in", folder)

    return copy


class Committed(NamedTuple):
    """The `id` of a commit, "" where the branch has no change, and files that are not in it, each with the reason."""

    id: str
    left_out: Mapping[str, str]


def commit_branch(copy: Copy, files: Iterable[str], message: str, identity: Mapping[str, str]) -> Committed | ToolError:
    """Commit these files of a copy as they are onto its branch.

    What git ignores, what lies in a submodule, and what a person has staged is left out. No hook or signing program is
    started, and no filter but that of git-lfs where it is installed: other files with a filter are left out.
    """
    files = list(files)
    try:
        repository = _repository_of(copy)
        left_out = _left_out(repository, copy.root, files)
        names = "".join(f"{name}\0" for name in files if name not in left_out)
        lfs = _LFS_SETTINGS if shutil.which(_LFS_PROGRAM) is not None else ()
        with_lfs = repository._replace(settings=(*repository.settings, *lfs))
        _git(repository, "read-tree", "-m", HEAD)
        _git(with_lfs, "update-index", "--add", "--remove", "--replace", "-z", "--stdin", given=os.fsencode(names))
        tree = _git(repository, "write-tree")
        head = _git(repository, "rev-parse", HEAD)

        if tree != _git(repository, "rev-parse", f"{HEAD}^{{tree}}"):
            head = _git(repository, "commit-tree", tree, "-p", head, given=message.encode(), **identity)
            _git(repository, "update-ref", "-m", "mendgraph", HEAD, head, given=b"", **identity)
    except CopyError as error:
        return error.error

    return Committed(head if head != copy.base else "", left_out)


def find_left_out(copy: Copy, files: Sequence[str]) -> dict[str, str] | ToolError:
    """Those of these files that a patch of the copy cannot hold, each with the reason."""
    if not os.path.lexists(os.path.join(copy.folder, WORKSPACE, ".git")):  # a copy of a folder
        return {}

    try:
        return _in_no_patch(_repository_of(copy), files)
    except CopyError as error:
        return error.error


def leave_branch(copy: Copy, branch: str) -> Mapping[str, str] | ToolError:
    """Take the copy away, and its branch as well where that has no commit; an empty folder stays, for its runs.

    Nothing is taken away where the copy holds files that are not committed: gives them, each with the reason.
    """
    try:
        repository = _repository_of(copy)
        changed = _git(repository, "ls-files", "-z", "--modified", "--others", "--exclude-standard").split("\0")
        ignored = _git(repository, "ls-files", "-z", *_IGNORED).split("\0")
        files = dict.fromkeys([*changed, *ignored, *_in_submodules(repository, copy.root)])
        files_left = [
            name for name in files if name and name.rstrip("/") not in INSTALLED and not _is_cache(copy.root, name)
        ]

        if files_left:
            return dict.fromkeys(files_left, "it was changed by somebody else") | _left_out(
                repository, copy.root, files_left
            )
    except CopyError as error:
        return error.error

    repository.run("update-ref", "-d", f"refs/heads/{branch}", copy.base)  # one with a commit is not at the base
    problem = delete_copy(copy.folder)

    with copy_folder(copy.folder, make=problem is None) as opened, suppress(OSError):
        parts = os.path.relpath(copy.root, copy.folder).split(os.sep)
        for end in range(1, len(parts) + 1):
            os.mkdir(os.path.join(*parts[:end]), 0o700, dir_fd=required(opened).handle)

    return problem or {}


_IGNORED: Final = ("--others", "--ignored", "--exclude-standard")
_LFS: Final = "lfs"
_LFS_PROGRAM: Final = "git-lfs"
_LFS_SETTINGS: Final = (
    ("filter.lfs.process", "git-lfs filter-process"),
    ("filter.lfs.clean", "git-lfs clean -- %f"),
    ("filter.lfs.required", "true"),
)
"""What `git lfs install` sets, for the way into a repository. Source: git-lfs-install(1)."""

_NO_FILTER: Final = frozenset({"unspecified", "unset", "set"})


def _repository_of(copy: Copy) -> Repository:
    return required(find_repository(copy.root) or invalid(f"{quoted(copy.root)} is no git repository."))


def _git(repository: Repository, *words: str, given: bytes = b"", **identity: str) -> str:
    done = repository.run(*words, given=given, **identity)
    return os.fsdecode(required(succeeded(done, "work on the copy in", repository.path)).stdout).rstrip("\n")


def _left_out(repository: Repository, root: str, files: Sequence[str]) -> dict[str, str]:
    return {**_filtered(repository, root, files), **_in_no_patch(repository, files)}


def _in_no_patch(repository: Repository, files: Sequence[str]) -> dict[str, str]:
    ignored = set(_git(repository, "ls-files", "-z", *_IGNORED).split("\0"))
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
    """The files that a filter has to change on their way into the repository, where that filter is not run."""
    names = os.fsencode("".join(f"{name}\0" for name in files))
    words = _git(repository, "check-attr", "-z", "--stdin", "filter", given=names).split("\0")
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
    entries = _git(repository, "ls-files", "--stage", "-z").split("\0")
    return [entry.partition("\t")[2] for entry in entries if entry.startswith(GITLINK)]


def _in_submodules(repository: Repository, root: str) -> list[str]:
    """The folders of submodules in which somebody has made something, though they are not checked out."""
    filled = []

    for name in _submodules(repository):
        with (
            suppress(OSError),
            closing(open_root(root)) as top,
            closing(open_directory(top, name.split("/"))) as folder,
        ):
            filled += [f"{name}/"] if os.listdir(folder) else []

    return filled


def _is_cache(root: str, name: str) -> bool:
    """Whether a program can make this again: bytecode of Python, and what lies in a folder that is marked as a cache.

    Source: "Cache Directory Tagging Specification", bford.info/cachedir.
    """
    parts = name.rstrip("/").split("/")
    folders = (os.path.join(root, *parts[:end]) for end in range(1, len(parts) + 1))
    tagged = any(os.path.isfile(os.path.join(folder, "CACHEDIR.TAG")) for folder in folders)

    return tagged or is_bytecode(parts)
