"""The `.git` of a workspace while a command runs in it: that there is one, and which repository it points to."""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nodes.execute_tools.environment.failures import os_failure
from nodes.execute_tools.environment.handles import closing, open_regular, open_root
from nodes.execute_tools.environment.listing import GIT_DIRECTORY
from nodes.records import ToolError, ToolErrorCode

_LONGEST_POINTER = 10_000
"""Bytes of the small files in which git says where a linked worktree belongs."""

_LOCK_POLL_S = 0.01


@contextmanager
def protected_git(root_fd: int, deadline: float) -> Iterator[ToolError | None]:
    """See to it that there is a `.git` that can be made read-only, or say why there is none.

    Where there is no repository it is an empty folder. Commands of several runs share it by a lock on `root_fd`, and
    the last one takes it away; one that a killed run left behind is taken away as well. On a file system without locks
    it stays.
    """
    problem = _shared_lock(root_fd, deadline)
    if problem is not None:
        yield problem
        return
    try:
        problem = _made_placeholder(root_fd)
        yield problem
    finally:
        with suppress(OSError):
            if problem is None:
                fcntl.flock(root_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody else needs it
                os.rmdir(GIT_DIRECTORY, dir_fd=root_fd)
        with suppress(OSError):
            fcntl.flock(root_fd, fcntl.LOCK_UN)  # closing is not enough: a copy of this process may have the handle


def remove_placeholder(root: str) -> None:
    """Take away the empty `.git` that a command left whose run was killed, unless another command needs it."""
    with suppress(OSError), closing(open_root(root)) as root_fd:
        fcntl.flock(root_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rmdir(GIT_DIRECTORY, dir_fd=root_fd)


def _shared_lock(root_fd: int, deadline: float) -> ToolError | None:
    while True:
        try:
            fcntl.flock(root_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                message = "Another program has locked the workspace (flock), so no command is run in it: end that one."
                return ToolError(code=ToolErrorCode.TIMEOUT, message=message)
            time.sleep(_LOCK_POLL_S)
        except OSError:  # a file system without locks
            return None
        else:
            return None


def _made_placeholder(root_fd: int) -> ToolError | None:
    """Make an empty `.git` where there is none; why not, if it cannot be made or protected."""
    try:
        os.mkdir(GIT_DIRECTORY, dir_fd=root_fd)
    except FileExistsError:
        pass
    except OSError as error:
        return None if error.errno == errno.EROFS else os_failure(error, "protect", GIT_DIRECTORY)
    try:
        status = os.stat(GIT_DIRECTORY, dir_fd=root_fd, follow_symlinks=False)
    except OSError as error:
        return os_failure(error, "protect", GIT_DIRECTORY)
    if not stat.S_ISLNK(status.st_mode):
        return None
    message = "'.git' is a symbolic link, which cannot be made read-only, so no command is run in this workspace."
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def linked_repository(root: str) -> str | None:
    """The repository elsewhere of which `root` is a linked worktree, if that repository says so itself.

    The pointer in the workspace could name any folder; only git has written the pointer back.
    """
    pointer = _line_of(os.path.join(root, GIT_DIRECTORY))
    own = os.path.realpath(os.path.join(root, pointer.removeprefix("gitdir:").strip()))
    if not pointer.startswith("gitdir:") or os.path.basename(os.path.dirname(own)) != "worktrees":
        return None
    repository = os.path.dirname(os.path.dirname(own))
    back = os.path.realpath(_line_of(os.path.join(own, "gitdir")) or "/")
    if back != os.path.join(root, GIT_DIRECTORY) or not os.path.isfile(os.path.join(repository, "HEAD")):
        return None
    return repository


def _line_of(path: str) -> str:
    """The text of a small regular file, "" where there is none."""
    folder, name = os.path.split(path)
    with suppress(OSError, ValueError), closing(open_root(folder)) as parent:
        handle, _ = open_regular(parent, (name,), os.O_RDONLY)
        with closing(handle):
            return os.fsdecode(os.read(handle, _LONGEST_POINTER)).strip().replace("\0", "")
    return ""
