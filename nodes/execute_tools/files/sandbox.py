"""What can be a path, which folder can be a workspace, which file of it a path means, and whether it may be used.

`PathSandbox` decides on names (source: spec 2 section 4); whoever then opens the file walks to it by handle
(`handles.open_beneath`), so a link that appears between the decision and the opening is refused and not followed.

`JudgedPaths` judges each name twice: as it was asked for, and as the real name of what is then opened. A hard link
(`ln .env notes.txt`) has no target that could be judged, so a file with several names is refused if the judge denies
one that it has inside the workspace. To know its names, the workspace is gone through by handles when such a file is
first asked for; what cannot be gone through to the end counts as denied. Names outside are not looked for: package
managers (uv, pnpm) link thousands of files into a project, and a write puts a new file at the name.
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

from mendgraph.nodes.execute_tools.files import handles
from mendgraph.nodes.language.names import closest_names, names_elsewhere
from mendgraph.nodes.records import CONTENT_BYTES, JsonMap, ToolError, ToolErrorCode, invalid, os_failure, quoted

LONGEST_NAME: Final = 255
LONGEST_PATH: Final = 4096
"""Bytes. Source: NAME_MAX and PATH_MAX of Linux."""


def malformed(path: str) -> ToolError | None:
    """Why this is no path, or None. Whatever a model sends is looked at, so it need not even be a string."""
    if not isinstance(path, str) or not path.strip():
        return invalid("The path is empty: name a file or directory of the workspace.")

    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return invalid(f"The path {quoted(path)} is not valid Unicode text.")

    if b"\0" in encoded:
        return invalid(f"The path {quoted(path)} contains a NUL character.")
    if len(encoded) > LONGEST_PATH or any(len(part) > LONGEST_NAME for part in encoded.split(b"/")):
        return invalid(f"The path {quoted(path)} is too long: {LONGEST_NAME} bytes a name, {LONGEST_PATH} in all.")

    return None


def extension_denial(name: str, allowed: AbstractSet[str]) -> ToolError | None:
    """Why a file of this name may not be used, or None. `allowed` is in lower case with the dot; empty allows all.

    Source: spec 4, `allowed_exts`.
    """
    extension = os.path.splitext(name)[1]
    if not allowed or extension.lower() in allowed:
        return None

    message = f"Extension {quoted(extension)} not allowed. Allowed: {', '.join(sorted(allowed))}."
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


SYSTEM_DIRECTORIES: Final = (
    *("/etc", "/usr", "/bin", "/sbin", "/var", "/System", "/Library"),  # Source: spec 1 section 3
    *("/boot", "/dev", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sys"),
)
OPEN_DIRECTORIES: Final = ("/var/folders", "/var/tmp", "/usr/src", "/usr/local/src")  # noqa: S108 - only compared
"""Below system directories, but made for people's own files."""


StrPath = str | os.PathLike[str]
"""A path as people give it."""


def check_workspace(path: StrPath) -> str | ToolError:
    """The real, absolute name of a folder that an agent may work in, or why it may not."""
    path = os.fspath(path)
    if (no_path := malformed(path)) is not None:
        return no_path

    try:
        real = os.path.realpath(path, strict=True)
        with handles.closing(handles.open_root(real)) as root, os.scandir(root):
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
    if any(is_below(name, folder) for folder in OPEN_DIRECTORIES):
        return False

    return real == "/" or any(is_below(name, folder) for folder in SYSTEM_DIRECTORIES)


def is_below(name: str, folder: str) -> bool:
    """Return whether an absolute name is that of the folder, or of something below it."""
    return name == folder or name.startswith(f"{folder.rstrip('/')}/")


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
        if self.real == ".":
            return ()
        return tuple(self.real.split("/"))


class PathSandbox:
    """Resolves the paths of tools inside one root; anything that leads out of it is refused.

    `may_name` says which workspace-relative names an error may suggest, and `namesakes` gives the files of the whole
    workspace that are called like one that is not there. `observe` receives each refusal as a map of
    the root, the path as asked for, the cleaned path, its place relative to the root, and the error's code.
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
        """The absolute real path, or a typed error with suggestions. A new file needs its parent to exist."""
        path = os.fspath(path) if isinstance(path, os.PathLike) else path
        if isinstance(place := self.locate(path, access), ToolError):
            return place

        above = os.path.join(self.root, *place.parts[:-1])
        if place.missing and (access is not PathAccess.WRITE_FILE or not os.path.isdir(above)):
            return self.not_found(path, place.requested, access)

        return os.path.normpath(os.path.join(self.root, place.real))

    def requested_name(self, path: str) -> str | None:
        """The cleaned name relative to the root, its links unresolved; None for what is no path or leads out."""
        if malformed(path) is not None:
            return None
        return self._relative(self._candidate(path))

    def locate(self, path: str, access: PathAccess) -> Place | ToolError:
        """Where the path leads inside the root, whether or not something is there, or why it may not go there."""
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
        """The error for a name that leads nowhere, with what may have been meant."""
        kind = "directory" if access is PathAccess.LIST_DIR else "file"
        names = self.suggest(path)
        meant = " or ".join(quoted(name) for name in names)

        if meant:
            remedy = f"Did you mean {meant}?"
        else:
            remedy = "List the directory above it to see what is there."

        message = f"No such {kind}: {quoted(requested)}. {remedy}"
        return self._refused(
            ToolError(code=ToolErrorCode.NOT_FOUND, message=message, suggestions=names), path, requested
        )

    def suggest(self, path: str) -> tuple[str, ...]:
        """Up to three existing names, best first: files of that name elsewhere, then the closest to what is missing."""
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
        """The refusal of a path that is none of this workspace, as `what` says, with the one that it may mean."""
        inside = self._meant_inside(path, access)
        if inside:
            meant = f"; did you mean {' or '.join(map(quoted, inside))}?"
        else:
            meant = "."

        message = f"{quoted(path)} {what}{meant} Use a relative path under '.'."
        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message, suggestions=inside or (".",))

    def _meant_inside(self, path: str, access: PathAccess) -> tuple[str, ...]:
        """The longest end of a path that is there, as models like to invent a front; else what is called like it.

        For what is to be written the longest end that may be made is the last of these.
        """
        ends = [end for end in _ends(path) if end.isprintable() and self._may_name(end)]
        if inside := [end for end in ends if self._is_inside(end)]:
            return (inside[0],)

        free = [end for end in ends if not os.path.lexists(os.path.join(self.root, end))]  # a link may lead out
        new = [end for end in free if access is PathAccess.WRITE_FILE and self._is_inside(os.path.dirname(end))]
        return (*(self._namesakes(os.path.basename(ends[-1])) if ends else ()), *new[:1])

    def _display_path(self, path: str) -> str:
        """The path as a message says it: without the name of the workspace, if it begins with it."""
        if isinstance(path, str) and path.startswith(f"{self.root}/"):
            return path[len(self.root) :].lstrip("/") or "."

        return path

    def _candidate(self, path: str) -> str:
        """The absolute, lexically cleaned name; a second slash in front, which POSIX leaves open, means nothing."""
        return os.path.normpath(f"/{os.path.join(self.root, path).lstrip('/')}")

    def _existing_form(self, candidate: str) -> str:
        """The name as the disk has it, where that differs in its Unicode normal form alone."""
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


# --- Names that are judged

MOST_FILES: Final = 500_000
"""Files that are looked at: a monorepo with its packages has fewer."""

_Linked = dict[tuple[int, int], tuple[int, list[str]]]
"""By device and number of a file with several names: how many it has, and those inside the workspace."""


class HardLinks:
    """The files of one workspace that have several names; `judge` answers about one of them. May be used by threads."""

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
        """Why the file that is open or was found under `name` may not be used because of another name, or None.

        `status` gives what the file is now; its OSError is passed on. `holds` denies a name for what the file holds.
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
    message = f"{quoted(name)} has other names (hard links), and whether one is denied cannot be told: {reason}."
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=f"{message} Go on without it.")


PathJudge = Callable[[str, bool], ToolError | None]
"""(workspace-relative posix path, for writing?) -> the denial, or None. Guard's rules, handed in by `build`."""

ContentJudge = Callable[[str], Callable[[bytes], ToolError | None] | None]
"""The same for what a file of this name holds: what judges its first `CONTENT_BYTES`, or None where nothing does."""


class JudgedPaths(PathSandbox):
    """The sandbox and the judge together. `observe` receives the sandbox's refusals.

    `allowed_extensions` are those of the files that may be read or written, in lower case with the dot; empty allows
    all. Directories have none. Source: spec 4, `allowed_exts`. `contents` judges what the files hold, `namesakes` are
    the sandbox's.
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
        """The same for files that are read for our own use, such as `.gitignore`: without the extensions."""
        view = copy(self)
        view._extensions = frozenset()  # noqa: SLF001 - its own kind
        return view

    def place(self, path: str, access: PathAccess) -> Place | ToolError:
        """Where the path leads, if the name asked for and the real one may both be used.

        The name asked for is judged before anything is looked up, so a denial does not tell what is there.
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
        """The same, or NOT_FOUND with what may have been meant."""
        place = self.place(path, access)
        if isinstance(place, Place) and place.missing:
            return self.not_found(path, place.requested, access)
        return place

    def leads_to(self, path: str, access: PathAccess) -> str | ToolError:
        r"""The real name of where a path leads, of which nothing is judged, or why it may not go there.

        `src\a.py` is refused where no file is called so: `src/a.py` is meant.
        """
        place = self.locate(path, access)
        if isinstance(place, ToolError):
            return place
        if not place.missing or "\\" not in path:
            return place.real
        return self.outside(path, access, "does not exist, and '/' stands between names")

    def opened_name(self, descriptor: int, root_fd: int, place: Place, *, for_write: bool) -> str | ToolError:
        """The real name of the file or directory that is open, judged; the walked name where the kernel knows none."""
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
        denial_of_content = partial(self.held_denial, read=lambda: os.pread(descriptor, CONTENT_BYTES, 0))
        denial = denial or denial_of_content(place.requested) or denial_of_content(name)
        status = partial(os.fstat, descriptor)
        return denial or self._hard_links.denial(name, status, for_write=for_write, holds=denial_of_content) or name

    def denied_file(self, path: str, *, for_write: bool = False) -> ToolError | None:
        """Why a file may not be used under this path, whether or not it is there, or None.

        For those who read files in another way than by opening them here: the file's other names count as well.
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
                denial_of_content = partial(self.held_denial, read=partial(handles.beginning, root, place.parts))
                denial = denial_of_content(place.requested) or denial_of_content(place.real)
                return denial or self._hard_links.denial(
                    place.real, status, for_write=for_write, holds=denial_of_content
                )
        except OSError as error:
            return os_failure(error, "look at", place.requested)

    def denial(self, name: str, *, for_write: bool) -> ToolError | None:
        """The judge's answer about a workspace-relative name; a judge that breaks denies."""
        try:
            return self._judge(name, for_write)
        except Exception as error:  # noqa: BLE001 - a rule that breaks must not open the door
            return _unjudged(name, error)

    def held_denial(self, name: str, read: Callable[[], bytes]) -> ToolError | None:
        """Why a file may not be used under this workspace-relative name for what it holds, or None.

        `read` gives its first `CONTENT_BYTES`, and is called only where they matter; where it fails, that denies.
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
