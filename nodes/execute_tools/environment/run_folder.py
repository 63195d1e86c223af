"""Where a run keeps what is its own: a private folder for each thread, outside of the workspace."""

import hashlib
import os
import re
import stat
from contextlib import suppress

from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.handles import closing
from nodes.records import ToolError, ToolErrorCode

DATA_DIR_VARIABLE = "MENDGRAPH_DATA_DIR"
"""Names the folder that holds `runs/` instead of the user's data folder."""

RUNS = "runs"
_LONGEST_PREFIX = 40
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def run_folder(thread_id: str, base: str | None = None) -> str | ToolError:
    """The absolute path of this thread's folder, which is there and which nobody else may enter.

    It lies at `<base>/runs/`; without `base`, `MENDGRAPH_DATA_DIR` says where, or the user's data folder it is. A
    link, a file or somebody else's folder in its place is refused; a folder of ours that others may enter is closed.
    """
    base, name = os.path.abspath(base or _data_folder()), folder_name(thread_id)
    path = run_folder_path(thread_id, base)
    try:
        with suppress(FileExistsError):
            os.makedirs(base, mode=0o700)
        with (
            closing(os.open(base, _DIRECTORY)) as base_fd,
            closing(_open_private(RUNS, base_fd)) as runs_fd,
            closing(_open_private(name, runs_fd)),
        ):
            return path
    except _NotOursError:
        message = (
            f"The run's folder {quoted(path)} cannot be used: it, or the folder above it, is a link, a file, or"
            f" belongs to somebody else. Remove it, or set {DATA_DIR_VARIABLE} to a folder of your own."
        )
        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)
    except OSError as error:
        return os_failure(error, "make the run's folder", path)
    except ValueError:
        message = f"The run's folder cannot be {quoted(path)}: no folder can have this name."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def run_folder_path(thread_id: str, base: str | None = None) -> str:
    """Where this thread's folder is, or will be. Nothing is made."""
    return os.path.join(os.path.abspath(base or _data_folder()), RUNS, folder_name(thread_id))


def folder_name(thread_id: str) -> str:
    """A name for the thread's folder: a readable beginning made of harmless characters, and a hash that is its own."""
    prefix = re.sub(r"[^A-Za-z0-9_]+", "-", thread_id[:_LONGEST_PREFIX]).strip("-") or "run"
    return f"{prefix}-{hashlib.sha256(thread_id.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


class _NotOursError(Exception):
    """Something else is where the folder belongs."""


def _data_folder() -> str:
    folder = os.environ.get(DATA_DIR_VARIABLE)
    if folder:
        return os.path.expanduser(folder)
    from platformdirs import user_data_dir

    return user_data_dir("mendgraph", appauthor=False)


def _open_private(name: str, parent_fd: int) -> int:
    """A handle of the folder, made where there is none, that is ours alone."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent_fd)
    if not stat.S_ISDIR(os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode):
        raise _NotOursError
    descriptor = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent_fd)
    try:
        _make_private(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make_private(descriptor: int) -> None:
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise _NotOursError
    if status.st_mode & 0o777 != 0o700:
        os.fchmod(descriptor, 0o700)
