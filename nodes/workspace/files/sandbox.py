"""Resolves and judges paths: which file of the workspace a path means, and whether it may be used.

`PathSandbox` decides on names (source: spec 2 section 4); the file is then opened by handles (`handles.open_beneath`),
so that a link that appears in between is refused and not followed.

`JudgedPaths` judges each name twice: as it was requested, and as the real name of the opened file. A file with several
names (hard links) is refused if one of its names inside the workspace is denied, or if the search for them is
incomplete. Names outside are not searched: package managers (uv, pnpm) link thousands of files into a project.
"""

import errno
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Sequence, Set as AbstractSet
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, Self
from unicodedata import normalize

from mendgraph.nodes.language.names import closest_names, names_elsewhere
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import CONTENT_BYTES, JsonMap, ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files import handles

LONGEST_NAME: Final = 255
LONGEST_PATH: Final = 4096
"""Bytes. Source: NAME_MAX and PATH_MAX of Linux."""


def malformed(path: str) -> ToolError | None:
    """Return the error if this is not a path, or None. A model may send anything, also what is not a string."""
    if not isinstance(path, str):
        return invalid(f"The path is {type(path).__name__}, not a text: name a file or directory of the workspace.")
    if not path.strip():
        return invalid("The path is empty: name a file or directory of the workspace.")

    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return invalid(f"The path {quoted(path)} is not valid Unicode text.")

    if b"\0" in encoded:
        return invalid(f"The path {quoted(path)} contains a NUL character.")
    if len(encoded) > LONGEST_PATH or max(map(len, encoded.split(b"/"))) > LONGEST_NAME:
        return invalid(f"The path {quoted(path)} is too long: {LONGEST_NAME} bytes a name, {LONGEST_PATH} in all.")

    return None


def extension_denial(name: str, allowed: AbstractSet[str]) -> ToolError | None:
    """Return the refusal of a file with this name, or None. `allowed` is in lower case with the dot; empty allows all.

    Source: spec 4, `allowed_exts`.
    """
    extension = os.path.splitext(name)[1]
    if not allowed or extension.lower() in allowed:
        return None

    message = f"Extension {quoted(extension)} not allowed. Allowed: {', '.join(sorted(allowed))}."
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


SYSTEM_DIRECTORIES: Final = (
    *("/etc/", "/usr/", "/bin/", "/sbin/", "/var/", "/System/", "/Library/"),  # Source: spec 1 section 3
    *("/boot/", "/dev/", "/lib/", "/lib32/", "/lib64/", "/proc/", "/run/", "/sys/"),
)
OPEN_DIRECTORIES: Final = ("/var/folders/", "/var/tmp/", "/usr/src/", "/usr/local/src/")  # noqa: S108 - only compared
"""Directories for the user's files below system directories."""


StrPath = str | os.PathLike[str]
"""A path as callers of the API pass it."""


def check_workspace(path: StrPath) -> str | ToolError:
    """Return the real, absolute name of the folder, or the error if it cannot be a workspace."""
    path = os.fspath(path)
    if (no_path := malformed(path)) is not None:
        return no_path

    try:
        real = os.path.realpath(path, strict=True)
        with handles.closing(handles.open_root(real)) as root, os.scandir(root):
            pass
    except FileNotFoundError:
        message = f"The workspace {quoted(path)} does not exist: create the folder, or name another one."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)
    except OSError as error:
        return os_failure(error, "use as workspace", path)

    if not is_system_directory(real):
        return malformed(real) or real

    message = f"The workspace {quoted(path)} is a system directory: choose a project folder."
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


def is_system_directory(real: str) -> bool:
    """Return whether this real name is a system directory or lies below one."""
    name = f"{real.removeprefix('/private')}/"  # macOS keeps /etc, /tmp and /var there
    if name.startswith(OPEN_DIRECTORIES):
        return False

    return real == "/" or name.startswith(SYSTEM_DIRECTORIES)


def is_below(name: str, folder: str) -> bool:
    """Return whether an absolute name is that of the folder, or of something below it."""
    return name == folder or name.startswith(f"{folder.rstrip('/')}/")


MAGIC_DIRECTORIES: Final = ("/proc/", "/dev/")
"""Names there lead to open files of processes."""


class PathAccess(StrEnum):
    """The purpose of a path."""

    READ_FILE = "read_file"
    WRITE_FILE = "write_file"
    LIST_DIR = "list_dir"


@dataclass(frozen=True)
class Place:
    """The target of a path: both names are relative to the workspace, "." is the workspace itself.

    `requested` is the requested name, normalized but with its links; `real` has no links. `missing`: nothing is there.
    """

    requested: str
    real: str
    missing: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the real name."""
        if self.real == ".":
            return ()
        return tuple(self.real.split("/"))


class PathSandbox:
    """Resolves the paths of tools inside one root, and refuses paths that lead out of it.

    `may_name` decides which workspace-relative names an error may suggest, and `namesakes` returns the files of the
    workspace with the same name as a missing one. `observe` receives each refusal as a map of the root, the requested
    path, the normalized path, its name relative to the root, and the code of the error.
    """

    def __init__(
        self,
        root: StrPath,
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

    def resolve(self, path: StrPath, access: PathAccess) -> str | ToolError:
        """Return the absolute real path, or a typed error with suggestions. The parent of a new file has to exist."""
        path = os.fspath(path) if isinstance(path, os.PathLike) else path
        if isinstance(place := self.locate(path, access), ToolError):
            return place

        above = os.path.join(self.root, *place.parts[:-1])
        if place.missing and (access is not PathAccess.WRITE_FILE or not os.path.isdir(above)):
            return self.not_found(path, place.requested, access)

        return os.path.normpath(os.path.join(self.root, place.real))

    def requested_name(self, path: str) -> str | None:
        """Return the normalized name relative to the root, with its links; None if it is not a path or leads out."""
        if malformed(path) is not None:
            return None
        return self._relative(self._candidate(path))

    def locate(self, path: str, access: PathAccess) -> Place | ToolError:
        """Return the target of the path inside the root, which may be missing, or the refusal."""
        display = self._display_path(path)
        if (no_path := malformed(display)) is not None:
            return self._refused(no_path, path, "")
        if names_elsewhere(path) and not os.path.lexists(self._candidate(path)):
            return self._refused(self.outside(path, access), path, os.path.normpath(path))

        candidate = self._candidate(path)
        requested = self._relative(candidate)
        if requested is None and (not os.path.isabs(path) or candidate.startswith(MAGIC_DIRECTORIES)):
            return self._refused(self.outside(path, access), path, os.path.relpath(candidate, self.root))

        try:
            real, missing = _real_name(self._existing_form(candidate))
        except OSError as error:
            return self._refused(os_failure(error, "resolve", display), path, requested or candidate)

        relative = self._relative(real)
        if relative is None:
            return self._refused(self.outside(path, access), path, os.path.relpath(real, self.root))

        if display.endswith(("/", "/.")) and access is not PathAccess.LIST_DIR:
            message = f"The path {quoted(display)} names a directory, and a file is needed."
            return self._refused(invalid(message, requested or relative), path, relative)

        no_path = malformed(relative)  # a link may lead to a name that no path can spell
        if no_path is not None:
            return self._refused(no_path, path, relative)

        return Place(requested or candidate.lstrip("/"), relative, missing)

    def not_found(self, path: str, requested: str, access: PathAccess) -> ToolError:
        """Return the error for a missing file, with suggestions."""
        kind = "directory" if access is PathAccess.LIST_DIR else "file"
        names = self.suggest(path)
        remedy = "List the directory above it to see what is there."
        if names:
            remedy = f"Did you mean {' or '.join(map(quoted, names))}?"

        message = f"No such {kind}: {quoted(requested)}. {remedy}"
        return self._refused(
            ToolError(code=ToolErrorCode.NOT_FOUND, message=message, suggestions=names), path, requested
        )

    def suggest(self, path: str) -> tuple[str, ...]:
        """Return up to three existing names, best first: files with that name elsewhere, then similar names."""
        place = self.locate(path, PathAccess.LIST_DIR)
        if isinstance(place, ToolError) or not place.missing:
            return ()

        existing_parts, names = self._deepest(place.parts)
        missing = place.parts[len(existing_parts) : len(existing_parts) + 1]
        following = place.parts[len(existing_parts) + 1 :]

        if not missing:
            return ()

        candidates = ("/".join((*existing_parts, name)) for name in closest_names(missing[0], names, len(names)))
        complete = (
            candidate if self._is_inside(candidate := "/".join((name, *following))) else name for name in candidates
        )
        close = (name for name in complete if self._is_inside(name) and self._may_name(name))

        return tuple(dict.fromkeys((*self._namesakes(place.parts[-1]), *close)))[:3]

    def _deepest(self, parts: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
        for length in range(len(parts), -1, -1):
            with (
                suppress(OSError),
                handles.closing(handles.open_root(self.root)) as root,
                handles.closing(handles.open_directory(root, parts[:length])) as folder_fd,
            ):
                return parts[:length], [name for name in os.listdir(folder_fd) if malformed(name) is None]

        return (), []

    def _is_inside(self, relative: str) -> bool:
        try:
            return self._relative(os.path.realpath(os.path.join(self.root, relative), strict=True)) is not None
        except OSError:
            return False

    def outside(self, path: str, access: PathAccess, what: str = "is outside the workspace") -> ToolError:
        """Return the refusal of a path, for the reason `what`, with suggestions."""
        inside = self._meant_inside(path, access)
        if inside:
            meant = f"; did you mean {' or '.join(map(quoted, inside))}?"
        else:
            meant = "."

        message = f"{quoted(path)} {what}{meant} Use a relative path under '.'."
        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message, suggestions=inside or (".",))

    def _meant_inside(self, path: str, access: PathAccess) -> tuple[str, ...]:
        """Return suggestions: the longest existing end of the path, as models invent its start; else namesakes.

        For a file that is to be written, the last suggestion is the longest end that can be created.
        """
        ends = [end for end in _ends(path) if end.isprintable() and self._may_name(end)]
        if inside := [end for end in ends if self._is_inside(end)]:
            return (inside[0],)

        free = [end for end in ends if not os.path.lexists(os.path.join(self.root, end))]  # a link may lead out
        new = [end for end in free if access is PathAccess.WRITE_FILE and self._is_inside(os.path.dirname(end))]
        return (*(self._namesakes(os.path.basename(ends[-1])) if ends else ()), *new[:1])

    def _display_path(self, path: str) -> str:
        """Return the path for messages: without the name of the workspace at its start."""
        if isinstance(path, str) and path.startswith(f"{self.root}/"):
            return path[len(self.root) :].lstrip("/") or "."

        return path

    def _candidate(self, path: str) -> str:
        """Return the absolute, lexically normalized name; a second slash at its start has no meaning."""
        return os.path.normpath(f"/{os.path.join(self.root, path).lstrip('/')}")

    def _existing_form(self, candidate: str) -> str:
        """Return the name in the Unicode normal form of the existing file."""
        if candidate.isascii() or os.path.lexists(candidate) or not candidate.startswith(f"{self.root}/"):
            return candidate

        parts = candidate.removeprefix(f"{self.root}/").split("/")
        with suppress(OSError), handles.closing(handles.open_root(self.root)) as root:
            for place, part in enumerate(parts):
                with handles.closing(handles.open_directory(root, parts[:place])) as folder:
                    names = os.listdir(folder)

                if part not in names:
                    part_wanted = normalize("NFC", part)
                    parts[place] = next((name for name in names if normalize("NFC", name) == part_wanted), part)

        return os.path.join(self.root, *parts)

    def _relative(self, absolute: str) -> str | None:
        relative = os.path.relpath(absolute, self.root)
        if relative == ".." or relative.startswith("../"):
            return None
        return relative

    def _refused(self, error: ToolError, path: str, relative: str) -> ToolError:
        if self._observe is not None:
            clean = os.path.normpath(path) if isinstance(path, str) else ""
            decision = {"root": self.root, "path": path, "clean": clean, "relative": relative}
            with suppress(Exception):  # an observer must not change the answer
                self._observe({**decision, "code": error.code.value})

        return error


def _ends(path: str) -> Iterator[str]:
    """Yield the ends of a path, of eight parts at most, the longest first."""
    parts = [part for part in re.split(r"[/\\]", path) if part not in {"", ".", "..", "~"} and not part.endswith(":")]
    for start in range(max(0, len(parts) - 8), len(parts)):
        end = "/".join(parts[start:])
        yield f"./{end}" if names_elsewhere(end) else end


def _real_name(candidate: str) -> tuple[str, bool]:
    """Return the name without links, and whether nothing is there. A broken link counts as its target."""
    try:
        try:
            return os.path.realpath(candidate, strict=True), False
        except FileNotFoundError:
            return os.path.realpath(candidate), True
    except OSError as error:
        if error.errno == errno.EINVAL:  # what was a link when it was looked at was none when it was read
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from error
        raise


# --- Names that are judged

MOST_FILES: Final = 500_000
"""Files that are searched; a monorepo with its packages has fewer."""

_Linked = dict[tuple[int, int], tuple[int, list[str]]]
"""By device and inode number of a file with several names: their number, and those inside the workspace."""


class HardLinks:
    """The files of one workspace that have several names; `judge` judges one of them. It is thread-safe."""

    def __init__(self, root: str, judge: Callable[[str, bool], ToolError | None]) -> None:
        self._root = root
        self._judge = judge
        self._lock = threading.Lock()
        self._linked: _Linked = {}

    def denial(
        self,
        name: str,
        status: Callable[[], os.stat_result],
        *,
        for_write: bool,
        holds: Callable[[str], ToolError | None] = lambda _: None,
    ) -> ToolError | None:
        """Return the refusal of the file `name` because of another one of its names, or None.

        `status` returns the file's present status; its OSError is passed on. `holds` judges a name by the content.
        """
        status_now = status()
        if not _has_several_names(status_now):
            return None

        with self._lock:
            count, names = self._linked.get((status_now.st_dev, status_now.st_ino), (0, []))
            if count != status_now.st_nlink or name not in names:
                try:
                    self._linked = _linked_files(self._root)
                except (OSError, RecursionError) as error:
                    return _unknown(name, f"the workspace cannot be gone through ({error})")

                status_now = status()  # a file that is made may have a second name for a moment
                names = self._linked.get((status_now.st_dev, status_now.st_ino), (0, []))[1]
        if _has_several_names(status_now) and name not in names:
            return _unknown(name, "it is not where it was a moment ago")
        for other in names:
            if self._judge(other, for_write) is not None or holds(other) is not None:
                message = f"{quoted(name)} is the same file as {quoted(other)}, which is denied. Go on without it."
                return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)
        return None


def _has_several_names(status: os.stat_result) -> bool:
    return status.st_nlink > 1 and stat.S_ISREG(status.st_mode)


def _linked_files(root: str) -> _Linked:
    linked: _Linked = {}
    seen = 0
    with handles.closing(handles.open_root(root)) as top:
        for folder, _, names, folder_fd in os.fwalk(".", dir_fd=top, onerror=_raise_unless_gone):
            seen += len(names)
            if seen > MOST_FILES:
                raise OSError(0, "it is too large")
            for name in names:
                with suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
                    if _has_several_names(status):
                        links = linked.setdefault((status.st_dev, status.st_ino), (status.st_nlink, []))
                        links[1].append(os.path.normpath(os.path.join(folder, name)))
    return linked


def _raise_unless_gone(error: OSError) -> None:
    if error.errno != errno.ENOENT:
        raise error


def _unknown(name: str, reason: str) -> ToolError:
    message = f"{quoted(name)} has other names (hard links), and it is unknown whether one is denied: {reason}."
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=f"{message} Go on without it.")


PathJudge = Callable[[str, bool], ToolError | None]
"""(workspace-relative posix path, for writing?) -> the denial, or None: the rules of the guard."""

ContentJudge = Callable[[str], Callable[[bytes], ToolError | None] | None]
"""Returns the judge of the first `CONTENT_BYTES` of a file with this name, or None if its content is not judged."""


class JudgedPaths(PathSandbox):
    """A sandbox that also judges paths. `observe` and `namesakes` are those of `PathSandbox`.

    `allowed_extensions` are those of the files that may be read or written, in lower case with the dot; empty allows
    all. Source: spec 4, `allowed_exts`. `contents` judges the content of files.
    """

    def __init__(
        self,
        root: str,
        judge: PathJudge,
        observe: Callable[[JsonMap], None] | None = None,
        allowed_extensions: frozenset[str] = frozenset(),
        contents: ContentJudge = lambda _: None,
        namesakes: Callable[[str], Sequence[str]] = lambda _: (),
    ) -> None:
        self._judge = judge
        self._contents = contents
        self._extensions = allowed_extensions
        super().__init__(root, may_name=self._may_suggest, namesakes=namesakes, observe=observe)
        self._hard_links = HardLinks(self.root, lambda name, for_write: self.denial(name, for_write=for_write))

    def of_any_extension(self) -> Self:
        """Return a sandbox without the limit on extensions, for files that we read ourselves, such as `.gitignore`."""
        view = copy(self)
        view._extensions = frozenset()  # noqa: SLF001 - its own kind
        return view

    def place(self, path: str, access: PathAccess) -> Place | ToolError:
        """Return the target of the path if both its requested and its real name may be used.

        The requested name is judged before the file system is accessed, so that a denial does not reveal what is there.
        """
        requested = self.requested_name(path)
        if requested is not None:
            denial = self._denial_for(requested, access)
            if denial is not None:
                return denial
        place = self.locate(path, access)
        if isinstance(place, ToolError):
            return place
        for name in sorted({place.requested, place.real} - {requested}):
            denial = self._denial_for(name, access)
            if denial is not None:
                return denial
        return place

    def existing(self, path: str, access: PathAccess) -> Place | ToolError:
        """Like `place`, with NOT_FOUND and suggestions for a missing file."""
        place = self.place(path, access)
        if isinstance(place, Place) and place.missing:
            return self.not_found(path, place.requested, access)
        return place

    def leads_to(self, path: str, access: PathAccess) -> str | ToolError:
        r"""Return the real name of the target of a path, which is not judged, or the refusal.

        `src\a.py` is refused if no file has this name: `src/a.py` is meant.
        """
        place = self.locate(path, access)
        if isinstance(place, ToolError):
            return place
        if not place.missing or "\\" not in path:
            return place.real
        return self.outside(path, access, "does not exist, and '/' stands between names")

    def opened_name(self, descriptor: int, root_fd: int, place: Place, *, for_write: bool) -> str | ToolError:
        """Return the judged real name of an open file or directory; without the kernel's name that of `place`."""
        root = handles.handle_name(root_fd)
        absolute = handles.handle_name(descriptor)
        if root is None or absolute is None:
            name = place.real
        else:
            name = os.path.relpath(absolute, root)
        if name == ".." or name.startswith("../"):
            return os_failure(OSError(errno.ESTALE, ""), "open", place.requested)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            return self.denial(name, for_write=for_write) or name
        denial = self._denial_for(name, PathAccess.WRITE_FILE if for_write else PathAccess.READ_FILE)
        denial_of_content = partial(self.content_denial, read=lambda: os.pread(descriptor, CONTENT_BYTES, 0))
        denial = denial or denial_of_content(place.requested) or denial_of_content(name)
        status = partial(os.fstat, descriptor)
        return denial or self._hard_links.denial(name, status, for_write=for_write, holds=denial_of_content) or name

    def denied_file(self, path: str, *, for_write: bool = False) -> ToolError | None:
        """Return the refusal of a file, which may be missing, or None.

        It is for code that reads files in another way than by opening them here, and judges all names of the file.
        """
        place = self.place(path, PathAccess.WRITE_FILE if for_write else PathAccess.READ_FILE)
        if isinstance(place, ToolError):
            return place
        if place.missing:
            return None
        try:
            with handles.closing(handles.open_root(self.root)) as root:
                status = partial(handles.status_beneath, root, place.parts)
                if not stat.S_ISREG(status().st_mode):
                    return None
                denial_of_content = partial(
                    self.content_denial, read=partial(handles.read_beginning, root, place.parts)
                )
                denial = denial_of_content(place.requested) or denial_of_content(place.real)
                return denial or self._hard_links.denial(
                    place.real, status, for_write=for_write, holds=denial_of_content
                )
        except OSError as error:
            return os_failure(error, "look at", place.requested)

    def denial(self, name: str, *, for_write: bool) -> ToolError | None:
        """Return the denial of a workspace-relative name, or None; a judge that raises denies."""
        try:
            return self._judge(name, for_write)
        except Exception as error:  # noqa: BLE001 - a rule that breaks must not open the door
            return _unjudged(name, error)

    def content_denial(self, name: str, read: Callable[[], bytes]) -> ToolError | None:
        """Return the denial of a file under this workspace-relative name because of its content, or None.

        `read` returns its first `CONTENT_BYTES`, and is called only if they matter; a failure denies.
        """
        try:
            judge = self._contents(name)
            return None if judge is None else judge(read())
        except Exception as error:  # noqa: BLE001 - a rule that breaks must not open the file
            return _unjudged(name, error)

    def _denial_for(self, name: str, access: PathAccess) -> ToolError | None:
        denial = self.denial(name, for_write=access is PathAccess.WRITE_FILE)
        if denial is not None or access is PathAccess.LIST_DIR:
            return denial
        return extension_denial(name, self._extensions)

    def _may_suggest(self, name: str) -> bool:
        if self._denial_for(name, PathAccess.READ_FILE) is None:
            return True
        return self.denial(name, for_write=False) is None and self._is_directory(name)

    def _is_directory(self, name: str) -> bool:
        with suppress(OSError), handles.closing(handles.open_root(self.root)) as root:
            return stat.S_ISDIR(handles.status_beneath(root, name.split("/")).st_mode)
        return False


def _unjudged(name: str, error: Exception) -> ToolError:
    message = f"{quoted(name)} could not be judged ({type(error).__name__}), so it is denied."
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)
