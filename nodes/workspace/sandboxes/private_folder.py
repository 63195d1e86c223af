"""The private folder of a sandbox without mounts, and the translation between private and public names.

Public names such as `/tmp` become private ones in a program's arguments and variables, and public ones in its output.
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

from mendgraph.nodes.workspace.files.handles import closing
from mendgraph.nodes.workspace.processes import processes

_PREFIX: Final = "mendgraph-sandbox-"
_NEW_PREFIX: Final = "mendgraph-new-sandbox-"
"""The prefix of a folder that is not locked yet, so that no other process takes it for an abandoned one."""
_EMPTIED: Final = ("home", "tmp", "files")
_NAME_START: Final = r"(?<![\w./-])|(?<=^-[A-Za-z])|(?<=\s-[A-Za-z])|(?<=://)"
"""An absolute name starts where no part of a name stands before it, or after `://` or an option of one letter."""
_REMOVAL_S: Final = 60.0


class PrivateFolder:
    """A folder that only this user can enter, removed with this object, or by a later one after a crash.

    `home`, `tmp` and `files` (added by `add_files`) are emptied after each command; `work` stays.
    """

    def __init__(self) -> None:
        remove_abandoned()
        new = os.path.realpath(tempfile.mkdtemp(prefix=_NEW_PREFIX))
        lock = os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

        with suppress(OSError):  # a file system without locks: no process can take it for abandoned
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

        temporary, folder_name = os.path.split(new)
        self.path = os.path.join(temporary, folder_name.replace(_NEW_PREFIX, _PREFIX))
        os.rename(new, self.path)

        for name in (*_EMPTIED, "work"):
            os.mkdir(self.folder(name))

        self._finalizer = weakref.finalize(self, _remove, self.path, lock)

    def folder(self, name: str) -> str:
        """Return the absolute name of one of the folders."""
        return os.path.join(self.path, name)

    def remove(self) -> None:
        """Remove the folder now. No process that uses it may be alive."""
        self._finalizer()

    def add_files(
        self, files: Sequence[tuple[int, str]], translate: Callable[[bytes], bytes] = bytes
    ) -> dict[str, str]:
        """Write the content of each handle, translated, to a file; the private names by the public ones."""
        private_names = {}

        for handle, name in files:
            path = os.path.join(self.folder("files"), name.lstrip("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as stream:
                stream.write(translate(read_handle(handle)))

            private_names[name] = path

        return private_names

    def empty(self) -> None:
        """Remove the files of a command, of which no process may be alive."""
        for name in _EMPTIED:
            if os.listdir(self.folder(name)):
                remove_tree(self.folder(name))
                os.mkdir(self.folder(name))


def read_handle(handle: int) -> bytes:
    """Return the content of an open file."""
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


def remove_abandoned() -> None:
    """Remove the folders of killed agents, which are not locked."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            is_private = entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False)
            if is_private and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                with suppress(OSError), closing(os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)) as handle:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_tree(entry.path)


class PrivateNames:
    """Translates public names to private ones and back; `names` maps the public to the private ones."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._private = dict(names)
        alternatives = "|".join(map(re.escape, sorted(self._private, key=len, reverse=True)))
        self._public_name = re.compile(rf"(?:{_NAME_START})(?:{alternatives})(?![\w-]|\.\w)")
        self._public = {os.fsencode(private): os.fsencode(name) for name, private in self._private.items()}
        self._private_name = re.compile(b"|".join(map(re.escape, sorted(self._public, key=len, reverse=True))))

    def translate(self, text: str) -> str:
        """Return the text with private names. A public name that is a part of a longer one stays."""
        return self._public_name.sub(lambda match: self._private[match[0]], text)

    def public(self, output: bytes) -> bytes:
        """Return an output with public names in place of private ones."""
        return self._private_name.sub(lambda match: self._public[match[0]], output)
