"""Files that no tool reaches: the user's configuration, a workspace's settings, the requests of its chats.

A workspace's settings are somebody else's: the file is opened by handle, no link is followed, and little of it is read.
The mark by which the user trusts them lies where no run can reach it, and holds the hash of the file that was trusted.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO, Final

from mendgraph.nodes.execute_tools.files.atomic_write import sync_folder, write_temporary
from mendgraph.nodes.execute_tools.files.handles import closing, open_regular as open_in_workspace, open_root
from mendgraph.nodes.execute_tools.store.run_folder import workspace_folder, workspace_folder_path
from mendgraph.nodes.language.documents import storable
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.language.project_notes import SKILL_FOLDERS
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, quoted

MOST_BYTES: Final = 1_000_000
"""No file that a person writes by hand is larger."""

LONGEST_LINE: Final = 64_000_000
"""Bytes of a line of a file that has one record on each: a task, or a result with its whole answer."""

_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def configuration_file(name: str) -> str | ToolError:
    """Where the user's configuration file of this name is, or would be; NOT_FOUND for a user without a home."""
    from platformdirs import user_config_dir

    try:
        return os.path.join(user_config_dir("mendgraph", appauthor=False), name)
    except RuntimeError:
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=f"There is no home folder in which {name} could be.")


def open_regular(path: str) -> BinaryIO:
    """The file, open for reading. Nothing is waited for.

    Raises OSError: it cannot be opened, or is a directory (EISDIR), a pipe, a socket or a device (ENXIO).
    """
    descriptor = os.open(path, _READ)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")

    os.close(descriptor)
    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.ENXIO, "")


def lines_of(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The lines of a file, each with its end; an error calls the file `name`.

    Raises OSError: it cannot be read, or a line has more than `LONGEST_LINE` bytes.
    """
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise OSError(0, f"a line of {name} has more than {LONGEST_LINE:,} bytes")

        yield line


def read_bytes(path: str, most: int = MOST_BYTES, name: str = "") -> bytes | ToolError:
    """All of a regular file that has `most` bytes at most; an error calls it `name`, by default its path."""
    name = name or path
    try:
        with open_regular(path) as file:
            data = file.read(most + 1)
    except OSError as error:
        return os_failure(error, "read", name)

    if len(data) > most:
        return invalid(f"Cannot read {quoted(name)}: it has more than {most:,} bytes.")

    return data


def write_whole(path: str, data: bytes, mode: int | None = None) -> None:
    """Put a whole new file in the place of the old one, and onto the disk. Raises OSError: the disk refuses.

    `mode` is its permission bits, None means those of a new file.
    """
    folder, name = os.path.split(path)
    new = f".{name[:100]}.{secrets.token_hex(8)}"

    with closing(open_root(folder)) as handle:
        write_temporary(handle, new, data, mode=mode)

        try:
            os.replace(new, name, src_dir_fd=handle, dst_dir_fd=handle)
        except OSError:
            os.unlink(new, dir_fd=handle)
            raise

        sync_folder(handle)


def exchange(path: str, change: Callable[[bytes], bytes | ToolError]) -> ToolError | None:
    """Replace what a file of the user's holds by what `change` makes of it; b"" stands for no file.

    Nobody else may read the file. Processes that do this at once wait for each other.
    """
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)

        with closing(os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            content = read_bytes(path)
            if isinstance(content, ToolError) and content.code is not ToolErrorCode.NOT_FOUND:
                return content

            data = change(b"" if isinstance(content, ToolError) else content)
            if isinstance(data, ToolError):
                return data

            write_whole(path, data, mode=0o600)
    except OSError as error:
        return os_failure(error, "write", path)

    return None


def read_user_file(path: str) -> str | ToolError:
    """The text of a small file that the user wrote: UTF-8, `MOST_BYTES` at most."""
    if isinstance(data := read_bytes(os.path.expanduser(path)), ToolError):
        return data

    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return invalid(f"Cannot read {quoted(path)}: it is no UTF-8 text (byte {error.start}).")


def user_skill_folders(but: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The user's folders of skills, each with the names of the folders in it, where it has any; none of those in `but`.

    Those of mendgraph's own configuration come first.
    """
    own_folder = configuration_file("skills")
    home = os.path.expanduser("~")
    places = [
        *([own_folder] if isinstance(own_folder, str) else []),
        *(os.path.join(home, folder) for folder in SKILL_FOLDERS),
    ]

    for path in places:
        if os.path.isabs(path) and os.path.isdir(path) and os.path.realpath(path) not in map(os.path.realpath, but):
            with suppress(OSError), os.scandir(path) as entries:
                if names := [entry.name for entry in entries if entry.is_dir()]:
                    yield path, names


SETTINGS_FILE: Final = ".mendgraph.toml"
"""In the workspace's own folder; no other one is looked for."""

MOST_SETTINGS_BYTES: Final = 64_000
"""Some hundred settings would fit."""

_MARK: Final = "trusted-settings"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


def read_settings_file(root: str) -> bytes | ToolError | None:
    """What the workspace's file holds; None where there is none."""
    try:
        with closing(open_root(root)) as folder:
            descriptor, _ = open_in_workspace(folder, (SETTINGS_FILE,), os.O_RDONLY)
            with os.fdopen(descriptor, "rb") as file:
                data = file.read(MOST_SETTINGS_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:
            return invalid(f"Cannot read {quoted(SETTINGS_FILE)}: it is a symbolic link, and none is followed.")
        return os_failure(error, "read", SETTINGS_FILE)

    if len(data) > MOST_SETTINGS_BYTES:
        return invalid(f"Cannot read {quoted(SETTINGS_FILE)}: it has more than {MOST_SETTINGS_BYTES:,} bytes.")

    return data


def hash_of(data: bytes) -> str:
    """What a file is known by."""
    return hashlib.sha256(data).hexdigest()


def trusted_hash(root: str) -> str:
    """The hash of the file that the user trusts in this workspace, "" where there is none."""
    try:
        text = read_user_file(os.path.join(workspace_folder_path(root), _MARK))
    except RuntimeError:  # no home
        return ""

    if isinstance(text, str) and _SHA256.fullmatch(text.strip()):
        return text.strip()

    return ""


def trust(root: str, sha256: str) -> ToolError | None:
    """Remember that the user trusts the workspace's file with this hash, and no other any more; "" for none."""
    if isinstance(folder := workspace_folder(root), ToolError):
        return folder

    path = os.path.join(folder, _MARK)
    try:
        if not sha256:
            with suppress(FileNotFoundError):
                os.unlink(path)

            return None

        with os.fdopen(os.open(path, _NEW, 0o600), "w", encoding="ascii") as file:
            file.write(f"{sha256}\n")
    except OSError as error:
        return os_failure(error, "write", path)

    return None


# --- The requests that a person has typed in the chats of a workspace

REQUESTS_FILE: Final = "requests.jsonl"

MOST_REQUESTS: Final = 1_000
MOST_REQUEST_BYTES: Final = 1_000_000
"""What a chat begins with; a file of twice the bytes is cut to this."""

LONGEST_REQUEST: Final = 20_000
"""Characters: a longer one is not kept, as nobody would leaf to it line by line."""

_APPENDED: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class RequestHistory:
    """The requests of one workspace, kept in its data folder for the next chat; who adds one has taken secrets out.

    A file of JSON lines that only its owner may read. What cannot be read or written costs the history and nothing
    else: `problem` says why none is kept.
    """

    def __init__(self, root: str, base: str | None = None) -> None:
        """`root` is the workspace; `base` as in `run_folder`. Nothing is opened yet."""
        self._root = root
        self._base = base
        self.problem = ""

    def load(self) -> list[str]:
        """The requests, oldest first."""
        return self._with_file(_load) or []

    def add(self, request: str) -> None:
        """Keep one more."""
        if len(request) <= LONGEST_REQUEST:
            self._with_file(lambda descriptor: _write(descriptor, [request]))

    def _with_file(self, use: Callable[[int], list[str] | None]) -> list[str] | None:
        """Use the file, which is made where there is none; after the first problem nothing is tried any more."""
        folder = "" if self.problem else workspace_folder(self._root, self._base)
        if isinstance(folder, ToolError):
            self.problem = folder.message

        if self.problem:
            return None

        path = os.path.join(str(folder), REQUESTS_FILE)
        try:
            with closing(os.open(path, _APPENDED, 0o600)) as descriptor:
                os.fchmod(descriptor, 0o600)
                return use(descriptor)
        except OSError as error:
            self.problem = os_failure(error, "keep requests in", path).message

        return None


def _load(descriptor: int) -> list[str]:
    size = os.fstat(descriptor).st_size
    skills = []

    for line in os.pread(descriptor, MOST_REQUEST_BYTES, max(0, size - MOST_REQUEST_BYTES)).split(b"\n"):
        with suppress(ValueError, RecursionError):  # one that was cut is passed over
            request = json.loads(line)
            if isinstance(request, str):
                skills.append(request)

    if size > 2 * MOST_REQUEST_BYTES:
        os.ftruncate(descriptor, 0)
        _write(descriptor, skills)

    return skills[-MOST_REQUESTS:]


def _write(descriptor: int, requests: list[str]) -> None:
    data = b"".join(json.dumps(storable(request)).encode("ascii") + b"\n" for request in requests)
    if os.write(descriptor, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
