"""Copies trees of files.

They are walked by handle. Links are copied as they are, wherever they lead; sockets, pipes and devices are left out.
"""

import errno
import os
import shutil
import stat
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple, NoReturn

from mendgraph.nodes.execute_tools.files.handles import closing, open_directory, open_regular
from mendgraph.nodes.execute_tools.store.run_folder import Identity

_NOT_HERE: Final = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF})
"""What the system answers where it cannot copy by itself. Source: copy_file_range(2)."""
_MOST_NAMED: Final = 20


class TreeEntry(NamedTuple):
    """A name in a tree: its whole `path`, the handle of its open `folder`, and what it is."""

    path: str
    folder: int
    name: str
    status: os.stat_result


def tree_entries(root_fd: int, without: Collection[Identity] = ()) -> Iterator[TreeEntry]:
    """All that the open folder holds, by name, each folder before what is in it, but for the folders `without`.

    Raises OSError: a folder cannot be looked into.
    """
    for above, folders, files, here in os.fwalk(".", dir_fd=root_fd, onerror=_raise):
        names = sorted([*folders, *files])
        folders[:] = sorted(folders)
        for name in names:
            try:
                status = os.stat(name, dir_fd=here, follow_symlinks=False)
            except FileNotFoundError:  # it was there a moment ago
                continue
            if (status.st_dev, status.st_ino) in without:
                folders.remove(name)
            else:
                yield TreeEntry(os.path.normpath(os.path.join(above, name)), here, name, status)


def _raise(error: OSError) -> NoReturn:
    raise error


def copy_tree(source_fd: int, target_fd: int, without: Collection[Identity] = ()) -> tuple[str, ...]:
    """Copy all that the open folder `source_fd` holds into the empty folder `target_fd`, but for the folders `without`.

    Gives the names of special files that were left out, some of them if there are many. Raises OSError: the disk
    refuses.
    """
    left_out: list[str] = []
    folders: list[tuple[list[str], os.stat_result]] = [([], os.fstat(source_fd))]
    for path, here, name, status in tree_entries(source_fd, without):
        parts = path.split("/")
        with closing(open_directory(target_fd, parts[:-1])) as there:
            if stat.S_ISLNK(status.st_mode):
                os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
            elif stat.S_ISDIR(status.st_mode):
                os.mkdir(name, 0o700, dir_fd=there)
                folders.append((parts, status))
            elif stat.S_ISREG(status.st_mode):
                _copy_file(here, there, name)
            else:
                left_out.append(path)
    for parts, status in reversed(folders):  # a folder that nobody may write gets its mode last
        with closing(open_directory(target_fd, parts)) as folder:
            _like(folder, status)
    return tuple(left_out[:_MOST_NAMED])


def _copy_file(here: int, there: int, name: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle, status = open_regular(here, (name,), os.O_RDONLY)
    with closing(handle) as source, closing(os.open(name, flags, 0o600, dir_fd=there)) as target:
        _copy_bytes(source, target)
        _like(target, status)


def _like(handle: int, status: os.stat_result) -> None:
    os.fchmod(handle, stat.S_IMODE(status.st_mode) & 0o777)
    os.utime(handle, ns=(status.st_atime_ns, status.st_mtime_ns))


def _copy_bytes(source: int, target: int) -> None:
    try:
        while os.copy_file_range(source, target, 1 << 30):  # shares blocks where the file system can do so
            pass
    except AttributeError:  # a system without this call
        pass
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    else:
        return
    with open(source, "rb", closefd=False) as reader, open(target, "wb", closefd=False) as writer:
        shutil.copyfileobj(reader, writer, 1_048_576)
