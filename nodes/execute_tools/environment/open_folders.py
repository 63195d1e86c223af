"""The folders of one change: each is opened once, by handle, and stays open until the change is over."""

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from nodes.execute_tools.environment.atomic_write import write_through
from nodes.execute_tools.environment.handles import closing, handle_name, open_directory, open_root

_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP})
_NOT_SYNCED: Final = frozenset({errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS})
"""What a system answers that knows no fsync of a directory. Source: PostgreSQL, fsync_fname_ext in fd.c."""


class OpenFolders:
    """The folders below one root that a change needs, in a `with` statement. Folders are named by their parts."""

    def __init__(self, root: str) -> None:
        """Open the root.

        Raises:
            OSError: it cannot be opened.
        """
        self.root = open_root(root)
        self._opened: dict[tuple[str, ...], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in {self.root, *self._opened.values()}:
            with suppress(OSError):  # nothing was written through it
                os.close(handle)
        self._opened.clear()

    def open(self, parts: Sequence[str], *, made: list[str] | None = None) -> int:
        """The handle of this folder; the caller does not close it.

        With a list in `made`, missing folders are made, and it receives their names below the root, outermost first.

        Raises:
            OSError: there is no such folder, or a part of it is none.
        """
        key = tuple(parts)
        if key not in self._opened:
            self._opened[key] = open_directory(self.root, key, made=made) if key else self.root
        return self._opened[key]

    def deepest(self, parts: Sequence[str]) -> tuple[int, int]:
        """The innermost of these folders that is there, and how many of the parts lead to it.

        Raises:
            OSError: something else is where a folder should be.
        """
        for length in range(len(parts), 0, -1):
            with suppress(FileNotFoundError):
                return self.open(parts[:length]), length
        return self.open(()), 0

    def real_name(self, folder: int, *rest: str) -> str | None:
        """The name below the root of an open folder, or of `rest` in it; None where the kernel does not tell.

        Raises:
            OSError: ESTALE, the folder has been moved out of the root.
        """
        top, above = handle_name(self.root), handle_name(folder)
        if top is None or above is None:
            return None
        name = os.path.normpath(os.path.join(os.path.relpath(above, top), *rest))
        if name == ".." or name.startswith("../"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return name

    def sync(self, made: Sequence[str] = ()) -> None:
        """Write the names in all opened folders through to the disk, and those of the folders that were `made`.

        Raises:
            OSError: the disk does not confirm it.
        """
        for folder in self._opened.values():
            sync_folder(folder)
        for parts in {tuple(name.split("/")[:-1]) for name in made} - self._opened.keys():
            try:
                folder = open_directory(self.root, parts)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
                continue
            with closing(folder):
                sync_folder(folder)

    def remove_made(self, made: Sequence[str]) -> None:
        """Take away folders that were made for nothing, innermost first; one that is in use by now stays."""
        for name in reversed(made):
            *above, last = name.split("/")
            with suppress(OSError), closing(open_directory(self.root, above)) as folder:
                os.rmdir(last, dir_fd=folder)


def sync_folder(folder: int) -> None:
    """Write the names in the open folder through to the disk, where the system can do so.

    Raises:
        OSError: the disk does not confirm it.
    """
    try:
        write_through(folder)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise
