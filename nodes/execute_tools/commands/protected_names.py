"""Keeps commands from creating protected names: `.git`, settings of mendgraph, and guarded names.

The sandbox mounts existing names read-only, see `workspace_cover`. For missing ones this module creates a placeholder
that can be mounted, or renames afterwards what a command has created.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Final

from mendgraph.nodes.execute_tools.commands.workspace_cover import NameRule, Version, version
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.handles import closing, lock_folder, open_directory, open_root
from mendgraph.nodes.workspace.files.tree_walk import GIT_DIRECTORY
from mendgraph.nodes.workspace.store.user_files import SETTINGS_FILE

LOCK_WAIT_S: Final = 2.0
"""How long the lock of a workspace folder is waited for. Runs share it; other programs have no use for it."""

UNTRUSTED: Final = ".untrusted"
"""Added to the name of a file that was created under a guarded name while a command ran."""


def make_protected_folders(root_fd: int, protected: Sequence[str]) -> None:
    """Create the parent folders of the `protected` names, so that a sandbox can mount them read-only.

    The folders stay. For a name directly in the workspace see `settings_names`.
    """
    for name in protected:
        with suppress(OSError), closing(open_directory(root_fd, name.split("/")[:-1], created=[])):
            pass


@contextmanager
def protected_git(root_fd: int, deadline: float) -> Iterator[ToolError | None]:
    """Provide a `.git` that can be mounted read-only, or the error why there is none.

    Without a repository it is an empty folder. Commands of several runs share it by a lock on `root_fd`, and the last
    one removes it; on a file system without locks it stays. UNAVAILABLE if another program holds the lock: whoever
    can open the folder can lock it.
    """
    if not _lacks_repository(root_fd):
        yield _git_problem(root_fd)
        return

    if not lock_folder(root_fd, fcntl.LOCK_SH, min(deadline, time.monotonic() + LOCK_WAIT_S)):
        message = (
            "Another program has locked the workspace's folder (flock), so no command is run in it: end that program,"
            " or make the workspace a repository (git init)."
        )
        yield ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)

        return

    try:
        yield _make_placeholder(root_fd)
    finally:
        _remove_placeholder(root_fd)
        with suppress(OSError):
            fcntl.flock(root_fd, fcntl.LOCK_UN)  # closing is not enough: a forked process may have the handle


def remove_placeholder(root: str) -> None:
    """Remove the empty `.git` that a killed run has left in the workspace, unless another command needs it."""
    with suppress(OSError), closing(open_root(root)) as root_fd:
        _remove_placeholder(root_fd)


def _lacks_repository(root_fd: int) -> bool:
    """Return whether `.git` is absent, or the empty folder of another run's command."""
    try:
        with closing(open_directory(root_fd, (GIT_DIRECTORY,))) as folder:
            return not os.listdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _make_placeholder(root_fd: int) -> ToolError | None:
    """Create an empty `.git` if it does not exist; returns the error if it cannot be created or protected."""
    try:
        with suppress(FileExistsError):
            os.mkdir(GIT_DIRECTORY, dir_fd=root_fd)
    except OSError as error:
        if error.errno == errno.EROFS:
            return None
        return os_failure(error, "protect", GIT_DIRECTORY)

    return _git_problem(root_fd)


def _remove_placeholder(root_fd: int) -> None:
    with suppress(OSError):
        fcntl.flock(root_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no other command needs it
        os.rmdir(GIT_DIRECTORY, dir_fd=root_fd)


def _git_problem(root_fd: int) -> ToolError | None:
    """Return why an existing `.git` cannot be mounted read-only, or None."""
    try:
        status = os.stat(GIT_DIRECTORY, dir_fd=root_fd, follow_symlinks=False)
    except OSError as error:
        return os_failure(error, "protect", GIT_DIRECTORY)

    if not stat.S_ISLNK(status.st_mode):
        return None

    message = "'.git' is a symbolic link, which cannot be made read-only, so no command is run in this workspace."
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def settings_names(protected: Sequence[str]) -> frozenset[str]:
    """Return the settings files that no command may create: that of the workspace, and `protected` ones in it."""
    return frozenset([SETTINGS_FILE, *(name for name in protected if "/" not in name and name.endswith(".toml"))])


def rename_guarded(
    root_fd: int, guarded: NameRule, before: Mapping[str, Version | None], settings: Iterable[str] = ()
) -> None:
    """Rename what a command has created under a guarded name; `before` are the names that existed, see `Cover`.

    A name that was mounted read-only (None in `before`) no command can change, so it stays. The `settings` directly in
    the workspace are renamed even if the folder cannot be listed.
    """
    with _writable(root_fd):
        for name in settings:
            _rename_new(root_fd, name, name, before)

        _rename_listed(root_fd, guarded, before)


@contextmanager
def _writable(root_fd: int) -> Iterator[None]:
    """Let the owner list and change the folder, whatever a command has made of its mode, and put the mode back."""
    mode = stat.S_IMODE(os.fstat(root_fd).st_mode)
    if mode & stat.S_IRWXU == stat.S_IRWXU:
        yield
        return

    with suppress(OSError):
        os.fchmod(root_fd, mode | stat.S_IRWXU)

    try:
        yield
    finally:
        with suppress(OSError):
            os.fchmod(root_fd, mode)


def _rename_listed(root_fd: int, guarded: NameRule, before: Mapping[str, Version | None]) -> None:
    for folder, folders, files, handle in os.fwalk(".", dir_fd=root_fd):
        parent = folder.removeprefix(".").removeprefix("/")
        prefix = f"{parent}/" if parent else ""
        guarded_names = [name for name in (*folders, *files) if guarded(f"{prefix}{name}")]
        folders[:] = [name for name in folders if name != GIT_DIRECTORY and name not in guarded_names]

        for entry_name in guarded_names:
            _rename_new(handle, entry_name, f"{prefix}{entry_name}", before)


def _rename_new(folder_fd: int, entry_name: str, name: str, before: Mapping[str, Version | None]) -> None:
    """Rename the entry of a folder, whose name in the workspace is `name`, unless it is as `before`."""
    if name in before and before[name] is None:
        return

    with suppress(OSError):
        status = os.stat(entry_name, dir_fd=folder_fd, follow_symlinks=False)
        if version(status) == before.get(name):
            return

        for suffix in (UNTRUSTED, f"{UNTRUSTED}-{token_hex(4)}"):  # a command can occupy the first name with a folder
            with suppress(OSError):
                os.rename(entry_name, f"{entry_name}{suffix}", src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
                return
