"""What copies of workspaces are made of: a git repository at a commit, a folder, or an archive; also packed as bytes.

Each source fills the folder of a copy, and says what the copy began with, so that a patch can be made later. Packed as
bytes a repository is one commit with its files, as `git clone --depth 1` brings it (`git archive` would change files as
their attributes say), a folder a .tar.gz without owners, an archive itself. The same source gives the same bytes.
"""

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from mendgraph.nodes.execute_tools.copies.archives import (
    LIMITS,
    Limits,
    copy_tree,
    extract_archive,
    is_archive,
    single_folder,
    tree_entries,
)
from mendgraph.nodes.execute_tools.copies.copy_folders import WORKSPACE, CopyFolder, PrivateGit, TreeRecord, record_tree
from mendgraph.nodes.execute_tools.files.failures import os_failure, quoted
from mendgraph.nodes.execute_tools.files.handles import closing, open_beneath, open_directory, open_regular, open_root
from mendgraph.nodes.execute_tools.processes.git import (
    HEAD,
    Repository,
    add_worktree,
    bare_repository,
    find_commit,
    find_repository,
    find_tree,
    find_uncommitted,
    git_failure,
    malformed_revision,
    records_path,
    run_git,
    succeeded,
)
from mendgraph.nodes.execute_tools.processes.processes import ProcessResult
from mendgraph.nodes.execute_tools.store.run_folder import Identity
from mendgraph.nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

BASE: Final = "base.git"
RECORD: Final = "base.json"

_NAMED: Final = 3
"""Files that a message names."""
_EXTRACTED: Final = "extracted"
_GITLINK: Final = "160000"
_REGULAR: Final = "100"
_ATTRIBUTES: Final = ".gitattributes"


class Made(NamedTuple):
    """A copy that is complete but for its note. `root` is the workspace, below the copy's folder."""

    root: str
    base: str
    notes: tuple[str, ...] = ()
    records: str = ""


class GitSource(NamedTuple):
    """A repository at a commit, with the workspace's own `tree` in it; the copy is a worktree of it."""

    repository: Repository
    commit: str
    tree: str
    notes: tuple[str, ...] = ()

    def records(self, folder: str) -> str:
        """Where the repository keeps what it knows of the worktree in this folder."""
        return records_path(self.repository.common, folder)

    def make(self, folder: CopyFolder) -> Made | ToolError:
        """Fill the empty folder."""
        records = add_worktree(self.repository, self.commit, folder.handle, folder.path, WORKSPACE)
        if isinstance(records, ToolError):
            return records
        tracked = _tracked_files(self.repository, os.path.join(folder.path, WORKSPACE))
        if isinstance(tracked, ToolError):
            return tracked
        root = os.path.join(WORKSPACE, self.repository.prefix).rstrip("/")
        git = PrivateGit(os.path.join(folder.path, BASE))
        problem = git.make(os.path.join(self.repository.common, "objects"), self.repository.object_format)
        if problem is not None:
            return problem
        with closing(open_directory(folder.handle, root.split("/"))) as root_fd:
            record = record_tree(
                root_fd, tracked=[name for name, (mode, _) in tracked.files.items() if mode != _GITLINK]
            )
            modules = [name for name, (mode, _) in tracked.files.items() if mode == _GITLINK]
            converted = self._converted(root_fd, tracked, record)
            base = git.keep(root_fd, converted, tree=self.tree, gone=modules)
            if isinstance(base, ToolError):
                return base
            _write_record(folder, record)
            notes = (*self.notes, *_modules_note(modules))
        return Made(root, self.commit, notes, records)

    def _converted(self, root_fd: int, tracked: "_Tracked", record: TreeRecord) -> list[str]:
        """The files whose bytes are not those of the commit, as git's attributes say that they are converted."""
        own = os.path.join(self.repository.common, "info", "attributes")
        if not tracked.has_attributes and not os.path.exists(own):
            return []
        new = "sha256" if self.repository.object_format == "sha256" else "sha1"
        named = ((name, *tracked.files[name]) for name in record.files)
        return [
            name for name, mode, blob in named if mode.startswith(_REGULAR) and _blob_id(root_fd, name, new) != blob
        ]


class FolderSource(NamedTuple):
    """A folder without a repository; `without` are folders in it that are left out."""

    path: str
    without: tuple[Identity, ...] = ()

    def make(self, folder: CopyFolder) -> Made | ToolError:
        """Fill the empty folder."""
        os.mkdir(WORKSPACE, 0o700, dir_fd=folder.handle)
        with closing(open_root(self.path)) as source, closing(open_directory(folder.handle, [WORKSPACE])) as target:
            left_out = copy_tree(source, target, self.without)
        named = ", ".join(map(quoted, left_out[:_NAMED]))
        notes = (f"What is no file or folder was left out, such as {named}.",) if named else ()
        return keep_beginning(folder, WORKSPACE, notes)


class ArchiveSource(NamedTuple):
    """An archive, by its path."""

    path: str
    limits: Limits = LIMITS

    def make(self, folder: CopyFolder) -> Made | ToolError:
        """Fill the empty folder."""
        above, name = os.path.split(self.path)
        with closing(open_root(above)) as parent, closing(open_regular(parent, (name,), os.O_RDONLY)[0]) as archive:
            return extracted(folder, archive, name, self.limits)


def extracted(
    folder: CopyFolder, archive_fd: int, name: str, limits: Limits = LIMITS, *, is_folder: bool = False
) -> Made | ToolError:
    """Fill the folder from an open archive. A single folder that holds all of it is the workspace.

    With `is_folder` it is a folder that was packed as it is, with links wherever they lead. Raises OSError: the disk
    refuses.
    """
    os.mkdir(_EXTRACTED, 0o700, dir_fd=folder.handle)
    with closing(open_directory(folder.handle, [_EXTRACTED])) as target:
        problem = extract_archive(archive_fd, name, f"{folder.path}/{_EXTRACTED}", limits, any_links=is_folder)
        single = None if is_folder else single_folder(target)
        if problem is not None:
            return problem
    inner = f"{_EXTRACTED}/{single}" if single else _EXTRACTED
    os.rename(inner, WORKSPACE, src_dir_fd=folder.handle, dst_dir_fd=folder.handle)
    return keep_beginning(folder, WORKSPACE)


def keep_beginning(folder: CopyFolder, root: str, notes: tuple[str, ...] = ()) -> Made | ToolError:
    """Remember the files of a copy that no repository knows. Raises OSError: the disk refuses."""
    git = PrivateGit(os.path.join(folder.path, BASE))
    problem = git.make()
    if problem is not None:
        return problem
    with closing(open_directory(folder.handle, root.split("/"))) as root_fd:
        record = record_tree(root_fd)
        base = git.keep(root_fd, record.files)
    if isinstance(base, ToolError):
        return base
    _write_record(folder, record)
    return Made(root, base, notes)


def read_record(folder: CopyFolder) -> TreeRecord:
    """What the copy began with.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    with (
        closing(open_beneath(folder.handle, (RECORD,), os.O_RDONLY)) as handle,
        open(handle, "rb", closefd=False) as file,
    ):
        try:
            return TreeRecord.from_json(json.load(file))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error


Source: TypeAlias = GitSource | FolderSource | ArchiveSource
"""What a copy can be made of. `make` fills its empty folder, and raises OSError where the disk refuses."""


def find_source(workspace: str, revision: str = "", without: Iterable[str] = ()) -> Source | ToolError:
    """What the workspace is, a folder or an archive, and the commit that the revision names where it is a repository.

    Without a revision it is HEAD, and CONFLICT if files that git knows have changes that are not committed. `without`
    are folders that are left out of a folder's copy.
    """
    path = os.path.abspath(os.path.expanduser(workspace))
    try:
        status = os.stat(path)
    except OSError as error:
        return os_failure(error, "copy the workspace", workspace)
    if stat.S_ISREG(status.st_mode) and is_archive(path):
        return _no_revision(path, revision) or ArchiveSource(os.path.realpath(path))
    if not stat.S_ISDIR(status.st_mode):
        message = (
            f"The workspace {quoted(workspace)} is neither a folder nor an archive (.zip, .tar, .tar.gz, .tar.xz)."
        )
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    path = os.path.realpath(path)
    repository = find_repository(path)
    if isinstance(repository, ToolError):
        return repository
    if repository is not None:
        found = _git_source(repository, revision)
        if found is not None:
            return found
    return _no_revision(path, revision) or FolderSource(path, _identities(without))


def _git_source(repository: Repository, revision: str) -> GitSource | ToolError | None:
    """None for a folder inside of a repository that knows nothing of it."""
    commit = find_commit(repository, revision)
    if isinstance(commit, ToolError):
        known = bool(repository.line("ls-files", "--cached", "--", "."))  # has git any file of this folder?
        stranger = not revision and repository.prefix and not known
        return None if stranger else commit
    tree = find_tree(repository, commit)
    if tree is None:
        return None if not revision and repository.prefix else _not_in(repository, commit)
    if revision:
        return GitSource(repository, commit, tree)
    uncommitted = find_uncommitted(repository)
    if isinstance(uncommitted, ToolError):
        return uncommitted
    if uncommitted.changed:
        return _not_committed(repository, uncommitted.changed)
    note = "Files that git does not track are in no copy: commit what is needed."
    return GitSource(repository, commit, tree, (note,) if uncommitted.untracked else ())


def _not_committed(repository: Repository, changed: Sequence[str]) -> ToolError:
    named = ", ".join(map(quoted, changed[:_NAMED])) + (
        f" and {len(changed) - _NAMED} more" if changed[_NAMED:] else ""
    )
    message = (
        f"The repository {quoted(repository.path)} has changes that are not committed ({named}), and copies are made of"
        ' commits. Commit or stash them, or say "revision": "HEAD" to work without them.'
    )
    return ToolError(code=ToolErrorCode.CONFLICT, message=message, suggestions=(HEAD,))


def _not_in(repository: Repository, commit: str) -> ToolError:
    message = f"The folder {quoted(repository.prefix)} is not in the commit {commit} of its repository."
    return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)


def _no_revision(path: str, revision: str) -> ToolError | None:
    if not revision:
        return None
    message = f"{quoted(path)} is no git repository, so it has no revision {quoted(revision)}: leave the revision out."
    return malformed_revision(revision) or ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def _identities(folders: Iterable[str]) -> tuple[Identity, ...]:
    found = []
    for folder in folders:
        try:
            status = os.stat(folder)
        except OSError:
            continue
        found.append((status.st_dev, status.st_ino))
    return tuple(found)


class _Tracked(NamedTuple):
    files: Mapping[str, tuple[str, str]]
    has_attributes: bool


def _tracked_files(repository: Repository, top: str) -> _Tracked | ToolError:
    found = repository.run("ls-files", "--stage", "-z", cwd=top)
    if isinstance(found, ToolError):
        return found
    if found.exit_code or found.truncated:
        return git_failure(found, "list the files of", repository.path)
    files: dict[str, tuple[str, str]] = {}
    has_attributes, inside = False, f"{repository.prefix}/" if repository.prefix else ""
    for entry in found.stdout.split(b"\0")[:-1]:
        said, _, raw = entry.partition(b"\t")
        mode, blob, _stage = said.decode().split(" ")
        name = os.fsdecode(raw)
        has_attributes = has_attributes or name.rpartition("/")[2] == _ATTRIBUTES
        if name.startswith(inside):
            files[name.removeprefix(inside)] = mode, blob
    return _Tracked(files, has_attributes)


def _modules_note(modules: Collection[str]) -> tuple[str, ...]:
    named = ", ".join(quoted(name) for name in sorted(modules)[:_NAMED])
    return (f"Submodules are empty folders in a copy: {named}.",) if modules else ()


def _blob_id(root_fd: int, name: str, algorithm: str) -> str:
    handle, status = open_regular(root_fd, name.split("/"), os.O_RDONLY)
    digest: Any = hashlib.new(algorithm, b"blob %d\0" % status.st_size, usedforsecurity=False)
    with closing(handle):
        while chunk := os.read(handle, 1_048_576):
            digest.update(chunk)
    return str(digest.hexdigest())


def _write_record(folder: CopyFolder, record: TreeRecord) -> None:
    folder.write(RECORD, json.dumps(record.as_json(), ensure_ascii=True, separators=(",", ":")).encode())


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
        """Fill the empty folder."""
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
    packed = _Sized(most_bytes)
    try:
        problem = _pack(source, packed)
    except OSError as error:
        return os_failure(error, "pack the workspace", workspace)
    except _TooLargeError:
        message = (
            f"The workspace {quoted(workspace)} has more than {most_bytes:,} bytes when it is packed for other"
            " machines: take what is not needed out of it, or keep it where all machines see it."
        )
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    data = packed.getvalue()
    return problem or Packed(data, hashlib.sha256(data).hexdigest())


class _TooLargeError(Exception):
    """More bytes than are allowed."""


class _Sized(io.BytesIO):
    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def write(self, data: "Buffer") -> int:
        if self.tell() + memoryview(data).nbytes > self.most:
            raise _TooLargeError
        return super().write(data)


_GIT, _FOLDER, _ARCHIVE = "git", "folder", "archive"
_TRUSTED: Final = Limits(ratio=2_000)
"""What we packed ourselves: deflate makes a byte of 1,032 at most."""
_PACK: Final = (
    *("pack-objects", "--revs", "--stdout", "--quiet", "--threads=1", "--window=0", "--compression=6"),
    *("--no-reuse-delta", "--no-reuse-object"),
)
"""Neither what is packed already nor the number of processors decides about a byte."""


def _pack(source: Source, packed: _Sized) -> ToolError | None:
    if isinstance(source, FolderSource):
        _write_header(packed, _FOLDER, "workspace.tar.gz", {})
        _pack_folder(source, packed)
        return None
    if isinstance(source, ArchiveSource):
        above, name = os.path.split(source.path)
        _write_header(packed, _ARCHIVE, name, {})
        with closing(open_root(above)) as parent, closing(open_regular(parent, (name,), os.O_RDONLY)[0]) as archive:
            while chunk := os.read(archive, _CHUNK):
                packed.write(chunk)
        return None
    repository = source.repository
    header = {"commit": source.commit, "prefix": repository.prefix, "format": repository.object_format}
    _write_header(packed, _GIT, "", header)
    with tempfile.TemporaryFile() as wanted:
        wanted.write(f"--shallow {source.commit}\n{source.commit}\n".encode())
        wanted.seek(0)
        done = run_git(
            _PACK, cwd=repository.path, settings=repository.settings, given=wanted, max_output_bytes=packed.most
        )
    if isinstance(done, ProcessResult) and done.truncated:
        raise _TooLargeError
    done = succeeded(done, "pack", repository.path)
    if isinstance(done, ToolError):
        return done
    packed.write(done.stdout)
    return None


def _write_header(packed: _Sized, kind: str, name: str, more: dict[str, str]) -> None:
    packed.write(json.dumps({_FORMAT: 1, "kind": kind, "name": name, **more}, ensure_ascii=True).encode() + b"\n")


def _pack_folder(source: FolderSource, packed: _Sized) -> None:
    with (
        closing(open_root(source.path)) as root,
        gzip.GzipFile("", "wb", 6, packed, mtime=0) as file,
        tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path, here, name, status in tree_entries(root, source.without):
            info = tarfile.TarInfo(path)
            info.mode, info.mtime = stat.S_IMODE(status.st_mode) & 0o777, int(status.st_mtime)
            if stat.S_ISDIR(status.st_mode):
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            elif stat.S_ISLNK(status.st_mode):
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=here)
                archive.addfile(info)
            elif stat.S_ISREG(status.st_mode):
                handle, opened = open_regular(here, (name,), os.O_RDONLY)
                info.size = opened.st_size
                with open(handle, "rb") as content:
                    archive.addfile(info, content)


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
