"""Where a run keeps what is its own, such as large results: a private folder for each thread, not in the workspace."""

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

from mendgraph.nodes.execute_tools.files.atomic_write import name_exclusively, sync_folder, write_temporary
from mendgraph.nodes.execute_tools.files.handles import closing, open_root
from mendgraph.nodes.execute_tools.files.workspace import OpenedFile
from mendgraph.nodes.language.names import LARGEST_NUMBER, number_of, reference_of, unknown_reference
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, quoted

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
    """The absolute path of this thread's folder, which is there and which nobody else may enter.

    It lies at `<base>/runs/`; without `base`, `MENDGRAPH_DATA_DIR` says where, or the user's data folder it is. A
    link, a file or somebody else's folder in its place is refused; a folder of ours that others may enter is closed.
    """
    return _private_folder(RUNS, folder_name(thread_id), "run's folder", base)


def run_folder_path(thread_id: str, base: str | None = None) -> str:
    """Where this thread's folder is, or will be. Nothing is made."""
    return os.path.join(os.path.abspath(base or data_folder()), RUNS, folder_name(thread_id))


def remove_run_folder(thread_id: str, base: str | None = None) -> int:
    """Remove this thread's folder with all that is in it, where there is one; how many bytes its files had.

    Raises OSError: it, or something in it, could not be removed.
    """
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
    """The absolute path of the folder for what belongs to the workspace at `root`, otherwise as `run_folder`.

    It lies at `<base>/workspaces/`. Every name of one workspace leads to one folder.
    """
    return _private_folder(WORKSPACES, _workspace_name(root), "workspace's data folder", base)


def workspace_folder_path(root: str, base: str | None = None) -> str:
    """Where the workspace's data folder is, or will be. Nothing is made."""
    return os.path.join(os.path.abspath(base or data_folder()), WORKSPACES, _workspace_name(root))


_EVERY_S, _IDLE_S = 3_600.0, 86_400.0


def is_due(folder: str) -> bool:
    """Whether nobody has looked after this folder for an hour; from now on somebody has."""
    mark = Path(folder, "retained")
    with suppress(OSError):
        if not mark.exists() or time.time() - mark.stat().st_mtime > _EVERY_S:
            mark.touch(mode=0o600)
            return True

    return False


def idle_workspaces(folder: str) -> list[str]:
    """The folders beside this one of workspaces in which nothing has happened for a day; told once an hour."""
    every = Path(folder).parent
    locked = every.glob("*/run.lock") if is_due(str(every)) else ()
    return [str(lock.parent) for lock in locked if time.time() - lock.parent.stat().st_mtime > _IDLE_S]


def spending_folder(base: str | None = None) -> str | ToolError:
    """The absolute path of the folder for what all workspaces have spent, otherwise as `run_folder`."""
    return _private_folder(SPENDING, "", "spending book's folder", base)


def records_folders(base: str | None = None) -> tuple[str, ...]:
    """Where the folders of all threads are, or will be, of all workspaces, and of the spending book. Makes nothing."""
    base = os.path.abspath(base or data_folder())
    return tuple(os.path.join(base, kind) for kind in (RUNS, WORKSPACES, SPENDING))


def folder_name(thread_id: str) -> str:
    """A name for the thread's folder: a readable beginning made of harmless characters, and a hash that is its own."""
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
        message = f"There is no home folder to keep runs in: set {DATA_DIR_VARIABLE} to a folder of your own."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)

    path = os.path.join(base, kind, name).rstrip("/")
    try:
        with suppress(KeyError, FileNotFoundError):
            if _CHECKED_FOLDERS[path] == _identity(path):
                return path

        if not os.path.isdir(base):
            with suppress(FileExistsError):
                os.makedirs(base, mode=0o700)

        with closing(os.open(base, _DIRECTORY)) as base_fd, closing(_open_private(kind, base_fd)) as kind_fd:
            if name:
                os.close(_open_private(name, kind_fd))

        if len(_CHECKED_FOLDERS) >= _MOST_CHECKED:
            _CHECKED_FOLDERS.clear()

        _CHECKED_FOLDERS[path] = _identity(path)
    except _NotOursError:
        message = (
            f"The {label} {quoted(path)} cannot be used: it, or the folder above it, is a link, a file, or"
            f" belongs to somebody else. Remove it, or set {DATA_DIR_VARIABLE} to a folder of your own."
        )

        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)
    except OSError as error:
        return os_failure(error, f"make the {label}", path)
    except ValueError:
        return invalid(f"The {label} cannot be {quoted(path)}: no folder can have this name.")

    return path


_CHECKED_FOLDERS: Final = dict[str, tuple[int, ...]]()
"""The identities of folders that were checked: another folder in its place, or other rights, differ."""
_MOST_CHECKED: Final = 10_000


def _identity(path: str) -> tuple[int, ...]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino, status.st_mode, status.st_uid


class _NotOursError(Exception):
    """Something else is where the folder belongs."""


def data_folder() -> str:
    """The folder that holds all of this where nobody names another one. Raises RuntimeError: the user has no home."""
    folder = os.environ.get(DATA_DIR_VARIABLE)
    if folder:
        return os.path.expanduser(folder)

    from platformdirs import user_data_dir

    return user_data_dir("mendgraph", appauthor=False)


def _open_private(name: str, parent_fd: int) -> int:
    """A handle of the folder, made where there is none, that is ours alone."""
    try:
        status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent_fd)
            os.fsync(parent_fd)  # what will be kept in there is worth nothing if the folder itself is lost

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
"""Begins the name of a folder of kept results, of which a run has one for each workspace."""
_FILE: Final = re.compile(r"([1-9][0-9]{0,5})\.txt")
_NEW_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ATTEMPTS: Final = 20
"""How often another number is tried where another process has taken one meanwhile."""


class Artifacts:
    """The kept results of one run: numbered text files in `folder`, which is made when the first one is kept.

    Nothing is remembered but what is in the folder, so a run that is resumed in another process goes on with it. A
    result of more than `max_bytes` bytes is not kept, nor one that would make all of them more than `max_total`;
    those that are there stay, as a model may have been told of them.
    """

    def __init__(self, folder: str, *, max_bytes: int = 10_000_000, max_total: int = 100_000_000) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_total = max_total

    def keep(self, text: str) -> str | None:
        """The reference of the text, once it is kept, or None where it cannot be, be it that the disk is full.

        What no text file holds is replaced: lone surrogates by "?", NUL by its picture, U+2400.
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
        """The kept text, opened for reading, with the reference as its path; NOT_FOUND with those that exist."""
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
        """A handle of the folder, which has to be our own: what somebody else laid there is left alone."""
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
    """Copy what a run has kept into the folder of another one.

    Where that cannot be done, be it that the disk is full, the other run is told that these results are not there, as
    it is of any result that could not be kept.
    """
    with suppress(OSError, shutil.Error):
        with os.scandir(run_folder_path(run_id)) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(_PREFIX) and not entry.is_symlink()]

        target = run_folder(new_run_id) if names else None
        if target is None or isinstance(target, ToolError):
            return

        for name in names:
            shutil.copytree(os.path.join(run_folder_path(run_id), name), os.path.join(target, name), symlinks=True)


# --- The name of a workspace in a shared store: a file in its folder of records, which moves with it

_NAME_FILE: Final = "shared_name"

LONGEST_NAME: Final = 200
"""Characters. Each row of the shared store has it."""

_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@+=/-]{{0,{LONGEST_NAME - 1}}}")


def workspace_name(folder: str) -> str | ToolError:
    """The name of the workspace whose folder of records this is; a random one is given where it has none.

    The error says that it cannot be read or written, or is no name.
    """
    return _stored_name(folder, secrets.token_hex(16))


def known_workspace_name(folder: str) -> str | None:
    """The name of the workspace; None where none was given yet, or it cannot be read. Nothing is made."""
    name_read = _read_name(folder)
    if isinstance(name_read, ToolError):
        return None

    return name_read


def give_workspace_name(folder: str, name: str) -> ToolError | None:
    """Give the workspace whose folder of records this is a name of one's own, such as "<user>/<project>".

    The same name once more is no error. CONFLICT says that it has another one, under which its runs are kept;
    INVALID_ARGUMENT, which signs a name is made of.
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
            " its runs are kept under the first name."
        )

        return ToolError(code=ToolErrorCode.CONFLICT, message=message)

    return None


def _stored_name(folder: str, name: str) -> str | ToolError:
    """The name that the workspace has; `name` becomes its name where it had none."""
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

    message = f"The file {quoted(path)} holds no name of a workspace: put back what it held, or remove it."
    return ToolError(code=ToolErrorCode.IO_ERROR, message=message)


def _write_name(folder: str, name: str) -> ToolError | None:
    """Create the complete file on the disk, unless another process was faster."""
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
