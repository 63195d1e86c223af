"""Each name is judged twice: as it was asked for, and as the real name of what is then opened.

A hard link (`ln .env notes.txt`) has no target that could be judged; it is the same file. So a file with several names
is refused, for reading and for writing, if the judge denies one that it has inside the workspace. To know its names,
the workspace is gone through once, by handles, denied directories included, and not before such a file is asked for.
What cannot be gone through to the end counts as denied.

A name that the file has outside the workspace is not looked for: package managers (uv, pnpm) link thousands of files
into a project, and only who may read a file can make a link to it. A write never changes the file outside, because it
puts a new file at the name instead of writing into the old one. Against a program that moves files about at this very
moment the rule is no defence; that program can read the file itself.
"""

import errno
import os
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Final, Self

from mendgraph.nodes.execute_tools.files.failures import os_failure, quoted
from mendgraph.nodes.execute_tools.files.handles import beginning, closing, handle_name, open_root, status_beneath
from mendgraph.nodes.execute_tools.files.sandbox import PathAccess, PathSandbox, Place, extension_denial
from mendgraph.nodes.records import CONTENT_BYTES, JsonMap, ToolError, ToolErrorCode

MOST_FILES: Final = 500_000
"""Files that are looked at: a monorepo with its packages has fewer."""

_Linked = dict[tuple[int, int], tuple[int, list[str]]]
"""By device and number of a file with several names: how many it has, and those inside the workspace."""


class HardLinks:
    """The files of one workspace that have several names; `judge` answers about one of them. May be used by threads."""

    def __init__(self, root: str, judge: Callable[[str, bool], ToolError | None]) -> None:
        self._root, self._judge = root, judge
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
        found = status()
        if not _has_several_names(found):
            return None
        with self._lock:
            count, names = self._linked.get((found.st_dev, found.st_ino), (0, []))
            if count != found.st_nlink or name not in names:
                try:
                    self._linked = _linked_files(self._root)
                except (OSError, RecursionError) as error:
                    return _unknown(name, f"the workspace cannot be gone through ({error})")
                found = status()  # a file that is made may have a second name for a moment
                names = self._linked.get((found.st_dev, found.st_ino), (0, []))[1]
        if _has_several_names(found) and name not in names:
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
    with closing(open_root(root)) as top:
        for folder, _, names, here in os.fwalk(".", dir_fd=top, onerror=_raise_unless_gone):
            seen += len(names)
            if seen > MOST_FILES:
                raise OSError(0, "it is too large")
            for name in names:
                with suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=here, follow_symlinks=False)
                    if _has_several_names(status):
                        known = linked.setdefault((status.st_dev, status.st_ino), (status.st_nlink, []))
                        known[1].append(os.path.normpath(os.path.join(folder, name)))
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


class JudgedPaths:
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
        self._judge, self._contents = judge, contents
        self._extensions = allowed_extensions
        self._sandbox = PathSandbox(root, may_name=self._may_name, namesakes=namesakes, observe=observe)
        self.root = self._sandbox.root
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
        requested = self._sandbox.requested_name(path)
        denial = None if requested is None else self._denial_for(requested, access)
        if denial is not None:
            return denial
        place = self._sandbox.locate(path, access)
        if isinstance(place, ToolError):
            return place
        names = {place.requested, place.real} - {requested}
        denials = (self._denial_for(name, access) for name in sorted(names))
        return next((each for each in denials if each is not None), place)

    def existing(self, path: str, access: PathAccess) -> Place | ToolError:
        """The same, or NOT_FOUND with what may have been meant."""
        place = self.place(path, access)
        if isinstance(place, Place) and place.missing:
            return self._sandbox.not_found(path, place.requested, access)
        return place

    def leads_to(self, path: str, access: PathAccess) -> str | ToolError:
        r"""The real name of where a path leads, of which nothing is judged, or why it may not go there.

        `src\a.py` is refused where no file is called so: `src/a.py` is meant.
        """
        place = self._sandbox.locate(path, access)
        if isinstance(place, ToolError) or not (place.missing and "\\" in path):
            return place if isinstance(place, ToolError) else place.real
        return self._sandbox.outside(path, access, "does not exist, and '/' stands between names")

    def opened_name(self, descriptor: int, root_fd: int, place: Place, *, for_write: bool) -> str | ToolError:
        """The real name of the file or directory that is open, judged; the walked name where the kernel knows none."""
        root, absolute = handle_name(root_fd), handle_name(descriptor)
        name = place.real if root is None or absolute is None else os.path.relpath(absolute, root)
        if name == ".." or name.startswith("../"):
            return os_failure(OSError(errno.ESTALE, ""), "open", place.requested)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            return self.denial(name, for_write=for_write) or name
        denial = self._denial_for(name, PathAccess.WRITE_FILE if for_write else PathAccess.READ_FILE)
        held = partial(self.held_denial, read=lambda: os.pread(descriptor, CONTENT_BYTES, 0))
        denial = denial or held(place.requested) or held(name)
        status = partial(os.fstat, descriptor)
        return denial or self._hard_links.denial(name, status, for_write=for_write, holds=held) or name

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
            with closing(open_root(self.root)) as root:
                status = partial(status_beneath, root, place.parts)
                if not stat.S_ISREG(status().st_mode):
                    return None
                held = partial(self.held_denial, read=partial(beginning, root, place.parts))
                denial = held(place.requested) or held(place.real)
                return denial or self._hard_links.denial(place.real, status, for_write=for_write, holds=held)
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

    def suggest(self, path: str) -> tuple[str, ...]:
        """Up to three closest existing names that may be read, best first."""
        return self._sandbox.suggest(path)

    def _denial_for(self, name: str, access: PathAccess) -> ToolError | None:
        denial = self.denial(name, for_write=access is PathAccess.WRITE_FILE)
        if denial is not None or access is PathAccess.LIST_DIR:
            return denial
        return extension_denial(name, self._extensions)

    def _may_name(self, name: str) -> bool:
        if self._denial_for(name, PathAccess.READ_FILE) is None:
            return True
        return self.denial(name, for_write=False) is None and self._is_directory(name)

    def _is_directory(self, name: str) -> bool:
        with suppress(OSError), closing(open_root(self.root)) as root:
            return stat.S_ISDIR(status_beneath(root, name.split("/")).st_mode)
        return False


def _unjudged(name: str, error: Exception) -> ToolError:
    message = f"{quoted(name)} could not be judged ({type(error).__name__}), so it is denied."
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)
