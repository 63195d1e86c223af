"""The folder of one copy of a workspace: who may use it now, whether it is finished, and how it goes away.

It holds a `workspace`, what belongs to the copy beside it, and a note of what it is. The note is written last, so a
folder with a note of its beginning alone is half-made. A folder that is neither empty nor ours is never touched.
"""

import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from nodes.execute_tools.environment.atomic_write import sync_folder
from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.handles import closing, open_beneath, open_root
from nodes.records import ToolError, ToolErrorCode

WORKSPACE: Final = "workspace"
FINISHED: Final = "copy.json"
BEGUN: Final = "copy.begun.json"

_LARGEST_NOTE: Final = 1_000_000
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class CopyFolder:
    """An open folder that nobody else prepares or removes meanwhile."""

    def __init__(self, path: str, handle: int) -> None:
        self.path, self.handle = path, handle

    def note(self, name: str = FINISHED) -> Mapping[str, Any] | None:
        """What is noted of the copy; None where it is not finished, or with `BEGUN` not even begun."""
        try:
            with closing(open_beneath(self.handle, (name,), os.O_RDONLY)) as handle:
                found = json.loads(os.read(handle, _LARGEST_NOTE))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def write_note(self, note: Mapping[str, Any], name: str = FINISHED) -> None:
        """Note what the copy is; it is on the disk when this returns.

        Raises:
            OSError: it could not be written.
        """
        temporary = f".{name}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing(os.open(temporary, flags, 0o600, dir_fd=self.handle)) as handle:
            with open(handle, "wb", closefd=False) as file:
                file.write(json.dumps(note, ensure_ascii=True, indent=1).encode())
            os.fsync(handle)
        os.rename(temporary, name, src_dir_fd=self.handle, dst_dir_fd=self.handle)
        sync_folder(self.handle)

    def empty(self) -> ToolError | None:
        """Take away all that is in it; CONFLICT, and nothing is touched, where this is no folder of a copy.

        Raises:
            OSError: something could not be taken away.
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
            _remove(self.handle, name)
        return None

    def remove(self) -> ToolError | None:
        """Take away the folder with all that is in it; cut off in the middle, it holds a half-made copy.

        Raises:
            OSError: something could not be taken away.
        """
        problem = self.empty()
        if problem is None:
            os.rmdir(self.path)
        return problem


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


def _remove(folder_fd: int, name: str) -> None:
    """Take away a file or a tree, whatever its modes are; no link is followed."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=folder_fd)
        return
    try:
        shutil.rmtree(name, dir_fd=folder_fd)
    except PermissionError:
        _open_up(folder_fd, name)
        shutil.rmtree(name, dir_fd=folder_fd)


def _open_up(folder_fd: int, name: str) -> None:
    """Let the owner into each folder of the tree again."""
    _allow(folder_fd, name)
    for _, folders, _, here in os.fwalk(name, dir_fd=folder_fd):
        for each in folders:
            with suppress(OSError):
                _allow(here, each)


def _allow(parent_fd: int, name: str) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode):
        os.chmod(name, 0o700, dir_fd=parent_fd)
