"""A copy of a workspace in which checks may write: programs see it in place of the workspace, and it is discarded.

Repositories and Python environments are not copied; they are shown read-only in it.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.handles import closing, open_beneath, open_root
from mendgraph.nodes.workspace.sandboxes.private_folder import PrivateFolder
from mendgraph.nodes.workspace.sandboxes.sandbox import View
from mendgraph.nodes.workspace.sandboxes.workspace_copy import NotCopiedError, WorkspaceCopy


class DiscardedCopy:
    """The copy of the workspace at the absolute path `root`; it is removed with this object."""

    def __init__(self, root: str) -> None:
        self._folder = PrivateFolder()
        self._copy = WorkspaceCopy(self._folder.folder("work"), root, translated=False)

    @contextmanager
    def view_of(self, view: View) -> Iterator[View | ToolError]:
        """The same view of the copy, which is equal to the workspace at first; UNAVAILABLE if it cannot be copied."""
        try:
            folders = self._copy.update_files(view)
        except NotCopiedError as error:
            message = f"A check writes into the workspace, which cannot be copied for it: {error}."
            yield ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
            return

        with ExitStack() as handles:
            read_only = []
            for name in folders:
                handle = handles.enter_context(closing(open_beneath(view.root_fd, name.split("/"), os.O_PATH)))
                read_only.append((handle, os.path.join(view.root, name)))

            shown = tuple(name for _, name in read_only)
            yield replace(
                view,
                root_fd=handles.enter_context(closing(open_root(self._copy.root))),
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
