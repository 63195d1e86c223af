"""Trees of files, copied from a folder or extracted from an archive (.zip, .tar, compressed), by handle.

No link is followed on the way. Of a folder, links are copied as they are, wherever they lead; sockets, pipes and
devices are left out, and blocks are shared where the file system can do so. Each member of an archive is looked at
before it is written; a link in it may only lead to a place inside, and there are limits. `tarfile`'s own filters are
not used: they came with Python 3.11.4, and have been got around.
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
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import IO, Any, Final, NamedTuple, cast

from mendgraph.nodes.execute_tools.files.failures import os_failure, plain_text, quoted
from mendgraph.nodes.execute_tools.files.handles import closing, open_directory, open_regular
from mendgraph.nodes.execute_tools.files.sandbox import LONGEST_NAME, LONGEST_PATH
from mendgraph.nodes.execute_tools.store.run_folder import Identity
from mendgraph.nodes.records import ToolError, ToolErrorCode

ATTEMPTS: Final = 3
"""How often a file is copied that somebody writes at the same time."""

_NOT_HERE: Final = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF})
"""What the system answers where it cannot copy by itself. Source: copy_file_range(2)."""
_GONE: Final = frozenset({errno.ENOENT, errno.ESTALE})


class TreeCopied(NamedTuple):
    """What was copied, and the names of special files that were `left_out`, some of them if there are many."""

    files: int
    bytes: int
    left_out: tuple[str, ...] = ()


class _ChangingError(Exception):
    """A file was written all the time; the message is its name."""


def copy_tree(source_fd: int, target_fd: int, without: Collection[Identity] = ()) -> TreeCopied | ToolError:
    """Copy all that the open folder `source_fd` holds into the empty folder `target_fd`, but for the folders `without`.

    What goes away meanwhile is left out. CONFLICT names a file that changes all the time.
    """
    copying = _Copying(source_fd, target_fd, frozenset(without))
    try:
        return copying.run()
    except OSError as error:
        return os_failure(error, "copy", copying.at)
    except _ChangingError as error:
        message = f"{quoted(str(error))} is being written all the time, so it cannot be copied: try again later."
        return ToolError(code=ToolErrorCode.CONFLICT, message=message)


class _Copying:
    def __init__(self, source_fd: int, target_fd: int, without: frozenset[Identity]) -> None:
        self.at = "."
        self._source, self._target, self._without = source_fd, target_fd, without
        self._files, self._bytes = 0, 0
        self._left_out: list[str] = []
        self._pending: list[tuple[str, ...]] = [()]
        self._folders: list[tuple[tuple[str, ...], os.stat_result]] = []

    def run(self) -> TreeCopied:
        while self._pending:
            self._copy_folder(self._pending.pop())
        for parts, status in reversed(self._folders):  # a folder that nobody may write gets its mode last
            with closing(open_directory(self._target, parts)) as folder:
                os.fchmod(folder, stat.S_IMODE(status.st_mode) & 0o777)
                os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns))
        return TreeCopied(self._files, self._bytes, tuple(self._left_out))

    def _copy_folder(self, parts: tuple[str, ...]) -> None:
        self.at = "/".join(parts) or "."
        try:
            here = open_directory(self._source, parts)
        except OSError as error:
            if parts and error.errno in _GONE:
                return
            raise
        with closing(here), closing(open_directory(self._target, parts)) as there:
            self._folders.append((parts, os.fstat(here)))
            with os.scandir(here) as entries:
                names = sorted(entry.name for entry in entries)
            for name in names:
                self.at = "/".join((*parts, name))
                with suppress(FileNotFoundError):  # it was there a moment ago
                    self._copy(here, there, name, parts)

    def _copy(self, here: int, there: int, name: str, parts: tuple[str, ...]) -> None:
        status = os.stat(name, dir_fd=here, follow_symlinks=False)
        if (status.st_dev, status.st_ino) in self._without:
            return
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
        elif stat.S_ISDIR(status.st_mode):
            os.mkdir(name, 0o700, dir_fd=there)
            self._pending.append((*parts, name))
        elif stat.S_ISREG(status.st_mode):
            self._copy_file(here, there, name)
        elif len(self._left_out) < _MOST_NAMED:
            self._left_out.append(self.at)

    def _copy_file(self, here: int, there: int, name: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        for _ in range(ATTEMPTS):
            source, before = open_regular(here, (name,), os.O_RDONLY)
            with closing(source), closing(os.open(name, flags, 0o600, dir_fd=there)) as target:
                copy_bytes(source, target)
                os.fchmod(target, stat.S_IMODE(before.st_mode) & 0o777)
                os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
                after = os.fstat(source)
                if _content(before) == _content(after):
                    self._files, self._bytes = self._files + 1, self._bytes + before.st_size
                    return
        raise _ChangingError(self.at)


_MOST_NAMED: Final = 20


def _content(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def copy_bytes(source: int, target: int) -> None:
    """Give the empty open file `target` the bytes of the open file `source`, from its beginning.

    Raises:
        OSError: one of them cannot be used any more.
    """
    try:
        while os.copy_file_range(source, target, _COPIED_AT_ONCE):  # shares blocks where the file system can do so
            pass
    except AttributeError:  # a system without this call
        pass
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    else:
        return
    with open(source, "rb", closefd=False) as reader, open(target, "wb", closefd=False) as writer:
        shutil.copyfileobj(reader, writer, _CHUNK)


MOST_ENTRIES: Final = 500_000
MOST_BYTES: Final = 20_000_000_000
"""Of all files, when they are extracted."""

MOST_RATIO: Final = 200
"""Extracted bytes for each byte of the archive; source code has 3 to 10, and a bomb of deflated zeros 1,000."""

FREE_BYTES: Final = 100_000_000
"""Extracted bytes for which the ratio is not asked."""

_CHUNK: Final = 1_048_576
_COPIED_AT_ONCE: Final = 1 << 30
_DAMAGED: Final = (
    zipfile.BadZipFile,
    tarfile.TarError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    ValueError,
    OverflowError,
)
_ANOTHER_KIND: Final = frozenset({errno.ENOTDIR, errno.ELOOP, errno.ESTALE, errno.EISDIR, errno.EEXIST})
_OURS: Final = frozenset({"__MACOSX", ".DS_Store", "pax_global_header"})
"""What packers add of their own beside the one folder of an archive."""


class Limits(NamedTuple):
    """How much an archive may become."""

    entries: int = MOST_ENTRIES
    bytes: int = MOST_BYTES
    ratio: int = MOST_RATIO
    free_bytes: int = FREE_BYTES


LIMITS: Final = Limits()


class _Member(NamedTuple):
    """One member: a folder, a file, a symbolic link to `target`, or another name of the file `target`."""

    name: str
    kind: str
    mode: int | None
    target: str = ""
    opened: Any = None
    mtime: float | None = None


class _RefusedError(Exception):
    """The message says what is wrong with the archive, as the end of a sentence."""


def is_archive(name: str) -> bool:
    """Whether a file of this name is taken for an archive."""
    return name.lower().endswith((".zip", *_OPENERS, ".tar.zst"))


def extract_archive(
    archive_fd: int, name: str, target_fd: int, limits: Limits = LIMITS, *, any_links: bool = False
) -> ToolError | None:
    """Write what the open archive holds into the empty folder `target_fd`; why not, naming the archive by `name`.

    After an error the folder holds a part of it. A single folder at the top is left as it is, see `single_folder`.
    With `any_links` a link may lead anywhere.
    """
    said = f"The archive {quoted(name)}"
    try:
        with os.fdopen(os.dup(archive_fd), "rb") as file:
            file.seek(0)
            size = os.fstat(archive_fd).st_size
            writing = _Writing(target_fd, limits, size, any_links=any_links)
            with _members(file, name, writing) as members:
                for member in members:
                    writing.add(member)
            writing.finish()
    except _RefusedError as error:
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=f"{said} {error}.")
    except (NotImplementedError, RuntimeError) as error:
        message = f"{said} cannot be read: {_reason(error)}. Pack it anew, without a password, as .zip or .tar.gz."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    except (*_DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            return os_failure(error, "extract", name)
        message = f"{said} is damaged, or is not what its name says: {_reason(error)}."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    return None


def single_folder(folder_fd: int) -> str | None:
    """The one folder that all of an extracted archive is in, where there is one: then this is the workspace."""
    with os.scandir(folder_fd) as found:
        entries = [entry for entry in found if entry.name not in _OURS]
    if len(entries) == 1 and entries[0].is_dir(follow_symlinks=False) and entries[0].name.lower() != ".git":
        return entries[0].name
    return None


class _Writing:
    def __init__(self, target_fd: int, limits: Limits, size: int, *, any_links: bool) -> None:
        self.most = min(limits.bytes, max(limits.free_bytes, size * limits.ratio))
        self._target, self._limits, self._any_links = target_fd, limits, any_links
        self._entries, self._bytes = 0, 0
        self._folders: dict[tuple[str, ...], int] = {}

    def add(self, member: _Member) -> None:
        self._entries += 1
        if self._entries > self._limits.entries:
            raise _RefusedError(f"has more than {self._limits.entries:,} entries")
        parts = _parts(member.name)
        if not parts:
            return
        if member.kind == "folder":
            with closing(self._folder(parts)):
                self._folders[parts] = 0o755 if member.mode is None else (member.mode & 0o777) | 0o500
            return
        with closing(self._folder(parts[:-1])) as folder:
            self._make_room(folder, parts)
            if member.kind == "link":
                self._link(folder, parts, member.target)
            else:
                self._file(folder, parts[-1], member)

    def count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self.most:
            raise _too_large(self.most)

    def finish(self) -> None:
        for parts, mode in self._folders.items():
            with closing(open_directory(self._target, parts)) as folder:
                os.fchmod(folder, mode)

    def _folder(self, parts: tuple[str, ...]) -> int:
        try:
            return open_directory(self._target, parts, made=[]) if parts else open_directory(self._target, ())
        except OSError as error:
            if error.errno not in _ANOTHER_KIND:
                raise
            raise _two_kinds(parts) from error

    def _make_room(self, folder: int, parts: tuple[str, ...]) -> None:
        """The last member of a name counts, as for tar."""
        try:
            os.unlink(parts[-1], dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _two_kinds(parts) from error

    def _link(self, folder: int, parts: tuple[str, ...], target: str) -> None:
        if not self._any_links and not _leads_inside(parts, target):
            name = quoted("/".join(parts))
            raise _RefusedError(f"has the link {name} to {quoted(target)}, which is outside of it")
        os.symlink(target, parts[-1], dir_fd=folder)

    def _file(self, folder: int, name: str, member: _Member) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing(os.open(name, flags, 0o600, dir_fd=folder)) as handle:
            if member.kind == "copy":
                self._copy(handle, member)
            else:
                self._fill(handle, member.opened())
            os.fchmod(handle, 0o644 if member.mode is None else (member.mode & 0o777) | 0o400)
            if member.mtime is not None:
                with suppress(OSError, OverflowError, ValueError):
                    os.utime(handle, (member.mtime, member.mtime))

    def _fill(self, handle: int, stream: IO[bytes] | None) -> None:
        if stream is None:
            raise _RefusedError("has a file without content")
        with stream, open(handle, "wb", closefd=False) as file:
            while chunk := stream.read(_CHUNK):
                self.count(len(chunk))
                file.write(chunk)

    def _copy(self, handle: int, member: _Member) -> None:
        try:
            source, status = open_regular(self._target, _parts(member.target), os.O_RDONLY)
        except OSError as error:
            raise _RefusedError(f"has {quoted(member.name)} as another name of a file that it does not hold") from error
        with closing(source):
            self.count(status.st_size)
            copy_bytes(source, handle)


def _too_large(most: int) -> _RefusedError:
    return _RefusedError(f"becomes larger than {most:,} bytes, which is more than an archive of its size may hold")


def _two_kinds(parts: tuple[str, ...]) -> _RefusedError:
    return _RefusedError(f"has {quoted('/'.join(parts))} as a folder and as something else")


def _parts(name: str) -> tuple[str, ...]:
    parts = tuple(part for part in name.split("/") if part not in {"", "."})
    encoded = name.encode(errors="surrogateescape")
    if name.startswith("/") or ".." in parts or b"\0" in encoded:
        raise _RefusedError(f"has the name {quoted(name)}, which leads out of it")
    if len(encoded) > LONGEST_PATH or any(len(os.fsencode(part)) > LONGEST_NAME for part in parts):
        raise _RefusedError(f"has the name {quoted(name)}, which is too long")
    return parts


def _leads_inside(parts: tuple[str, ...], target: str) -> bool:
    """Whether a link of this name leads inside whatever other links there are.

    The folders above it are real ones, so it may climb them; after it has gone down once, it may lead through another
    link, and must not climb any more.
    """
    if not target or target.startswith("/") or "\0" in target:
        return False
    steps = [step for step in target.split("/") if step not in {"", "."}]
    climbs = next((place for place, step in enumerate(steps) if step != ".."), len(steps))
    return ".." not in steps[climbs:] and climbs < len(parts)


@contextmanager
def _members(file: IO[bytes], name: str, writing: _Writing) -> Iterator[Iterator[_Member]]:
    if name.lower().endswith(".zip"):
        with zipfile.ZipFile(file) as archive:
            yield _zip_members(archive)
        return
    opener = next((opener for ending, opener in _OPENERS.items() if name.lower().endswith(ending)), None)
    if opener is None:
        raise _RefusedError("has a name that says no format: .zip, .tar, .tar.gz, .tgz, .tar.xz or .tar.bz2")
    with opener(file) as plain:
        counted = cast("IO[bytes]", _Counted(plain, writing))
        with tarfile.open(fileobj=counted, mode="r|", errorlevel=2) as archive:
            yield _tar_members(archive)


class _Counted:
    """A stream whose bytes count: headers, too, can be without end."""

    def __init__(self, stream: IO[bytes], writing: _Writing) -> None:
        self._stream, self._read, self._writing = stream, 0, writing

    def read(self, size: int = -1) -> bytes:
        chunk = self._stream.read(size)
        self._read += len(chunk)
        if self._read > 2 * self._writing.most:
            raise _too_large(self._writing.most)
        return chunk


def _zip_members(archive: zipfile.ZipFile) -> Iterator[_Member]:
    for info in archive.infolist():
        mode = info.external_attr >> 16 if info.create_system == _UNIX else 0
        allowed = mode & 0o777 or None
        if info.is_dir():
            yield _Member(info.filename, "folder", allowed)
        elif stat.S_ISLNK(mode):
            if info.file_size > LONGEST_PATH:
                raise _RefusedError(f"has the link {quoted(info.filename)} with a target that is too long")
            yield _Member(info.filename, "link", None, os.fsdecode(archive.read(info)))
        elif stat.S_IFMT(mode) not in {0, stat.S_IFREG}:
            raise _RefusedError(f"has {quoted(info.filename)}, which is no file (a pipe, socket or device)")
        else:
            yield _Member(info.filename, "file", allowed, opened=lambda info=info: archive.open(info))


def _tar_members(archive: tarfile.TarFile) -> Iterator[_Member]:
    for info in archive:
        if info.isdir():
            yield _Member(info.name, "folder", info.mode)
        elif info.issym():
            yield _Member(info.name, "link", None, info.linkname)
        elif info.islnk():
            yield _Member(info.name, "copy", info.mode, info.linkname, mtime=info.mtime)
        elif info.isreg():
            opened = lambda info=info: archive.extractfile(info)  # noqa: E731 - as short as it is clear
            yield _Member(info.name, "file", info.mode, opened=opened, mtime=info.mtime)
        else:
            raise _RefusedError(f"has {quoted(info.name)}, which is no file (a pipe, socket or device)")


_UNIX: Final = 3
"""The system in a zip file whose modes are those of Unix. Source: APPNOTE.TXT 4.4.2."""


_OPENERS: Final[dict[str, Any]] = {
    ".tar": nullcontext,
    **dict.fromkeys((".tar.gz", ".tgz"), lambda file: gzip.GzipFile(fileobj=file)),
    **dict.fromkeys((".tar.xz", ".txz"), lzma.LZMAFile),
    **dict.fromkeys((".tar.bz2", ".tbz2"), bz2.BZ2File),
}


def _reason(error: Exception) -> str:
    return plain_text(str(error).rstrip(".") or type(error).__name__, 200)
