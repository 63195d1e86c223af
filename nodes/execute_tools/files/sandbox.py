"""What can be a path, which folder can be a workspace, and which file of it a path means. Source: spec 2 section 4.

`PathSandbox` decides on names; whoever then opens the file walks to it by handle (`handles.open_beneath`), so a link
that appears between the decision and the opening is refused and not followed.
"""

import errno
import os
import os.path
import re
from collections.abc import Callable, Iterator, Sequence, Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mendgraph.nodes.execute_tools.files.failures import os_failure, quoted
from mendgraph.nodes.execute_tools.files.handles import closing, open_directory, open_root
from mendgraph.nodes.language.names import closest_names, names_elsewhere
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode

LONGEST_NAME: Final = 255
LONGEST_PATH: Final = 4096
"""Bytes. Source: NAME_MAX and PATH_MAX of Linux."""


def malformed(path: str) -> ToolError | None:
    """Why this is no path, or None. Whatever a model sends is looked at, so it need not even be a string."""
    if not isinstance(path, str) or not path.strip():
        return _invalid("The path is empty: name a file or directory of the workspace.")
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return _invalid(f"The path {quoted(path)} is not valid Unicode text.")
    if b"\0" in encoded:
        return _invalid(f"The path {quoted(path)} contains a NUL character.")
    if len(encoded) > LONGEST_PATH or any(len(part) > LONGEST_NAME for part in encoded.split(b"/")):
        return _invalid(f"The path {quoted(path)} is too long: {LONGEST_NAME} bytes a name, {LONGEST_PATH} in all.")
    return None


def names_no_file(path: str, meant: str) -> ToolError | None:
    """Why this path can only name a directory, with the name that may be meant instead, or None."""
    if not path.endswith(("/", "/.")):
        return None
    return _invalid(f"The path {quoted(path)} names a directory, and a file is needed.", meant)


def extension_denial(name: str, allowed: AbstractSet[str]) -> ToolError | None:
    """Why a file of this name may not be used, or None. `allowed` is in lower case with the dot; empty allows all.

    Source: spec 4, `allowed_exts`.
    """
    extension = os.path.splitext(name)[1]
    if not allowed or extension.lower() in allowed:
        return None
    message = f"Extension {quoted(extension)} not allowed. Allowed: {', '.join(sorted(allowed))}."
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


def _invalid(message: str, *suggestions: str) -> ToolError:
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message, suggestions=suggestions)


SYSTEM_DIRECTORIES: Final = (
    *("/etc", "/usr", "/bin", "/sbin", "/var", "/System", "/Library"),  # Source: spec 1 section 3
    *("/boot", "/dev", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sys"),
)
OPEN_DIRECTORIES: Final = ("/var/folders", "/var/tmp", "/usr/src", "/usr/local/src")  # noqa: S108 - only compared
"""Below system directories, but made for people's own files."""


def check_workspace(path: str) -> str | ToolError:
    """The real, absolute name of a folder that an agent may work in, or why it may not."""
    no_path = malformed(path)
    if no_path is not None:
        return no_path
    try:
        real = os.path.realpath(path, strict=True)
        with closing(open_root(real)) as root, os.scandir(root):
            pass
    except FileNotFoundError:
        message = f"The workspace {quoted(path)} does not exist: make the folder, or name another one."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)
    except OSError as error:
        return os_failure(error, "use as workspace", path)
    if not is_system_directory(real):
        return malformed(real) or real
    message = f"The workspace {quoted(path)} is a system directory: choose a project folder."
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


def is_system_directory(real: str) -> bool:
    """Whether this real name is the system's own."""
    name = real.removeprefix("/private")  # macOS keeps /etc, /tmp and /var there
    if any(_is_below(name, each) for each in OPEN_DIRECTORIES):
        return False
    return real == "/" or any(_is_below(name, each) for each in SYSTEM_DIRECTORIES)


def _is_below(name: str, directory: str) -> bool:
    return name == directory or name.startswith(f"{directory}/")


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
        above = os.path.join(self.root, *place.parts[:-1])
        if place.missing and (access is not PathAccess.WRITE_FILE or not os.path.isdir(above)):
            return self.not_found(path, place.requested, access)
        return os.path.normpath(os.path.join(self.root, place.real))

    def requested_name(self, path: str) -> str | None:
        """The cleaned name relative to the root, its links unresolved; None for what is no path or leads out."""
        return None if malformed(path) is not None else self._relative(self._candidate(path))

    def locate(self, path: str, access: PathAccess) -> Place | ToolError:
        """Where the path leads inside the root, whether or not something is there, or why it may not go there."""
        said = self._shown(path)
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

    def _shown(self, path: str) -> str:
        """The path as a message says it: without the name of the workspace, if it begins with it."""
        inside = isinstance(path, str) and path.startswith(f"{self.root}/")
        return (path[len(self.root) :].lstrip("/") or ".") if inside else path

    def _candidate(self, path: str) -> str:
        """The absolute, lexically cleaned name; a second slash in front, which POSIX leaves open, means nothing."""
        return os.path.normpath(f"/{os.path.join(self.root, path).lstrip('/')}")

    def _relative(self, absolute: str) -> str | None:
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
