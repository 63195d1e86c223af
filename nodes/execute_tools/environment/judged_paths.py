"""Each name is judged twice: as it was asked for, and as the real name of what is then opened."""

import errno
import os
from collections.abc import Callable

from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.handles import handle_name
from nodes.execute_tools.environment.sandbox import PathAccess, PathSandbox, Place
from nodes.records import JsonMap, ToolError, ToolErrorCode

PathJudge = Callable[[str, bool], ToolError | None]
"""(workspace-relative posix path, for writing?) -> the denial, or None. Guard's rules, handed in by `graph.build`."""


class JudgedPaths:
    """The sandbox and the judge together. `observe` receives the sandbox's refusals."""

    def __init__(self, root: str, judge: PathJudge, observe: Callable[[JsonMap], None] | None = None) -> None:
        self._judge = judge
        self._sandbox = PathSandbox(
            root, may_name=lambda name: self.denial(name, for_write=False) is None, observe=observe
        )
        self.root = self._sandbox.root

    def place(self, path: str, access: PathAccess) -> Place | ToolError:
        """Where the path leads, if the name asked for and the real one may both be used.

        The name asked for is judged before anything is looked up, so a denial does not tell what is there.
        """
        for_write = access is PathAccess.WRITE_FILE
        requested = self._sandbox.requested_name(path)
        denial = None if requested is None else self.denial(requested, for_write=for_write)
        if denial is not None:
            return denial
        place = self._sandbox.locate(path, access)
        if isinstance(place, ToolError):
            return place
        names = {place.requested, place.real} - {requested}
        denials = (self.denial(name, for_write=for_write) for name in sorted(names))
        return next((each for each in denials if each is not None), place)

    def existing(self, path: str, access: PathAccess) -> Place | ToolError:
        """The same, or NOT_FOUND with what may have been meant."""
        place = self.place(path, access)
        if isinstance(place, Place) and place.missing:
            return self._sandbox.not_found(path, place.requested, access)
        return place

    def opened_name(self, descriptor: int, root_fd: int, place: Place, *, for_write: bool) -> str | ToolError:
        """The real name of what is open, judged; the walked name where the kernel knows none."""
        root, absolute = handle_name(root_fd), handle_name(descriptor)
        name = place.real if root is None or absolute is None else os.path.relpath(absolute, root)
        if name == ".." or name.startswith("../"):
            return os_failure(OSError(errno.ESTALE, ""), "open", place.requested)
        return self.denial(name, for_write=for_write) or name

    def denial(self, name: str, *, for_write: bool) -> ToolError | None:
        """The judge's answer about a workspace-relative name; a judge that breaks denies."""
        try:
            return self._judge(name, for_write)
        except Exception as error:  # noqa: BLE001 - a rule that breaks must not open the door
            message = f"{quoted(name)} could not be judged ({type(error).__name__}), so it is denied."
            return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)

    def suggest(self, path: str) -> tuple[str, ...]:
        """Up to three closest existing names that may be read, best first."""
        return self._sandbox.suggest(path)
