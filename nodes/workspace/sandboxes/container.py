"""The backend without a boundary of its own: the container in which the agent runs is the boundary.

The user has to declare that by `sandbox = "container"`; it is never chosen automatically.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.sandboxes.private_folder import PrivateFolder, PrivateNames
from mendgraph.nodes.workspace.sandboxes.sandbox import HOME, SCRATCH, Guarantee, View
from mendgraph.nodes.workspace.sandboxes.seccomp import PROGRAM_FAMILIES
from mendgraph.nodes.workspace.sandboxes.supervised import SupervisedProcess, supervised, supervision_problem

_NO_REPLACEMENT: Final = ToolError(
    code=ToolErrorCode.UNAVAILABLE,
    message="The sandbox 'container' runs nothing on earlier versions of files, because it copies no workspace.",
)


class Container:
    """A seccomp filter, limits, a private home and a private folder for temporary files."""

    name: Final = "container"
    mounts_root: Final = False
    guarantees: Final = frozenset(
        {
            Guarantee.SYSTEM_CALLS,
            Guarantee.PRIVILEGES,
            Guarantee.PROCESS_LIMITS,
            Guarantee.TOTAL_LIMITS,
            Guarantee.END,
        }
    )

    def __init__(self) -> None:
        self._folder: PrivateFolder | None = None

    def problem(self) -> str | None:
        """Return why it cannot start on this machine, with the remedy; None if it can."""
        return supervision_problem()

    @contextmanager
    def started(
        self, view: View, command: Sequence[str], env: Mapping[str, str]
    ) -> Iterator[SupervisedProcess | ToolError]:
        """Start `command` in the workspace; at the end of the block all its processes are dead."""
        if view.replaced_files:
            yield _NO_REPLACEMENT
            return

        self._folder = folder = self._folder or PrivateFolder()
        try:
            names = PrivateNames({HOME: folder.folder("home"), **folder.add_files(view.added_files)})
            scratch = PrivateNames({SCRATCH: folder.folder("tmp")})  # the container's `/tmp` can be seen as well

            with supervised(
                command,
                {name: scratch.translate(value) for name, value in env.items()},
                view.cwd,
                names=names,
                families=PROGRAM_FAMILIES,
                limits=view.limits,
                disk_fd=view.root_fd,
            ) as running:
                yield running
        finally:
            folder.empty()
