"""Private folders outside the workspace: one for each thread, one for each workspace, and one for spending."""

import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from mendgraph.nodes.language.names import LARGEST_NUMBER, number_of, reference_of, unknown_reference
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.atomic_write import name_exclusively, sync_folder, write_temporary
from mendgraph.nodes.workspace.files.handles import closing, open_root
from mendgraph.nodes.workspace.files.workspace import OpenedFile

DATA_DIR_VARIABLE = "MENDGRAPH_DATA_DIR"
"""Names the folder that holds `runs/`, `workspaces/` and `spending/` instead of the user's data folder."""

RUNS = "runs"
WORKSPACES = "workspaces"
SPENDING = "spending"
Identity = tuple[int, int]
"""Device and inode number."""

_LONGEST_PREFIX = 40
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def run_folder(thread_id: str, base: str | None = None) -> str | ToolError:
    """Create this thread's folder in `<base>/runs/`, closed to other users, and return its absolute path.

    `base` is `MENDGRAPH_DATA_DIR` or the user's data folder by default. A link, a file or another user's folder in its
    place is refused.
    """
    return _private_folder(RUNS, folder_name(thread_id), "run's folder", base)


def run_folder_path(thread_id: str, base: str | None = None) -> str:
    """Return the path of this thread's folder without creating it."""
    return os.path.join(os.path.abspath(base or data_folder()), RUNS, folder_name(thread_id))


def remove_run_folder(thread_id: str, base: str | None = None) -> int:
    """Remove this thread's folder and return the bytes of its files, 0 if there is none. Raises OSError."""
    name = folder_name(thread_id)

    try:
        runs = os.open(os.path.dirname(run_folder_path(thread_id, base)), _DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return 0

    with closing(runs), suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=runs, follow_symlinks=False).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

        walked = ((file, folder) for _, _, files, folder in os.fwalk(name, dir_fd=runs) for file in files)
        size = sum(os.stat(file, dir_fd=folder, follow_symlinks=False).st_size for file, folder in walked)
        shutil.rmtree(name, dir_fd=runs)

        return size

    return 0


def workspace_folder(root: str, base: str | None = None) -> str | ToolError:
    """Create the data folder of the workspace at `root` in `<base>/workspaces/`, otherwise as `run_folder`.

    All names of a workspace, such as links, have the same folder.
    """
    return _private_folder(WORKSPACES, _workspace_name(root), "workspace's data folder", base)


def workspace_folder_path(root: str, base: str | None = None) -> str:
    """Return the path of the workspace's data folder without creating it."""
    return os.path.join(os.path.abspath(base or data_folder()), WORKSPACES, _workspace_name(root))


_EVERY_S, _IDLE_S = 3_600.0, 86_400.0


def is_due(folder: str) -> bool:
    """Return whether this has not returned True for an hour."""
    mark = Path(folder, "retained")
    with suppress(OSError):
        if not mark.exists() or time.time() - mark.stat().st_mtime > _EVERY_S:
            mark.touch(mode=0o600)
            return True

    return False


def idle_workspaces(folder: str) -> list[str]:
    """Return the data folders of other workspaces that were idle for a day, once an hour."""
    every = Path(folder).parent
    locked = every.glob("*/run.lock") if is_due(str(every)) else ()
    return [str(lock.parent) for lock in locked if time.time() - lock.parent.stat().st_mtime > _IDLE_S]


def spending_folder(base: str | None = None) -> str | ToolError:
    """Create the folder of the spending book, otherwise as `run_folder`."""
    return _private_folder(SPENDING, "", "spending book's folder", base)


def records_folders(base: str | None = None) -> tuple[str, ...]:
    """Return the folders that hold all of these folders, without creating them."""
    base = os.path.abspath(base or data_folder())
    return tuple(os.path.join(base, kind) for kind in (RUNS, WORKSPACES, SPENDING))


def folder_name(thread_id: str) -> str:
    """Return the name of the thread's folder: a readable prefix and a hash."""
    return _name(thread_id, thread_id.encode("utf-8", "surrogatepass"), "run")


def _workspace_name(root: str) -> str:
    real = os.path.realpath(root)
    return _name(os.path.basename(real), os.fsencode(real), "workspace")


def _name(readable: str, data: bytes, otherwise: str) -> str:
    prefix = re.sub(r"[^A-Za-z0-9_]+", "-", readable[:_LONGEST_PREFIX]).strip("-") or otherwise
    return f"{prefix}-{hashlib.sha256(data).hexdigest()[:16]}"


def _private_folder(kind: str, name: str, label: str, base: str | None) -> str | ToolError:
    try:
        base = os.path.abspath(base or data_folder())
    except RuntimeError:
        message = f"There is no home folder to keep runs in: set {DATA_DIR_VARIABLE} to one of your folders."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)

    path = os.path.join(base, kind, name).rstrip("/")
    try:
        if not os.path.isdir(base):
            with suppress(FileExistsError):
                os.makedirs(base, mode=0o700)

        with closing(os.open(base, _DIRECTORY)) as base_fd, closing(_open_private(kind, base_fd)) as kind_fd:
            if name:
                os.close(_open_private(name, kind_fd))

    except _NotOursError:
        message = (
            f"The {label} {quoted(path)} cannot be used: it, or the folder above it, is a link, a file, or"
            f" belongs to somebody else. Remove it, or set {DATA_DIR_VARIABLE} to one of your folders."
        )

        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)
    except OSError as error:
        return os_failure(error, f"make the {label}", path)
    except ValueError:
        return invalid(f"The {label} cannot be {quoted(path)}: no folder can have this name.")

    return path


class _NotOursError(Exception):
    """A link, a file or another user's folder is in the place of a folder."""


def data_folder() -> str:
    """Return the default of `base`. Raises RuntimeError: the user has no home."""
    folder = os.environ.get(DATA_DIR_VARIABLE)
    if folder:
        return os.path.expanduser(folder)

    from platformdirs import user_data_dir

    return user_data_dir("mendgraph", appauthor=False)


def _open_private(name: str, parent_fd: int) -> int:
    """Open a private folder, creating it if it is missing."""
    try:
        status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent_fd)
            os.fsync(parent_fd)  # a power cut must not lose the folder with its files

        status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)

    if not stat.S_ISDIR(status.st_mode):
        raise _NotOursError

    descriptor = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent_fd)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        os.close(descriptor)
        raise _NotOursError

    if status.st_mode & 0o777 != 0o700:
        os.fchmod(descriptor, 0o700)

    return descriptor


# --- Results that are too large for a model's window

_PREFIX: Final = "results-"
"""Prefix of a folder of results; a run has one for each workspace."""
_FILE: Final = re.compile(r"([1-9][0-9]{0,5})\.txt")
_NEW_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ATTEMPTS: Final = 20
"""Numbers that are tried if other processes take some meanwhile."""


class Artifacts:
    """The stored results of one run: numbered text files in `folder`, which is created for the first one.

    A result of more than `max_bytes` is not stored, nor one with which all would exceed `max_total`. None is deleted:
    the model may refer to it.
    """

    def __init__(self, folder: str, *, max_bytes: int = 10_000_000, max_total: int = 100_000_000) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_total = max_total

    def keep(self, text: str) -> str | None:
        """Store a text and return its reference, None if that is impossible.

        Lone surrogates are replaced by "?", NUL by its picture, U+2400.
        """
        data = text.replace("\0", "\u2400").encode(errors="replace")
        if len(data) > self._max_bytes:
            return None

        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)

            with closing(self._open_folder()) as folder:
                sizes = _sizes(folder)
                if sum(sizes.values()) + len(data) > self._max_total:
                    return None
                return _write_new(folder, max(sizes, default=0) + 1, data)
        except OSError:
            return None

    def open(self, reference: str) -> OpenedFile | ToolError:
        """Open a stored text, with the reference as its path; NOT_FOUND lists those that exist."""
        try:
            with closing(self._open_folder()) as folder:
                numbers = _sizes(folder)
                number = number_of(reference)
                if number is None or number not in numbers:
                    return unknown_reference(reference, tuple(numbers))

                descriptor = os.open(_file_name(number), _READ_FLAGS, dir_fd=folder)
                return OpenedFile(reference, os.fstat(descriptor).st_size, os.fdopen(descriptor, "rb"))
        except FileNotFoundError:
            return unknown_reference(reference, ())
        except OSError as error:
            return os_failure(error, "read", reference)

    def _open_folder(self) -> int:
        """Open the folder, which has to be ours."""
        folder = os.open(self._folder, _DIRECTORY | os.O_NOFOLLOW)
        if os.fstat(folder).st_uid != os.geteuid():
            os.close(folder)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        return folder


def _sizes(folder: int) -> dict[int, int]:
    with os.scandir(folder) as entries:
        files = [(match, entry) for entry in entries if (match := _FILE.fullmatch(entry.name))]
        return {
            int(match[1]): entry.stat(follow_symlinks=False).st_size
            for match, entry in files
            if entry.is_file(follow_symlinks=False)
        }


def _write_new(folder: int, number: int, data: bytes) -> str | None:
    for attempt in range(number, min(number + _ATTEMPTS, LARGEST_NUMBER + 1)):
        name = _file_name(attempt)
        try:
            descriptor = os.open(name, _NEW_FILE_FLAGS, 0o600, dir_fd=folder)
        except FileExistsError:
            continue

        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        except BaseException:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)

            raise

        return reference_of(attempt)

    return None


def _file_name(number: int) -> str:
    return f"{number}.txt"


def copy_artifacts(run_id: str, new_run_id: str) -> None:
    """Copy the stored results of a run for another one; if that fails, they do not exist for the other run."""
    with suppress(OSError, shutil.Error):
        with os.scandir(run_folder_path(run_id)) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(_PREFIX) and not entry.is_symlink()]

        target = run_folder(new_run_id) if names else None
        if target is None or isinstance(target, ToolError):
            return

        for name in names:
            shutil.copytree(os.path.join(run_folder_path(run_id), name), os.path.join(target, name), symlinks=True)


# --- The name of a workspace in a shared store: a file in its data folder

_NAME_FILE: Final = "shared_name"

LONGEST_NAME: Final = 200
"""Characters of a name, which is in each row of the shared store."""

_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@+=/-]{{0,{LONGEST_NAME - 1}}}")


def workspace_name(folder: str) -> str | ToolError:
    """Return the name of the workspace with this data folder; the first call stores a random one."""
    return _stored_name(folder, secrets.token_hex(16))


def known_workspace_name(folder: str) -> str | None:
    """Return the name of the workspace, None if it has none or it cannot be read."""
    name_read = _read_name(folder)
    if isinstance(name_read, ToolError):
        return None

    return name_read


def give_workspace_name(folder: str, name: str) -> ToolError | None:
    """Name the workspace with this data folder, such as "<user>/<project>"; repeating its name is no error.

    CONFLICT: it has another name, under which its runs are stored. INVALID_ARGUMENT: this is no name.
    """
    if not _NAME.fullmatch(name):
        message = (
            f"A workspace cannot be called {quoted(name)} in a shared store: give up to {LONGEST_NAME} letters, digits"
            " and signs out of '._@+=/-', the first of them a letter or digit."
        )

        return invalid(message)

    named = _stored_name(folder, name)
    if isinstance(named, ToolError):
        return named

    if named != name:
        message = (
            f"The workspace is called {quoted(named)} in the shared store and cannot be called {quoted(name)} as well:"
            " its runs are stored under the first name."
        )

        return ToolError(code=ToolErrorCode.CONFLICT, message=message)

    return None


def _stored_name(folder: str, name: str) -> str | ToolError:
    """Return the name of the workspace, which becomes `name` if it had none."""
    stored = _read_name(folder)
    if stored is None:
        return _write_name(folder, name) or _read_name(folder) or name

    return stored


def _read_name(folder: str) -> str | ToolError | None:
    path = os.path.join(folder, _NAME_FILE)
    try:
        with closing(os.open(path, _READ_FLAGS)) as descriptor:
            name = os.read(descriptor, 4 * LONGEST_NAME).decode("ascii", "replace").removesuffix("\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        return os_failure(error, "read", path)

    if _NAME.fullmatch(name):
        return name

    message = f"The file {quoted(path)} holds no name of a workspace: restore its content, or remove it."
    return ToolError(code=ToolErrorCode.IO_ERROR, message=message)


def _write_name(folder: str, name: str) -> ToolError | None:
    """Create the file atomically, unless another process was faster."""
    new = f".{_NAME_FILE}.{secrets.token_hex(8)}"
    try:
        with closing(open_root(folder)) as handle:
            write_temporary(handle, new, f"{name}\n".encode("ascii"), mode=0o600)

            try:
                name_exclusively(handle, new, _NAME_FILE)
            except FileExistsError:
                os.unlink(new, dir_fd=handle)

            sync_folder(handle)
    except OSError as error:
        return os_failure(error, "name the workspace in", folder)

    return None
