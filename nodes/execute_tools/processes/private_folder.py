"""Folders of a sandbox that has no mounts of its own, and the names that programs and models know them by.

A program is handed the private names in its arguments and variables; in what it prints, they are put back.
"""

import fcntl
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from mendgraph.nodes.execute_tools.files.handles import closing
from mendgraph.nodes.execute_tools.processes import processes

_PREFIX: Final = "mendgraph-sandbox-"
_NEW_PREFIX: Final = "mendgraph-new-sandbox-"
"""A folder has this name until it is locked, so that no other process takes it for an abandoned one."""
_EMPTIED: Final = ("home", "tmp", "given")
_BEGINNING: Final = r"(?<![\w./-])|(?<=^-[A-Za-z])|(?<=\s-[A-Za-z])|(?<=://)"
"""What is before an absolute name: no other part of one, or an option of one letter."""
_REMOVAL_S: Final = 60.0


class PrivateFolder:
    """A folder that only this user can enter, removed when this object is, or by a later one after a crash.

    `home` and `tmp` are for one command, `given` holds the texts that it is handed; `work` stays.
    """

    def __init__(self) -> None:
        _remove_abandoned()
        new = os.path.realpath(tempfile.mkdtemp(prefix=_NEW_PREFIX))
        lock = os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

        with suppress(OSError):  # a file system without locks: it is not known to be abandoned either
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

        temporary, folder_name = os.path.split(new)
        self.path = os.path.join(temporary, folder_name.replace(_NEW_PREFIX, _PREFIX))
        os.rename(new, self.path)

        for name in (*_EMPTIED, "work"):
            os.mkdir(self.folder(name))

        weakref.finalize(self, _remove, self.path, lock)

    def folder(self, name: str) -> str:
        """The absolute name of one of the folders."""
        return os.path.join(self.path, name)

    def give(self, texts: Sequence[tuple[int, str]], translate: Callable[[bytes], bytes] = bytes) -> dict[str, str]:
        """Write what the handles hold, translated; the private name of each file by the name that was asked for."""
        private = {}

        for handle, name in texts:
            path = os.path.join(self.folder("given"), name.lstrip("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as stream:
                stream.write(translate(read_handle(handle)))

            private[name] = path

        return private

    def empty(self) -> None:
        """Take away what a command has left; nothing of it may be alive."""
        for name in _EMPTIED:
            if os.listdir(self.folder(name)):
                remove_tree(self.folder(name))
                os.mkdir(self.folder(name))


def read_handle(handle: int) -> bytes:
    """All that the open file holds."""
    size = os.fstat(handle).st_size
    return os.pread(handle, size, 0)


def remove_tree(path: str) -> None:
    """Remove a folder and all that is in it, however deep it is and whatever its modes are; no link is followed."""
    with suppress(OSError, RecursionError):
        shutil.rmtree(path)
        return

    for argv in (["chmod", "-R", "u+rwX", path], ["rm", "-rf", path]):
        processes.run_process(argv, cwd="/", timeout_s=_REMOVAL_S, max_output_bytes=10_000)


def _remove(path: str, lock: int) -> None:
    remove_tree(path)
    os.close(lock)


def _remove_abandoned() -> None:
    """Remove the folders of processes that were killed: nobody holds their lock."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            is_own = entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False)
            if is_own and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                with suppress(OSError), closing(os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)) as handle:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_tree(entry.path)


class PrivateNames:
    """Translates between the names that a program is asked for and those that it has, `names` by the former."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = dict(names)
        longest_first = sorted(self._names, key=len, reverse=True)
        words = "|".join(map(re.escape, longest_first))
        self._asked = re.compile(rf"(?:{_BEGINNING})(?:{words})(?![\w-]|\.\w)")
        self._private = {os.fsencode(private): os.fsencode(name) for name, private in self._names.items()}

    def translate(self, text: str) -> str:
        """The text with the private names in it. A name counts where no other one goes on before or behind it."""
        return self._asked.sub(lambda match: self._names[match[0]], text)

    def restoring(self, taker: processes.Taker) -> "RestoredOutput":
        """Hands an output over to `taker` with the names that were asked for."""
        return RestoredOutput(self._private, taker)


class RestoredOutput:
    """An output in which private names are replaced, also where a piece ends in the middle of one."""

    def __init__(self, names: Mapping[bytes, bytes], taker: processes.Taker) -> None:
        self._names = names
        self._taker = taker
        self._pattern = re.compile(b"|".join(map(re.escape, sorted(names, key=len, reverse=True))))
        self._kept = b""

    def take(self, chunk: bytes) -> bool:
        """The next piece."""
        data = self._kept + chunk
        split = len(data) - self._open_end(data)
        self._kept = data[split:]

        return self._taker(self._replaced(data[:split]))

    def finish(self) -> None:
        """Hand over what was kept back."""
        kept_back = self._kept
        self._kept = b""
        if kept_back:
            self._taker(self._replaced(kept_back))

    def _replaced(self, data: bytes) -> bytes:
        return self._pattern.sub(lambda match: self._names[match[0]], data)

    def _open_end(self, data: bytes) -> int:
        """Bytes at the end that may be the beginning of a name, or all of one."""
        longest = max(map(len, self._names))
        for size in range(min(longest, len(data)), 0, -1):
            end = data[-size:]
            if any(name.startswith(end) for name in self._names):
                return size

        return 0
