"""The settings that lie in a workspace, and the mark by which the user trusts them.

The file is somebody else's: it is opened by handle, no link is followed, nothing is waited for, and little of it is
read. The mark lies with the other records of the workspace, where no run can reach it, and holds the hash of the file
that was trusted, so that another file needs a mark of its own.
"""

import errno
import hashlib
import os
import re
from contextlib import suppress
from typing import Final

from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.handles import closing, open_regular, open_root
from nodes.execute_tools.environment.run_folder import workspace_folder, workspace_folder_path
from nodes.execute_tools.environment.user_files import read_user_file
from nodes.records import ToolError, ToolErrorCode

SETTINGS_FILE: Final = ".mendgraph.toml"
"""In the workspace's own folder; no other one is looked for."""

MOST_BYTES: Final = 64_000
"""Some hundred settings would fit."""

_MARK: Final = "trusted-settings"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


def read_settings_file(root: str) -> bytes | ToolError | None:
    """What the workspace's file holds; None where there is none."""
    try:
        with closing(open_root(root)) as folder:
            descriptor, _ = open_regular(folder, (SETTINGS_FILE,), os.O_RDONLY)
            with os.fdopen(descriptor, "rb") as file:
                data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:
            message = f"Cannot read {quoted(SETTINGS_FILE)}: it is a symbolic link, and none is followed."
            return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
        return os_failure(error, "read", SETTINGS_FILE)
    if len(data) > MOST_BYTES:
        message = f"Cannot read {quoted(SETTINGS_FILE)}: it has more than {MOST_BYTES:,} bytes."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
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
    return text.strip() if isinstance(text, str) and _SHA256.fullmatch(text.strip()) else ""


def trust(root: str, sha256: str) -> ToolError | None:
    """Remember that the user trusts the workspace's file with this hash, and no other any more; "" for none."""
    folder = workspace_folder(root)
    if isinstance(folder, ToolError):
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


def is_one_of(root: str, folders: tuple[str, ...]) -> bool:
    """Whether one of these absolute names, `~` allowed, leads to this very folder."""
    own = os.path.realpath(root)
    return any(os.path.realpath(os.path.expanduser(each)) == own for each in folders)
