"""Linked worktrees of git repositories: made, checked out and taken away without touching anything else of theirs.

What git writes is a folder of its own for each worktree, in `worktrees/` of the repository. Its name is derived from
where the worktree is, so that what a killed process left is found and made anew.
"""

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final

from nodes.execute_tools.environment.failures import os_failure
from nodes.execute_tools.environment.git_program import git_failure, pipe_git, run_git
from nodes.execute_tools.environment.handles import closing, open_root
from nodes.execute_tools.environment.repositories import Repository, filters_off
from nodes.records import ToolError

ATTEMPTS: Final = 5
"""How often a worktree is begun: meanwhile another program may take away the folder `worktrees` while it is empty."""

_WORKTREES: Final = "worktrees"
_LOCKED: Final = "locked"
_POINTER: Final = ".git"
_MISSING_OBJECT: Final = ("unable to read", "missing blob", "promisor", "transport")


def worktree_name(folder: str) -> str:
    """The name under which a repository keeps the worktree that is made in this folder."""
    return f"mendgraph-{hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:16]}"


def records_path(common: str, folder: str) -> str:
    """Where the repository with the shared folder `common` keeps what it knows of this worktree."""
    return os.path.join(common, _WORKTREES, worktree_name(folder))


def add_worktree(repository: Repository, commit: str, folder_fd: int, folder: str, name: str) -> str | ToolError:
    """Make `name` in the open `folder` a worktree at the commit, with a detached HEAD; the path of its records.

    What an earlier try has left in the repository is taken away first; in `folder` nothing may be left of it.
    """
    own = worktree_name(folder)
    try:
        with _turn(repository.common):
            _remove_records(repository.common, own, folder)
            problem = _begin(repository, commit, os.path.join(folder, own))
        if problem is not None:
            return problem
        records = _records_of(folder_fd, own)
        os.rename(own, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        _point_back(records, os.path.join(os.path.realpath(folder), name, _POINTER))
        failure = _check_out(repository, os.path.join(folder, name))
        if failure is not None:
            return failure
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(records, _LOCKED))  # from now on `git worktree prune` decides by what is there
    except OSError as error:
        return os_failure(error, "make a worktree of", repository.path)
    return records


def remove_worktree_records(records: str, folder: str) -> None:
    """Take away what a repository knows of the worktree in this folder, where it still is that one's.

    Raises:
        OSError: it could not be taken away.
    """
    common = os.path.dirname(os.path.dirname(records))
    if os.path.basename(os.path.dirname(records)) == _WORKTREES and os.path.isdir(common):
        with _turn(common):
            _remove_records(common, os.path.basename(records), folder)


@contextmanager
def _turn(common: str) -> Iterator[None]:
    """One of us at a time; the lock is on the folder itself and leaves no trace."""
    with closing(open_root(common)) as handle:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _begin(repository: Repository, commit: str, path: str) -> ToolError | None:
    """An empty worktree, which nobody prunes before it is finished."""
    failure: ToolError | None = None
    for _ in range(ATTEMPTS):
        made = repository.run("worktree", "add", "--quiet", "--detach", "--no-checkout", "--lock", path, commit)
        if isinstance(made, ToolError):
            return made
        if not made.exit_code:
            return None
        failure = git_failure(made, "make a worktree of", repository.path)
        if os.path.lexists(path):
            break
    return failure


def _check_out(repository: Repository, path: str) -> ToolError | None:
    careful = repository._replace(settings=(*repository.settings, *filters_off(repository, path)))
    done = careful.run("reset", "--quiet", "--hard", "--no-recurse-submodules", cwd=path)
    if isinstance(done, ToolError) or not done.exit_code:
        return done if isinstance(done, ToolError) else None
    failure = git_failure(done, "check out", repository.path)
    if not any(each in failure.message for each in _MISSING_OBJECT):
        return failure
    message = (
        f"{failure.message} Nothing is fetched for a copy: where the repository is a partial clone, bring the missing"
        " files into it first (git checkout of this revision does so)."
    )
    return failure.model_copy(update={"message": message})


def _records_of(folder_fd: int, name: str) -> str:
    """What the new worktree's pointer names."""
    with closing(os.open(f"{name}/{_POINTER}", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder_fd)) as handle:
        return os.path.realpath(os.fsdecode(os.read(handle, 10_000)).removeprefix("gitdir: ").removesuffix("\n"))


def _point_back(records: str, pointer: str) -> None:
    with open(os.path.join(records, "gitdir"), "wb") as file:
        file.write(os.fsencode(pointer) + b"\n")


def _remove_records(common: str, own: str, folder: str) -> None:
    records = os.path.join(common, _WORKTREES, own)
    try:
        if not stat.S_ISDIR(os.lstat(records).st_mode):
            return
    except FileNotFoundError:
        return
    if _is_in(_pointed_at(records), folder):
        shutil.rmtree(records)
        with suppress(OSError):  # others are in there
            os.rmdir(os.path.join(common, _WORKTREES))


def _pointed_at(records: str) -> str:
    with suppress(OSError), open(os.path.join(records, "gitdir"), "rb") as file:
        return os.fsdecode(file.read(10_000)).removesuffix("\n")
    return ""


def _is_in(pointer: str, folder: str) -> bool:
    """Whether the pointer leads into the folder; one that was never written belongs to who made it: us, by its name."""
    return not pointer or os.path.realpath(os.path.dirname(os.path.dirname(pointer))) == os.path.realpath(folder)


def bare_repository(path: str, object_format: str, commit: str, pack: IO[bytes]) -> ToolError | None:
    """Make a repository at `path` that knows one commit without those before it, from the open file with its objects.

    Raises:
        OSError: the disk refuses.
    """
    made = run_git(("init", "--bare", "--quiet", "--template=", f"--object-format={object_format}", path), cwd="/")
    if isinstance(made, ToolError) or made.exit_code:
        return made if isinstance(made, ToolError) else git_failure(made, "make a repository at", path)
    with open(os.path.join(path, "shallow"), "w", encoding="ascii") as file:
        file.write(f"{commit}\n")
    with tempfile.TemporaryFile() as said:
        stored = pipe_git(("index-pack", "--stdin", "--fix-thin"), pack, cwd=path, stdout=said)
    if isinstance(stored, ToolError):
        return stored
    return git_failure(stored, "store the packed commit in", path) if stored.exit_code else None
