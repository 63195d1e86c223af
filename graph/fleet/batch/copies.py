"""Each task works in a copy of its own of its workspace, and what it changed there comes out as a patch. Pure.

A git repository becomes a worktree at a commit, a folder is copied, an archive is extracted; a single folder that holds
all of an archive is the workspace. A copy is made once: what is finished is taken as it is, what was cut off is made
anew. What git ignores is in no patch.
"""

from collections.abc import Iterable
from typing import Protocol

from mendgraph.nodes.execute_tools.copies.copy_sources import MOST_PACKED_BYTES, Packed, pack_source as pack
from mendgraph.nodes.execute_tools.copies.workspace_copies import (
    Copy,
    Pinned,
    compare_copy,
    delete_copy,
    make_copy,
    open_copy,
    pin_source,
)
from mendgraph.nodes.records import ToolError

__all__ = [
    "Copy",
    "Packed",
    "Pinned",
    "find_copy",
    "make_patch",
    "pack_source",
    "pin_revision",
    "prepare_copy",
    "remove_copy",
]


class HasWorkspace(Protocol):
    """What says where a copy comes from: a `BatchTask`, whose `workspace` is an absolute name."""

    @property
    def workspace(self) -> str:
        """A folder or an archive."""

    @property
    def revision(self) -> str:
        """A commit, tag or branch where it is a repository; "" is HEAD."""


def pin_revision(task: HasWorkspace) -> Pinned | ToolError:
    """The commit that copies of this task's workspace are made of from now on, or why none can be made.

    Asked once for each distinct workspace and revision when a batch begins, it keeps all copies at one commit, and
    tells what is wrong before anything is spent.

    Returns:
        The full id of the commit ("" where it is no repository), with sentences about what is in no copy. NOT_FOUND
        for a workspace, revision or commit that is not there; CONFLICT for changes that are not committed, unless a
        revision is named; PERMISSION_DENIED where git does not trust the repository; UNAVAILABLE without git.
    """
    return pin_source(task.workspace, task.revision)


def prepare_copy(
    task: HasWorkspace, folder: str, packed: bytes | None = None, *, without: Iterable[str] = ()
) -> Copy | ToolError:
    """The copy of the task's workspace in `folder`, which is made if it is not there yet.

    `folder` is the copy's own: it may be missing, empty, or hold what an earlier call has made or begun, also one that
    was killed. Nothing is written elsewhere, but for the record of the worktree in the repository. With `packed` the
    source is in these bytes (`pack_source`), and the workspace itself is not looked at. `without` are folders that are
    left out when a folder is copied; the copies' own place is left out anyhow.
    """
    return make_copy(task.workspace, task.revision, folder, packed=packed, without=without)


def find_copy(folder: str) -> Copy | None:
    """The finished copy in `folder`, if there is one."""
    return open_copy(folder)


def make_patch(copy: Copy) -> bytes | ToolError:
    """What differs in the copy from its beginning, for `git apply` in its workspace; b"" where nothing does.

    Files of the beginning and new ones that no `.gitignore` hides count, with their bytes and whether they may be
    executed, and links. Empty folders, and repositories' own `.git`, do not.
    """
    return compare_copy(copy.folder)


def remove_copy(copy: Copy | str) -> ToolError | None:
    """Take away a copy, finished or half-made, by itself or by its folder, and what its repository knows of it."""
    return delete_copy(copy if isinstance(copy, str) else copy.folder)


def pack_source(
    task: HasWorkspace, *, without: Iterable[str] = (), most_bytes: int = MOST_PACKED_BYTES
) -> Packed | ToolError:
    """The source of the task's copy as bytes for another machine: one for each distinct workspace and revision."""
    return pack(task.workspace, task.revision, without, most_bytes)
