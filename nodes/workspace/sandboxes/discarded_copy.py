"""A copy of a workspace for one check that writes: the program sees it in place of the workspace.

Each run has a new copy, so that nothing of one run reaches the next. Repositories and Python environments are not
copied; they are shown read-only in it. All files are opened by handles, as in `workspace_copy`.
"""

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.handles import closing, open_beneath, open_root
from mendgraph.nodes.workspace.files.tree_walk import GIT_DIRECTORY
from mendgraph.nodes.workspace.sandboxes.private_folder import PrivateFolder, read_handle
from mendgraph.nodes.workspace.sandboxes.sandbox import View
from mendgraph.nodes.workspace.sandboxes.workspace_copy import (
    NEW_FILE,
    NotCopiedError,
    Progress,
    ViewNames,
    copy_entry,
    write_all,
)

LONGEST_COPY_S: Final = 30.0
"""Seconds for one copy. Measured on two busy cores: 0.4 s for 5,000 files, 4 to 8 s for 30,000."""

MOST_BYTES: Final = 4_000_000_000
"""Most bytes of the files of one copy, without their holes."""

_PRIVATE: Final = 0o700


@contextmanager
def discarded_copy(view: View, deadline: float, check: Callable[[], None]) -> Iterator[View | ToolError]:
    """The same view of a new copy of the workspace, which is removed at the end of the block.

    `check` is called for each folder; what it raises ends the copying. UNAVAILABLE if the workspace is too large, or
    the copy is not complete at `deadline` (of the monotonic clock).
    """
    folder = PrivateFolder()

    try:
        with ExitStack() as handles:
            root = handles.enter_context(closing(open_root(folder.folder("work"))))
            seconds = min(LONGEST_COPY_S, deadline - time.monotonic())
            copying = _Copying(ViewNames.of(view), Progress(seconds, MOST_BYTES), check)

            try:
                copying.copy_folder(view.root_fd, root, "")
            except NotCopiedError as error:
                message = f"A check writes into the workspace, which cannot be copied for it: {error}."
                yield ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
                return

            yield _view_of_copy(view, root, copying.left_out, handles)
    finally:
        folder.remove()


def _view_of_copy(view: View, root: int, left_out: Iterable[str], handles: ExitStack) -> View:
    """Return the view of the copy, in which the folders that are `left_out` are those of the workspace."""
    read_only = []
    for name in left_out:
        handle = handles.enter_context(closing(open_beneath(view.root_fd, name.split("/"), os.O_PATH)))
        read_only.append((handle, os.path.join(view.root, name)))

    shown = tuple(name for _, name in read_only)
    return replace(
        view,
        root_fd=root,
        read_only=tuple(read_only),
        hidden_files=_mounted(view.root, view.hidden_files, shown),
        hidden_folders=_mounted(view.root, view.hidden_folders, shown),
        replaced_files=tuple(pair for pair in view.replaced_files if _mounted(view.root, (pair[1],), shown)),
        root_read_only=False,
    )


def _mounted(root: str, names: Iterable[str], folders: Iterable[str]) -> tuple[str, ...]:
    """Return the names outside of the workspace or in one of its folders that are not copied."""
    prefixes = tuple(f"{folder}/" for folder in folders)
    return tuple(name for name in names if not name.startswith(f"{root}/") or name.startswith(prefixes))


@dataclass
class _Copying:
    """Copies a workspace, except what a view hides; `left_out` are the folders that are empty in the copy."""

    names: ViewNames
    progress: Progress
    check: Callable[[], None]
    left_out: list[str] = field(default_factory=list)

    def copy_folder(self, original: int, copy: int, prefix: str) -> None:
        """Copy all that is in an open folder; `prefix` is its name with a "/" at the end, or ""."""
        with os.scandir(original) as scan:
            entries = list(scan)

        self.check()
        self.progress.count(len(entries), prefix)

        for entry in entries:
            name = f"{prefix}{entry.name}"
            if name in self.names.hidden:
                continue

            # It was just removed, or programs may not read it either.
            with suppress(FileNotFoundError, PermissionError):
                if name in self.names.replaced:
                    self._write_replacement(copy, entry, name)
                elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
                    copy_entry(original, copy, entry.name, entry.name, progress=self.progress)
                elif entry.is_dir(follow_symlinks=False):
                    self._copy_subfolder(original, copy, entry.name, name)

    def _copy_subfolder(self, original: int, copy: int, entry_name: str, name: str) -> None:
        with closing(open_beneath(original, (entry_name,), os.O_RDONLY | os.O_DIRECTORY)) as folder:
            os.mkdir(entry_name, _PRIVATE, dir_fd=copy)
            if entry_name == GIT_DIRECTORY or _is_environment(folder):
                self.left_out.append(name)
                return

            with closing(open_beneath(copy, (entry_name,), os.O_RDONLY | os.O_DIRECTORY)) as folder_copy:
                self.copy_folder(folder, folder_copy, f"{name}/")
                os.fchmod(folder_copy, stat.S_IMODE(os.fstat(folder).st_mode) | _PRIVATE)

    def _write_replacement(self, copy: int, entry: "os.DirEntry[str]", name: str) -> None:
        mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode) & 0o755
        with closing(os.open(entry.name, NEW_FILE, mode, dir_fd=copy)) as file:
            write_all(file, read_handle(self.names.replaced[name]))


def _is_environment(folder: int) -> bool:
    """Return whether an open folder is a virtual environment of Python."""
    with suppress(OSError):
        os.stat("pyvenv.cfg", dir_fd=folder, follow_symlinks=False)
        os.stat("bin/python", dir_fd=folder, follow_symlinks=False)
        return True

    return False
