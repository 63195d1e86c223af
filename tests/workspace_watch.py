"""Check in all tests that the product opens files of a workspace by handle, and only in packages with effects.

An audit hook gets each open, list and change operation of Python in all threads. `Workspace` reports the folders to
watch. `stat` and `readlink` raise no audit event, and programs that a test starts are not watched.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal

import pytest

from mendgraph.nodes.workspace.files.workspace import Workspace
from tests.architecture.product import EFFECT_PACKAGES, PACKAGES

ROOT: Final = os.path.realpath(Path(__file__).parent.parent)
Part = Literal["product", "effects", "tests"]

ALLOWED: Final = {
    "nodes/workspace/files/handles.py:open_root": "opens the root of a workspace",
    "nodes/execute_tools/mcp_servers/stdio_process.py:started_process": "starts a server with resolved paths",
    **dict.fromkeys(
        (
            "nodes/workspace/store/run_folder.py:_private_folder",
            "nodes/workspace/store/run_folder.py:remove_run_folder",
            "nodes/workspace/store/database.py:connect_to",
            "nodes/workspace/store/audit_log.py:write",
            "nodes/workspace/store/run_folder.py:_open_folder",
            "nodes/workspace/store/run_lock.py:_introduce",
            "nodes/workspace/store/run_lock.py:_forget",
            "nodes/workspace/store/run_lock.py:written_owner",
        ),
        "reads and writes records of runs in a folder that the user chooses and rules deny to the agent",
    ),
    "nodes/workspace/processes/processes.py:start_process": "starts a program in the workspace",
    **dict.fromkeys(
        (
            "nodes/workspace/copies/copy_sources.py:make",
            "nodes/workspace/copies/copy_sources.py:_copy_file",
            "nodes/workspace/copies/installed_links.py:_link_packages",
        ),
        "copies a folder and its links while no run uses it",
    ),
    **dict.fromkeys(
        ("nodes/workspace/processes/git.py:add_worktree", "nodes/workspace/processes/git.py:_remove_records"),
        "writes git's records of a worktree, which no tool may change",
    ),
}
"""Functions of packages with effects that may use an absolute path of a workspace, with the reason."""

_NONE: Final = -1
_Arguments = tuple[tuple[int, int], ...]
_EVENTS: Final[dict[str, _Arguments]] = {
    **dict.fromkeys(("open", "os.listdir", "os.scandir", "os.truncate", "os.chdir", "os.posix_spawn"), ((0, _NONE),)),
    **dict.fromkeys(("os.walk", "glob.glob", "tempfile.mkstemp", "tempfile.mkdtemp"), ((0, _NONE),)),
    **dict.fromkeys(("os.getxattr", "os.setxattr", "os.listxattr", "os.removexattr"), ((0, _NONE),)),
    **dict.fromkeys(("pathlib.Path.glob", "pathlib.Path.rglob", "sqlite3.connect", "shutil.chown"), ((0, _NONE),)),
    **dict.fromkeys(("shutil.move", "shutil.copytree", "shutil.copyfile", "shutil.copymode"), ((0, _NONE), (1, _NONE))),
    **dict.fromkeys(("shutil.copystat", "shutil.make_archive", "shutil.unpack_archive"), ((0, _NONE), (1, _NONE))),
    **dict.fromkeys(("os.remove", "os.rmdir", "shutil.rmtree"), ((0, 1),)),
    **dict.fromkeys(("os.mkdir", "os.chmod"), ((0, 2),)),
    **dict.fromkeys(("os.chown", "os.utime"), ((0, 3),)),
    **dict.fromkeys(("os.rename", "os.link"), ((0, 2), (1, 3))),
    "os.fwalk": ((0, 4),),
    "os.symlink": ((1, 2),),  # the first argument is the text of the link
    "subprocess.Popen": ((0, _NONE), (1, _NONE), (2, _NONE)),
}
"""For each audit event the indexes of its arguments that are paths, or lists of paths, each with the index of the
directory handle that the path is relative to (-1: none; `open` does not report it). Source: Python's table of audit
events."""


@dataclass(frozen=True)
class PathAccess:
    """One access to a file of a workspace by its path."""

    event: str
    path: str
    place: str
    """`nodes/some/file.py:12 in function`."""

    def __str__(self) -> str:
        return f"{self.place}: {self.event} {self.path!r}"


class Watch:
    """The accesses so far: `violations`, and `allowed` by functions that `ALLOWED` lists."""

    def __init__(self, root: str = ROOT) -> None:
        self.violations: list[PathAccess] = []
        self.allowed: list[PathAccess] = []
        self._root = root
        self._roots: set[str] = set()
        self._part = cache(self._part_of)

    def add_root(self, path: str) -> None:
        """Watch the folder, unless it contains the sources of this repository, which every import opens."""
        for root in (os.path.abspath(path), os.path.realpath(path)):
            if not f"{self._root}/".startswith(f"{root.rstrip('/')}/"):
                self._roots.add(root)

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """The audit hook. It never raises, because an exception would change the result of the operation."""
        places = _EVENTS.get(event)
        if places is None or not self._roots:
            return
        for place, handle in places:
            value = arguments[place] if place < len(arguments) else None
            by_handle = handle != _NONE and arguments[handle] not in {_NONE, None}
            for path in value if isinstance(value, list | tuple) else (value,):
                if isinstance(path, str | bytes | os.PathLike):
                    self._note(event, os.fsdecode(path), by_handle=by_handle)

    def _note(self, event: str, path: str, *, by_handle: bool) -> None:
        absolute = path.startswith("/")
        if not self._is_watched(path) if absolute else by_handle or event == "subprocess.Popen":
            return
        part, frame = self._calling_part()
        if frame is None or part == "tests":
            return
        if not absolute and ((part == "effects" and event == "open") or not self._is_watched(_absolute(path))):
            return  # the path is relative to a handle that the event does not report
        file, function = _relative(frame.f_code.co_filename, self._root), frame.f_code.co_name
        allowed = f"{file}:{function}" in ALLOWED
        seen = self.allowed if allowed else self.violations
        seen.append(PathAccess(event, path, f"{file}:{frame.f_lineno} in {function}"))

    def _is_watched(self, path: str) -> bool:
        """Whether the path is a watched folder or below one, without looking at the disk."""
        clean = f"/{os.path.normpath(path).lstrip('/')}" if "//" in path or "/." in path else path.rstrip("/")
        while clean:
            if clean in self._roots:
                return True
            clean = clean.rpartition("/")[0]
        return False

    def _calling_part(self) -> tuple[Part | None, FrameType | None]:
        """The part of this repository whose code raised the event, with its frame; (None, None) during an import."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith("<frozen importlib"):
                break
            part = self._part(name)
            if part is not None and name != __file__:
                return part, frame
            frame = frame.f_back
        return None, None

    def _part_of(self, file: str) -> Part | None:
        relative = _relative(file, self._root)
        if relative.startswith(EFFECT_PACKAGES):
            return "effects"
        if relative.startswith("tests/"):
            return "tests"
        return "product" if relative.startswith(tuple(f"{package}/" for package in PACKAGES)) else None


def _relative(file: str, root: str) -> str:
    return file.removeprefix(f"{root}/").removeprefix("mendgraph/")


def _absolute(path: str) -> str:
    with suppress(OSError):
        return os.path.join(os.getcwd(), path)
    return path


@cache
def installed() -> Watch:
    """The watch of this process. The first call installs the audit hook, which cannot be removed."""
    watch = Watch()
    make = Workspace.__init__

    def make_and_watch(self: Workspace, root: str, *arguments: Any, **named: Any) -> None:
        make(self, root, *arguments, **named)
        watch.add_root(root)

    Workspace.__init__ = make_and_watch  # type: ignore[method-assign]  # during the tests
    sys.addaudithook(watch.hook)
    return watch


@contextmanager
def watched() -> Iterator[Watch]:
    """Fail a test in which a function that is not listed in `ALLOWED` uses a path of a workspace."""
    watch = installed()
    watch.violations.clear()
    watch.allowed.clear()
    yield watch
    if watch.violations:
        seen = "\n".join(dict.fromkeys(map(str, watch.violations)))
        watch.violations.clear()
        pytest.fail(f"paths of a workspace were used by name:\n{seen}", pytrace=False)
