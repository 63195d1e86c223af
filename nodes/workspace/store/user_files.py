"""Files that no tool reaches: the user's configuration, a workspace's settings, and the requests of its chats.

The settings of a workspace are not trusted: the file is opened without following links, and its size is limited. The
user trusts a file by its hash, which is stored where no run can write.
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

from mendgraph.nodes.language.documents import storable
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.language.project_notes import SKILL_FOLDERS
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.atomic_write import sync_folder, write_temporary
from mendgraph.nodes.workspace.files.handles import closing, open_regular as open_in_workspace, open_root
from mendgraph.nodes.workspace.store.run_folder import workspace_folder, workspace_folder_path

MOST_BYTES: Final = 1_000_000
"""Size limit of a file that a person writes."""

LONGEST_LINE: Final = 64_000_000
"""Bytes of a line that holds one record, such as a task or a result."""

_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def configuration_file(name: str) -> str | ToolError:
    """Return the path of a configuration file of the user; NOT_FOUND for a user without a home."""
    from platformdirs import user_config_dir

    try:
        return os.path.join(user_config_dir("mendgraph", appauthor=False), name)
    except RuntimeError:
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=f"There is no home folder in which {name} could be.")


def open_regular(path: str) -> BinaryIO:
    """Open a file for reading without waiting.

    Raises OSError: it cannot be opened, or is a directory (EISDIR), a pipe, a socket or a device (ENXIO).
    """
    descriptor = os.open(path, _READ)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")

    os.close(descriptor)
    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.ENXIO, "")


def lines_of(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the lines of a file with their ends; an error calls the file `name`.

    Raises OSError: it cannot be read, or a line has more than `LONGEST_LINE` bytes.
    """
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise OSError(0, f"a line of {name} has more than {LONGEST_LINE:,} bytes")

        yield line


def read_bytes(path: str, most: int = MOST_BYTES, name: str = "") -> bytes | ToolError:
    """Read a regular file of `most` bytes at most; an error calls it `name`, by default its path."""
    name = name or path
    try:
        with open_regular(path) as file:
            data = file.read(most + 1)
    except OSError as error:
        return os_failure(error, "read", name)
    except ValueError:  # a null character or half a character
        return invalid(f"Cannot read {quoted(name)}: the path has a character that no file name can have.")

    if len(data) > most:
        return invalid(f"Cannot read {quoted(name)}: it has more than {most:,} bytes.")

    return data


def write_whole(path: str, data: bytes, mode: int | None = None) -> None:
    """Replace a file atomically and durably; `mode` is its permission bits, by default those of a new file.

    Raises OSError.
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


def exchange(path: str, change: Callable[[bytes], bytes | ToolError], *, keep_mode: bool = False) -> ToolError | None:
    """Replace the content of a private file by what `change` returns for it; b"" stands for a missing file.

    With `keep_mode` a file that exists keeps its permission bits. Processes that do so at once wait for each other.
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

            mode = 0o600
            if keep_mode and not isinstance(content, ToolError):
                mode = stat.S_IMODE(os.stat(path).st_mode)

            write_whole(path, data, mode=mode)
    except OSError as error:
        return os_failure(error, "write", path)

    return None


def read_user_file(path: str) -> str | ToolError:
    """Return the text of a UTF-8 file of at most `MOST_BYTES`."""
    if isinstance(data := read_bytes(os.path.expanduser(path)), ToolError):
        return data

    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return invalid(f"Cannot read {quoted(path)}: it is not UTF-8 text (byte {error.start}).")


def user_skill_folders(but: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the user's folders of skills that are not in `but`, with the names of their folders.

    That of mendgraph's own configuration comes first.
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


def home_folders(folders: Sequence[str]) -> list[tuple[str, str]]:
    """Return these folders of the user's home with their absolute paths; none for a user without a home."""
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        return []

    return [(folder, os.path.join(home, folder)) for folder in folders]


def with_tilde(path: str) -> str:
    """Return a path with `~` for the user's home."""
    home = os.path.join(os.path.expanduser("~"), "")
    if path.startswith(home):
        return os.path.join("~", path.removeprefix(home))

    return path


SETTINGS_FILE: Final = ".mendgraph.toml"
"""The settings file in the root of a workspace."""

SERVERS_FILE: Final = ".mcp.json"
"""The file with the MCP servers of a workspace, as other agents read it."""

HOOKS_FILE: Final = ".claude/settings.json"
"""The file with the hooks of a workspace, as Claude Code reads it."""

LOGINS_FOLDER: Final = "mcp-logins"
"""The user's private folder with the tokens of MCP servers."""

MOST_SETTINGS_BYTES: Final = 64_000
"""Size limit of a settings file."""

_MARKS: Final = {SETTINGS_FILE: "trusted-settings", SERVERS_FILE: "trusted-servers", HOOKS_FILE: "trusted-hooks"}
_MARK: Final = re.compile(r"(?:[0-9a-f]{64}){1,2}|[0-9a-f]{64}\n\{.*\}")
"""The hash of a file; of servers also that of the files that they execute, of hooks a JSON object of them by path."""

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


def read_settings_file(root: str, name: str = SETTINGS_FILE) -> bytes | ToolError | None:
    """Return the content of a settings file of the workspace, None if there is none."""
    try:
        with closing(open_root(root)) as folder:
            descriptor, _ = open_in_workspace(folder, name.split("/"), os.O_RDONLY)
            with os.fdopen(descriptor, "rb") as file:
                data = file.read(MOST_SETTINGS_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:
            return invalid(f"Cannot read {quoted(name)}: it is a symbolic link, and none is followed.")
        return os_failure(error, "read", name)

    if len(data) > MOST_SETTINGS_BYTES:
        return invalid(f"Cannot read {quoted(name)}: it has more than {MOST_SETTINGS_BYTES:,} bytes.")

    return data


def hash_of(data: bytes) -> str:
    """Return the hash by which a file is trusted."""
    return hashlib.sha256(data).hexdigest()


def trusted_hash(root: str, name: str = SETTINGS_FILE) -> str:
    """Return the hash by which the user trusts this file of the workspace, or ""."""
    try:
        text = read_user_file(os.path.join(workspace_folder_path(root), _MARKS[name]))
    except RuntimeError:  # no home
        return ""

    if isinstance(text, str) and _MARK.fullmatch(text.strip()):
        return text.strip()

    return ""


def trust(root: str, sha256: str, name: str = SETTINGS_FILE) -> ToolError | None:
    """Store the only hash by which the user trusts this file of the workspace; "" for none."""
    if isinstance(folder := workspace_folder(root), ToolError):
        return folder

    path = os.path.join(folder, _MARKS[name])
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


# --- The requests of the chats of a workspace

REQUESTS_FILE: Final = "requests.jsonl"

MOST_REQUESTS: Final = 1_000
"""The number of requests that a chat begins with."""

LONGEST_REQUEST: Final = 20_000
"""Characters of a request; a longer one is not stored."""


class RequestHistory:
    """The requests of one workspace for its next chat, in a private file; the caller has removed secrets.

    If the file cannot be read or written, only the history is lost: `problem` says why.
    """

    def __init__(self, root: str, base: str | None = None) -> None:
        """`root` is the workspace, `base` as in `run_folder`. Open nothing yet."""
        self._root = root
        self._base = base
        self.problem = ""

    def load(self) -> list[str]:
        """Return the requests, oldest first."""
        path = self._path()
        with suppress(OSError), open_regular(path) as file:
            os.fchmod(file.fileno(), 0o600)  # as a restored backup may not be

        data = read_bytes(path) if path else b""
        if isinstance(data, ToolError):
            if data.code is not ToolErrorCode.NOT_FOUND:
                self.problem = data.message

            return []

        requests = []
        for line in data.split(b"\n"):
            with suppress(ValueError, RecursionError):  # the first line may be cut
                request = json.loads(line)
                if isinstance(request, str):
                    requests.append(request)

        return requests[-MOST_REQUESTS:]

    def add(self, request: str) -> None:
        """Store one more request, and the last `MOST_BYTES` bytes of the others."""
        path = self._path()
        if not path or len(request) > LONGEST_REQUEST:
            return

        line = json.dumps(storable(request)).encode("ascii") + b"\n"
        problem = exchange(path, lambda data: (data + line)[-MOST_BYTES:])
        if problem is not None:
            self.problem = problem.message

    def _path(self) -> str:
        folder = "" if self.problem else workspace_folder(self._root, self._base)
        if isinstance(folder, ToolError):
            self.problem = folder.message

        return "" if self.problem else os.path.join(str(folder), REQUESTS_FILE)
