"""Results that are too large for a model's window, kept in the run's own folder."""

import errno
import os
import re
import shutil
from contextlib import suppress
from typing import Final

from mendgraph.nodes.execute_tools.files.failures import os_failure
from mendgraph.nodes.execute_tools.files.file_reads import OpenedFile
from mendgraph.nodes.execute_tools.files.handles import closing
from mendgraph.nodes.execute_tools.store.run_folder import run_folder, run_folder_path
from mendgraph.nodes.language.names import LARGEST_NUMBER, number_of, reference_of, unknown_reference
from mendgraph.nodes.records import ToolError

_PREFIX: Final = "results-"
"""Begins the name of a folder of kept results, of which a run has one for each workspace."""
_FILE: Final = re.compile(r"([1-9][0-9]{0,5})\.txt")
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ATTEMPTS: Final = 20
"""How often another number is tried where another process has taken one meanwhile."""


class Artifacts:
    """The kept results of one run: numbered text files in `folder`, which is made when the first one is kept.

    Nothing is remembered but what is in the folder, so a run that is resumed in another process goes on with it. A
    result of more than `max_bytes` bytes is not kept, nor one that would make all of them more than `max_total`;
    those that are there stay, as a model may have been told of them.
    """

    def __init__(self, folder: str, *, max_bytes: int = 10_000_000, max_total: int = 100_000_000) -> None:
        self._folder, self._max_bytes, self._max_total = folder, max_bytes, max_total

    def keep(self, text: str) -> str | None:
        """The reference of the text, once it is kept, or None where it cannot be, be it that the disk is full.

        What no text file holds is replaced: lone surrogates by "?", NUL by its picture, U+2400.
        """
        data = text.replace("\0", "\u2400").encode(errors="replace")
        if len(data) > self._max_bytes:
            return None
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            with closing(self._open_folder()) as folder:
                sizes = _sizes(folder)
                if sum(sizes.values()) + len(data) > self._max_total:
                    return None
                return _write_new(folder, max(sizes, default=0) + 1, data)
        except OSError:
            return None

    def open(self, reference: str) -> OpenedFile | ToolError:
        """The kept text, opened for reading, with the reference as its path; NOT_FOUND with those that exist."""
        try:
            with closing(self._open_folder()) as folder:
                numbers = _sizes(folder)
                number = number_of(reference)
                if number is None or number not in numbers:
                    return unknown_reference(reference, tuple(numbers))
                descriptor = os.open(_file_name(number), _READ_FLAGS, dir_fd=folder)
                return OpenedFile(reference, os.fstat(descriptor).st_size, os.fdopen(descriptor, "rb"))
        except FileNotFoundError:
            return unknown_reference(reference, ())
        except OSError as error:
            return os_failure(error, "read", reference)

    def _open_folder(self) -> int:
        """A handle of the folder, which has to be our own: what somebody else laid there is left alone."""
        folder = os.open(self._folder, _FOLDER_FLAGS)
        if os.fstat(folder).st_uid != os.geteuid():
            os.close(folder)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return folder


def _sizes(folder: int) -> dict[int, int]:
    """The size in bytes of each kept result, by its number."""
    with os.scandir(folder) as entries:
        files = [(found, entry) for entry in entries if (found := _FILE.fullmatch(entry.name))]
        return {
            int(found[1]): entry.stat(follow_symlinks=False).st_size
            for found, entry in files
            if entry.is_file(follow_symlinks=False)
        }


def _write_new(folder: int, number: int, data: bytes) -> str | None:
    """Write the next file, under the first number from `number` on that nobody else takes."""
    for attempt in range(number, min(number + _ATTEMPTS, LARGEST_NUMBER + 1)):
        name = _file_name(attempt)
        try:
            descriptor = os.open(name, _NEW_FILE_FLAGS, 0o600, dir_fd=folder)
        except FileExistsError:
            continue
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        except BaseException:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
            raise
        return reference_of(attempt)
    return None


def _file_name(number: int) -> str:
    return f"{number}.txt"


def copy_artifacts(run_id: str, new_run_id: str) -> None:
    """Copy what a run has kept into the folder of another one.

    Where that cannot be done, be it that the disk is full, the other run is told that these results are not there, as
    it is of any result that could not be kept.
    """
    with suppress(OSError, shutil.Error):
        with os.scandir(run_folder_path(run_id)) as entries:
            names = [each.name for each in entries if each.name.startswith(_PREFIX) and not each.is_symlink()]
        target = run_folder(new_run_id) if names else None
        if target is None or isinstance(target, ToolError):
            return
        for name in names:
            shutil.copytree(os.path.join(run_folder_path(run_id), name), os.path.join(target, name), symlinks=True)
