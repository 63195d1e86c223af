"""Which file a path means, and whether it lies in the workspace. Source: spec 2 section 4.

`PathSandbox` decides on names; whoever then opens the file walks to it by handle (`handles.open_beneath`), so a link
that appears between the decision and the opening is refused and not followed.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.handles import closing, open_beneath, open_directory, open_root
from nodes.execute_tools.environment.path_shape import malformed, names_no_file
from nodes.execute_tools.environment.workspace_root import check_workspace
from nodes.language.names import closest_names, names_elsewhere
from nodes.records import JsonMap, ToolError, ToolErrorCode

__all__ = ["PathAccess", "PathSandbox", "Place", "check_workspace", "open_beneath"]

MAGIC_DIRECTORIES: Final = ("/proc/", "/dev/")
"""Names there lead to whatever a process has open; no path of a workspace is spelled so."""


class PathAccess(StrEnum):
    """What a path is wanted for."""

    READ_FILE = "read_file"
    WRITE_FILE = "write_file"
    LIST_DIR = "list_dir"


@dataclass(frozen=True)
class Place:
    """Where a path leads: both names are relative to the workspace, "." is the workspace itself.

    `requested` is the name as asked for, cleaned but with its links; `real` has none. `missing` says that nothing is
    there yet.
    """

    requested: str
    real: str
    missing: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """The real name, part by part."""
        return () if self.real == "." else tuple(self.real.split("/"))


class PathSandbox:
    """Resolves the paths of tools inside one root; anything that leads out of it is refused.

    `may_name` says which workspace-relative names an error may suggest, and `namesakes` gives the files of the whole
    workspace that are called like one that is not there. `observe` receives each refusal as a map of
    the root, the path as asked for, the cleaned path, its place relative to the root, and the error's code.
    """

    def __init__(
        self,
        root: str,
        *,
        may_name: Callable[[str], bool] = lambda _: True,
        namesakes: Callable[[str], Sequence[str]] = lambda _: (),
        observe: Callable[[JsonMap], None] | None = None,
    ) -> None:
        self.root = os.path.realpath(root, strict=True)
        if not os.path.isdir(self.root):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), root)
        self._may_name = may_name
        self._namesakes = namesakes
        self._observe = observe

    def resolve(self, path: str, access: PathAccess) -> str | ToolError:
        """The absolute real path, or a typed error with suggestions. A new file needs its parent to exist."""
        place = self.locate(path, access)
        if isinstance(place, ToolError):
            return place
        if place.missing and (access is not PathAccess.WRITE_FILE or not self._has_parent(place)):
            return self.not_found(path, place.requested, access)
        return os.path.normpath(os.path.join(self.root, place.real))

    def requested_name(self, path: str) -> str | None:
        """The cleaned name relative to the root, its links unresolved; None for what is no path or leads out."""
        return None if malformed(path) is not None else self._relative(self._candidate(path))

    def locate(self, path: str, access: PathAccess) -> Place | ToolError:
        """Where the path leads inside the root, whether or not something is there, or why it may not go there."""
        said = self._said(path)
        no_path = malformed(said)
        if no_path is not None:
            return self._refused(no_path, path, "")
        if names_elsewhere(path) and not os.path.lexists(self._candidate(path)):
            return self._refused(self.outside(path, access), path, os.path.normpath(path))
        candidate = self._candidate(path)
        requested = self._relative(candidate)
        if requested is None and (not os.path.isabs(path) or candidate.startswith(MAGIC_DIRECTORIES)):
            return self._refused(self.outside(path, access), path, os.path.relpath(candidate, self.root))
        try:
            real, missing = _real_name(candidate)
        except OSError as error:
            return self._refused(os_failure(error, "resolve", said), path, requested or candidate)
        relative = self._relative(real)
        if relative is None:
            return self._refused(self.outside(path, access), path, os.path.relpath(real, self.root))
        no_file = names_no_file(said, requested or relative) if access is not PathAccess.LIST_DIR else None
        if no_file is not None:
            return self._refused(no_file, path, relative)
        no_path = malformed(relative)  # a link may lead to a name that no path can spell
        if no_path is not None:
            return self._refused(no_path, path, relative)
        return Place(requested or candidate.lstrip("/"), relative, missing)

    def not_found(self, path: str, requested: str, access: PathAccess) -> ToolError:
        """The error for a name that leads nowhere, with what may have been meant."""
        kind = "directory" if access is PathAccess.LIST_DIR else "file"
        names = self.suggest(path)
        meant = " or ".join(quoted(name) for name in names)
        remedy = f"Did you mean {meant}?" if meant else "List the directory above it to see what is there."
        message = f"No such {kind}: {quoted(requested)}. {remedy}"
        return self._refused(
            ToolError(code=ToolErrorCode.NOT_FOUND, message=message, suggestions=names), path, requested
        )

    def suggest(self, path: str) -> tuple[str, ...]:
        """Up to three existing names, best first: files of that name elsewhere, then the closest to what is missing."""
        place = self.locate(path, PathAccess.LIST_DIR)
        if isinstance(place, ToolError) or not place.missing:
            return ()
        known, names = self._deepest(place.parts)
        missing, rest = place.parts[len(known) : len(known) + 1], place.parts[len(known) + 1 :]
        if not missing:
            return ()
        found = ("/".join((*known, name)) for name in closest_names(missing[0], names, len(names)))
        complete = (whole if self._is_inside(whole := "/".join((name, *rest))) else name for name in found)
        close = (name for name in complete if self._is_inside(name) and self._may_name(name))
        return tuple(dict.fromkeys((*self._namesakes(place.parts[-1]), *close)))[:3]

    def _deepest(self, parts: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
        """How many of the parts exist as directories, and the names in the last of them."""
        for length in range(len(parts), -1, -1):
            with (
                suppress(OSError),
                closing(open_root(self.root)) as root,
                closing(open_directory(root, parts[:length])) as here,
            ):
                return parts[:length], [name for name in os.listdir(here) if malformed(name) is None]
        return (), []

    def _is_inside(self, relative: str) -> bool:
        try:
            return self._relative(os.path.realpath(os.path.join(self.root, relative), strict=True)) is not None
        except OSError:
            return False

    def outside(self, path: str, access: PathAccess, what: str = "is outside the workspace") -> ToolError:
        """The refusal of a path that is none of this workspace, as `what` says, with the one that it may mean."""
        inside = self._meant_inside(path, access)
        meant = f"; did you mean {' or '.join(map(quoted, inside))}?" if inside else "."
        message = f"{quoted(path)} {what}{meant} Use a relative path under '.'."
        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message, suggestions=inside or (".",))

    def _meant_inside(self, path: str, access: PathAccess) -> tuple[str, ...]:
        """The longest end of a path that is there, as models like to invent a front; else what is called like it.

        For what is to be written the longest end that may be made is the last of these.
        """
        ends = [end for end in _ends(path) if end.isprintable() and self._may_name(end)]
        if there := [end for end in ends if self._is_inside(end)]:
            return (there[0],)
        free = [end for end in ends if not os.path.lexists(os.path.join(self.root, end))]  # a link may lead out
        new = [end for end in free if access is PathAccess.WRITE_FILE and self._is_inside(os.path.dirname(end))]
        return (*(self._namesakes(os.path.basename(ends[-1])) if ends else ()), *new[:1])

    def _has_parent(self, place: Place) -> bool:
        return os.path.isdir(os.path.join(self.root, *place.parts[:-1]))

    def _said(self, path: str) -> str:
        """The path as a message says it: without the name of the workspace, if it begins with it."""
        inside = isinstance(path, str) and path.startswith(f"{self.root}/")
        return (path[len(self.root) :].lstrip("/") or ".") if inside else path

    def _candidate(self, path: str) -> str:
        """The absolute, lexically cleaned name; a second slash in front, which POSIX leaves open, means nothing."""
        return os.path.normpath(f"/{os.path.join(self.root, path).lstrip('/')}")

    def _relative(self, absolute: str) -> str | None:
        """The name below the root, or None outside it."""
        relative = os.path.relpath(absolute, self.root)
        return None if relative == ".." or relative.startswith("../") else relative

    def _refused(self, error: ToolError, path: str, relative: str) -> ToolError:
        if self._observe is not None:
            clean = os.path.normpath(path) if isinstance(path, str) else ""
            decision = {"root": self.root, "path": path, "clean": clean, "relative": relative}
            with suppress(Exception):  # an observer must not change the answer
                self._observe({**decision, "code": error.code.value})
        return error


def _ends(path: str) -> Iterator[str]:
    """The last parts of a path, eight at most and the longest end first, with "/" between them."""
    parts = [part for part in re.split(r"[/\\]", path) if part not in {"", ".", "..", "~"} and not part.endswith(":")]
    for start in range(max(0, len(parts) - 8), len(parts)):
        end = "/".join(parts[start:])
        yield f"./{end}" if names_elsewhere(end) else end


def _real_name(candidate: str) -> tuple[str, bool]:
    """The name without links, and whether nothing is there. A link to nothing counts as the name it points to."""
    try:
        try:
            return os.path.realpath(candidate, strict=True), False
        except FileNotFoundError:
            return os.path.realpath(candidate), True
    except OSError as error:
        if error.errno == errno.EINVAL:  # what was a link when it was looked at was none when it was read
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from error
        raise
