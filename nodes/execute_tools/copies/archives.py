"""Trees of files, copied from a folder or extracted from an archive (.zip, .tar, compressed).

A folder is walked by handle, and links are copied as they are, wherever they lead; sockets, pipes and devices are left
out. Of an archive no link may lead out, and nothing is extracted through a link; there are limits.
"""

import bz2
import errno
import gzip
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import nullcontext
from typing import IO, Any, Final, NamedTuple, NoReturn, TypeVar, cast

from mendgraph.nodes.execute_tools.files.failures import invalid, os_failure, plain_text, quoted
from mendgraph.nodes.execute_tools.files.handles import closing, open_directory, open_regular, open_root
from mendgraph.nodes.execute_tools.store.run_folder import Identity
from mendgraph.nodes.records import ToolError

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


class Limits(NamedTuple):
    """How much an archive may become: entries, bytes of all files, and bytes for each of its own after the first ones.

    Source code has 3 to 10 for each, and a bomb of deflated zeros 1,000.
    """

    entries: int = 500_000
    bytes: int = 20_000_000_000
    ratio: int = 200
    free_bytes: int = 100_000_000


LIMITS: Final = Limits()

_DAMAGED: Final = (
    *(zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, KeyError),
    RuntimeError,  # a password, or a way to pack that is not known
)
_OURS: Final = frozenset({"__MACOSX", ".DS_Store", "pax_global_header"})
"""What packers add of their own beside the one folder of an archive."""
_OPENERS: Final[dict[str, Any]] = {
    ".tar": nullcontext,
    **dict.fromkeys((".tar.gz", ".tgz"), lambda file: gzip.GzipFile(fileobj=file)),
    **dict.fromkeys((".tar.xz", ".txz"), lzma.LZMAFile),
    **dict.fromkeys((".tar.bz2", ".tbz2"), bz2.BZ2File),
}
Member = TypeVar("Member", tarfile.TarInfo, zipfile.ZipInfo)


class _RefusedError(ValueError):
    """The message says what is wrong with the archive."""


def is_archive(name: str) -> bool:
    """Whether a file of this name is taken for an archive."""
    return name.lower().endswith((".zip", *_OPENERS))


def extract_archive(
    archive_fd: int, name: str, target: str, limits: Limits = LIMITS, *, any_links: bool = False
) -> ToolError | None:
    """Write what the open archive holds into the empty folder `target`; why not, naming the archive by `name`.

    After an error the folder holds a part of it. With `any_links` a link may lead anywhere.
    """
    try:
        with os.fdopen(os.dup(archive_fd), "rb") as file, closing(open_root(target)) as folder:
            file.seek(0)
            extracting = _Extracting(target, folder, limits, os.fstat(archive_fd).st_size)
            if name.lower().endswith(".zip"):
                extracting.extract_zip(file)
            else:
                opener = next(opener for ending, opener in _OPENERS.items() if name.lower().endswith(ending))
                with opener(file) as plain:
                    extracting.extract_tar(plain, any_links=any_links)
    except (*_DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            return os_failure(error, "extract", name)
        reason = plain_text(str(error).rstrip(".") or type(error).__name__, 300)
        return invalid(f"The archive {quoted(name)} cannot be extracted: {reason}.")
    return None


def single_folder(folder_fd: int) -> str | None:
    """The one folder that all of an extracted archive is in, where there is one: then this is the workspace."""
    with os.scandir(folder_fd) as found:
        entries = [entry for entry in found if entry.name not in _OURS]
    if len(entries) == 1 and entries[0].is_dir(follow_symlinks=False) and entries[0].name.lower() != ".git":
        return entries[0].name
    return None


class _Extracting:
    def __init__(self, target: str, folder: int, limits: Limits, size: int) -> None:
        self._target, self._folder, self._entries = target, folder, limits.entries
        self._most = min(limits.bytes, max(limits.free_bytes, size * limits.ratio))
        self._read = 0

    def extract_tar(self, stream: IO[bytes], *, any_links: bool) -> None:
        self._stream = stream
        with tarfile.open(fileobj=cast("IO[bytes]", self), mode="r|") as archive:
            allow = tarfile.tar_filter if any_links else tarfile.data_filter
            members = self._counted(archive, lambda info: (info.name, info.size, info.linkname * info.islnk()))
            archive.extractall(self._target, members, filter=allow)  # noqa: S202 - each member is looked at

    def read(self, size: int = -1) -> bytes:
        """The bytes of the archive, which count as well: headers can be without end."""
        chunk = self._stream.read(size)
        self._read += len(chunk)
        if self._read > 2 * self._most:
            raise _too_large(self._most)
        return chunk

    def extract_zip(self, file: IO[bytes]) -> None:
        with zipfile.ZipFile(file) as archive:
            for info in self._counted(archive.infolist(), lambda info: (info.filename, info.file_size, "")):
                mode, path = info.external_attr >> 16, os.path.join(self._target, info.filename)
                if not _is_below(path, self._target):
                    raise _RefusedError(f"{quoted(info.filename)} leads out of it")
                if stat.S_ISLNK(mode):
                    self._link(os.fsdecode(archive.read(info)), path)
                    continue
                archive.extract(info, self._target)
                if mode & 0o777 and not info.is_dir():
                    os.chmod(path, (mode & 0o755) | 0o600)

    def _link(self, leads_to: str, path: str) -> None:
        if not _is_below(os.path.join(os.path.dirname(path), leads_to), self._target):
            raise _RefusedError(f"a link leads to {quoted(leads_to)}, which is outside of it")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(leads_to, path)

    def _counted(self, members: Iterable[Member], said: Any) -> Iterator[Member]:
        """The members as long as they are not too many and not too large, and none goes through a link."""
        size = 0
        for number, member in enumerate(members, start=1):
            name, more, other_name = said(member)
            size += more
            if number > self._entries:
                raise _RefusedError(f"it has more than {self._entries:,} entries")
            if size > self._most:
                raise _too_large(self._most)
            for each in filter(None, (name, other_name)):
                self._refuse_links(each)
            yield member

    def _refuse_links(self, name: str) -> None:
        parts = [part for part in name.split("/") if part not in {"", ".", ".."}]
        try:
            with closing(open_directory(self._folder, parts[:-1])) as above:
                if parts and stat.S_ISLNK(os.stat(parts[-1], dir_fd=above, follow_symlinks=False).st_mode):
                    raise _RefusedError(f"{quoted(name)} is a link and something else")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _RefusedError(f"{quoted(name)} is below what is no folder") from error


def _is_below(path: str, target: str) -> bool:
    return os.path.realpath(path).startswith(f"{os.path.realpath(target)}/")


def _too_large(most: int) -> _RefusedError:
    return _RefusedError(f"it becomes larger than {most:,} bytes, which is more than an archive of its size may hold")
