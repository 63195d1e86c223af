"""Who opens a path of a workspace: in the tests only the packages with effects, by handle.

An audit hook sees each opening, listing and change that Python does, in all threads. It learns where the workspaces
are from `Workspace` itself. What the kernel is asked without opening (`stat`, `readlink`) raises no audit event, and
programs that a test starts are not watched.
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

EXCUSED: Final = {
    "nodes/workspace/files/handles.py:open_root": "the one place where an absolute name is opened",
    "nodes/execute_tools/mcp_servers/stdio_process.py:started_process": "the user's server starts with resolved names",
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
        "the run's own records, in a folder of the user's choice, which rules keep from the agent",
    ),
    "nodes/workspace/processes/processes.py:start_process": "a program starts in the workspace",
    **dict.fromkeys(
        ("nodes/workspace/copies/copy_sources.py:make", "nodes/workspace/copies/copy_sources.py:_copy_file"),
        "a folder is copied with its links as links, and no run works in it meanwhile",
    ),
    **dict.fromkeys(
        ("nodes/workspace/processes/git.py:add_worktree", "nodes/workspace/processes/git.py:_remove_records"),
        "git's own records of a worktree, in the repository, which no tool may change",
    ),
}
"""The functions of packages with effects that may use an absolute name of a workspace, and why."""

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
    "os.symlink": ((1, 2),),  # the first is a text that is not looked up
    "subprocess.Popen": ((0, _NONE), (1, _NONE), (2, _NONE)),
}
"""Which arguments of an event are paths, or lists of them, each with the place of the directory handle that it is
relative to, where the event tells: `open` does not. Source: Python's table of audit events."""


@dataclass(frozen=True)
class Sighting:
    """Somebody used the name of a file in a workspace."""

    event: str
    path: str
    place: str
    """`nodes/some/file.py:12 in function`."""

    def __str__(self) -> str:
        return f"{self.place}: {self.event} {self.path!r}"


class Watch:
    """What was seen so far. `culprits` may not be there, `excused` are those that `EXCUSED` lists."""

    def __init__(self, root: str = ROOT) -> None:
        self.culprits: list[Sighting] = []
        self.excused: list[Sighting] = []
        self._root = root
        self._roots: set[str] = set()
        self._part = cache(self._part_of)

    def add_root(self, path: str) -> None:
        """Watch the folder, unless it holds our own sources: those are opened by every import."""
        for root in (os.path.abspath(path), os.path.realpath(path)):
            if not f"{self._root}/".startswith(f"{root.rstrip('/')}/"):
                self._roots.add(root)

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook. It never raises: that would change what the tests see."""
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
        part, frame = self._innermost()
        if frame is None or part == "tests":
            return
        if not absolute and ((part == "effects" and event == "open") or not self._is_watched(_from_here(path))):
            return  # in there, it is relative to a handle that the event does not tell
        file, function = _relative(frame.f_code.co_filename, self._root), frame.f_code.co_name
        excused = f"{file}:{function}" in EXCUSED
        seen = self.excused if excused else self.culprits
        seen.append(Sighting(event, path, f"{file}:{frame.f_lineno} in {function}"))

    def _is_watched(self, path: str) -> bool:
        """Whether a root or something below it is meant, as text."""
        clean = f"/{os.path.normpath(path).lstrip('/')}" if "//" in path or "/." in path else path.rstrip("/")
        while clean:
            if clean in self._roots:
                return True
            clean = clean.rpartition("/")[0]
        return False

    def _innermost(self) -> tuple[Part | None, FrameType | None]:
        """Who of us has called what raised the event; nobody if that is an import, which Python does by itself."""
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


def _from_here(path: str) -> str:
    with suppress(OSError):
        return os.path.join(os.getcwd(), path)
    return path


@cache
def installed() -> Watch:
    """The watch of this process; the hook is there from the first call on, and stays."""
    watch = Watch()
    make = Workspace.__init__

    def make_and_tell(self: Workspace, root: str, *arguments: Any, **named: Any) -> None:
        make(self, root, *arguments, **named)
        watch.add_root(root)

    Workspace.__init__ = make_and_tell  # type: ignore[method-assign]  # for as long as the tests run
    sys.addaudithook(watch.hook)
    return watch


@contextmanager
def watched() -> Iterator[Watch]:
    """Fail the test in which somebody else used the name of a file in a workspace."""
    watch = installed()
    watch.culprits.clear()
    watch.excused.clear()
    yield watch
    if watch.culprits:
        seen = "\n".join(dict.fromkeys(map(str, watch.culprits)))
        watch.culprits.clear()
        pytest.fail(f"paths of a workspace were used by name:\n{seen}", pytrace=False)
