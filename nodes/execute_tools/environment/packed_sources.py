"""Sources of copies as bytes, for machines that cannot reach them: the same source gives the same bytes.

Of a repository it is one commit with its files, as `git clone --depth 1` brings it: `git archive` would leave out and
rewrite files as their attributes say, and a bundle with the whole history is many times larger. A folder is packed as
.tar.gz without owners; an archive is itself. A line of JSON before the bytes says which of them it is.
"""

import gzip
import hashlib
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any, Final, NamedTuple, cast

from nodes.execute_tools.environment.archives import Limits
from nodes.execute_tools.environment.copy_folders import CopyFolder
from nodes.execute_tools.environment.copy_sources import (
    ArchiveSource,
    FolderSource,
    GitSource,
    Made,
    extracted,
    find_source,
)
from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.git_program import git_failure, pipe_git
from nodes.execute_tools.environment.handles import closing, open_directory, open_regular, open_root
from nodes.execute_tools.environment.repositories import find_repository, find_tree
from nodes.execute_tools.environment.run_folder import Identity
from nodes.execute_tools.environment.worktrees import bare_repository
from nodes.records import ToolError, ToolErrorCode

MOST_PACKED_BYTES: Final = 500_000_000
"""Of one source: it is held in memory, and goes over the network."""

SOURCE: Final = "source.git"

_FORMAT: Final = "mendgraph_source"
_LONGEST_HEADER: Final = 20_000
_CHUNK: Final = 1_048_576


class Packed(NamedTuple):
    """A source as bytes. The same source gives the same `digest`, the SHA-256 of `data`."""

    data: bytes
    digest: str


class PackedSource:
    """The source in such bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def make(self, folder: CopyFolder) -> Made | ToolError:
        """See `Source`."""
        line, newline, _ = self._data[:_LONGEST_HEADER].partition(b"\n")
        try:
            header = json.loads(line)
            kind, name = str(header["kind"]), str(header["name"])
            known = header[_FORMAT] == 1 and kind in {_GIT, _FOLDER, _ARCHIVE} and newline == b"\n"
        except (ValueError, KeyError, TypeError):
            known = False
        if not known:
            message = "These bytes are no packed workspace, or one of another version of mendgraph: pack it anew."
            return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
        with tempfile.TemporaryFile(dir=folder.path) as file:
            file.write(memoryview(self._data)[len(line) + 1 :])
            file.seek(0)
            if kind == _GIT:
                return _make_worktree(folder, file, header)
            return extracted(
                folder, file.fileno(), name, _TRUSTED if kind == _FOLDER else Limits(), is_folder=kind == _FOLDER
            )


def pack_source(
    workspace: str, revision: str = "", without: Iterable[str] = (), most_bytes: int = MOST_PACKED_BYTES
) -> Packed | ToolError:
    """The workspace as bytes, `most_bytes` at most; what can be a source, see `find_source`."""
    source = find_source(workspace, revision, without)
    if isinstance(source, ToolError):
        return source
    try:
        with tempfile.TemporaryFile() as file:
            packed = _Sized(file, most_bytes)
            problem = _pack(source, packed)
            if problem is not None:
                return problem
            file.seek(0)
            data = file.read(most_bytes + 1)
    except OSError as error:
        return os_failure(error, "pack the workspace", workspace)
    except _TooLargeError:
        return _too_large(workspace, most_bytes)
    except _ChangedError as error:
        message = f"{quoted(str(error))} was written while the workspace was packed: try again."
        return ToolError(code=ToolErrorCode.CONFLICT, message=message)
    if len(data) > most_bytes:
        return _too_large(workspace, most_bytes)
    return Packed(data, hashlib.sha256(data).hexdigest())


class _TooLargeError(Exception):
    """More bytes than are allowed."""


class _ChangedError(Exception):
    """A file changed meanwhile; the message is its name."""


class _Sized:
    """A file that does not grow beyond its size."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        self.file, self._left = file, most

    def write(self, data: Any) -> int:
        """As a file."""
        self._left -= len(data)
        if self._left < 0:
            raise _TooLargeError
        return self.file.write(data)


_GIT, _FOLDER, _ARCHIVE = "git", "folder", "archive"
_TRUSTED: Final = Limits(ratio=2_000)
"""What we packed ourselves: deflate makes a byte of 1,032 at most."""
_PACK: Final = (
    *("pack-objects", "--revs", "--stdout", "--quiet", "--threads=1", "--window=0", "--compression=6"),
    *("--no-reuse-delta", "--no-reuse-object"),
)
"""Neither what is packed already nor the number of processors decides about a byte."""


def _pack(source: Any, packed: _Sized) -> ToolError | None:
    if isinstance(source, GitSource):
        repository = source.repository
        header = {"commit": source.commit, "prefix": repository.prefix, "format": repository.object_format}
        _write_header(packed, _GIT, "", header)
        packed.file.flush()
        wanted = f"--shallow {source.commit}\n{source.commit}\n".encode()
        done = pipe_git(_PACK, wanted, cwd=repository.path, stdout=packed.file, settings=repository.settings)
        if isinstance(done, ToolError):
            return done
        return git_failure(done, "pack", repository.path) if done.exit_code else None
    if isinstance(source, ArchiveSource):
        above, name = os.path.split(source.path)
        _write_header(packed, _ARCHIVE, name, {})
        with closing(open_root(above)) as parent, closing(open_regular(parent, (name,), os.O_RDONLY)[0]) as archive:
            while chunk := os.read(archive, _CHUNK):
                packed.write(chunk)
        return None
    return _pack_folder(source, packed)


def _write_header(packed: _Sized, kind: str, name: str, more: dict[str, str]) -> None:
    packed.write(json.dumps({_FORMAT: 1, "kind": kind, "name": name, **more}, ensure_ascii=True).encode() + b"\n")


def _pack_folder(source: FolderSource, packed: _Sized) -> ToolError | None:
    _write_header(packed, _FOLDER, "workspace.tar.gz", {})
    with (
        closing(open_root(source.path)) as root,
        gzip.GzipFile("", "wb", 6, cast("IO[bytes]", packed), mtime=0) as file,
        tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        pending: list[tuple[str, ...]] = [()]
        while pending:
            inside = list(_pack_entries(archive, root, pending.pop(), frozenset(source.without)))
            pending += reversed(inside)
    return None


def _pack_entries(
    archive: tarfile.TarFile, root: int, parts: tuple[str, ...], without: frozenset[Identity]
) -> Iterator[tuple[str, ...]]:
    """Add what one folder holds; gives the folders in it."""
    with closing(open_directory(root, parts)) as here:
        with os.scandir(here) as found:
            names = sorted(entry.name for entry in found)
        for name in names:
            status = os.stat(name, dir_fd=here, follow_symlinks=False)
            info = tarfile.TarInfo("/".join((*parts, name)))
            info.mode, info.mtime = stat.S_IMODE(status.st_mode) & 0o777, int(status.st_mtime)
            if (status.st_dev, status.st_ino) in without:
                continue
            if stat.S_ISDIR(status.st_mode):
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
                yield (*parts, name)
            elif stat.S_ISLNK(status.st_mode):
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=here)
                archive.addfile(info)
            elif stat.S_ISREG(status.st_mode):
                _pack_file(archive, info, here, name)


def _pack_file(archive: tarfile.TarFile, info: tarfile.TarInfo, here: int, name: str) -> None:
    handle, before = open_regular(here, (name,), os.O_RDONLY)
    info.size = before.st_size
    with open(handle, "rb") as file:
        try:
            archive.addfile(info, file)
        except OSError as error:
            if error.errno is not None:
                raise
            raise _ChangedError(info.name) from error
        after = os.fstat(handle)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise _ChangedError(info.name)


def _make_worktree(folder: CopyFolder, file: IO[bytes], header: dict[str, Any]) -> Made | ToolError:
    """A repository that holds this one commit, beside the workspace, and the worktree of it."""
    path, commit = os.path.join(folder.path, SOURCE), str(header["commit"])
    problem = bare_repository(path, str(header["format"]), commit, file)
    if problem is not None:
        return problem
    repository = find_repository(path)
    if repository is None:
        message = f"There is no repository in {quoted(path)} any more."
        return ToolError(code=ToolErrorCode.IO_ERROR, message=message)
    if isinstance(repository, ToolError):
        return repository
    repository = repository._replace(prefix=str(header["prefix"]))
    tree = find_tree(repository, commit)
    if tree is None:
        message = f"The packed commit {quoted(commit)} does not hold the workspace: pack it anew."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    return GitSource(repository, commit, tree).make(folder)


def _too_large(workspace: str, most: int) -> ToolError:
    message = (
        f"The workspace {quoted(workspace)} has more than {most:,} bytes when it is packed for other machines: take"
        " what is not needed out of it, or keep it where all machines see it."
    )
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
