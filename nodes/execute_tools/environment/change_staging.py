"""Changes of several files are checked and prepared: what is new is put under temporary names, where nobody looks."""

import errno
import hashlib
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from nodes.execute_tools.environment.atomic_write import temporary_name, write_temporary
from nodes.execute_tools.environment.change_places import MoveFile, PlacedChange, WriteFile
from nodes.execute_tools.environment.failures import os_failure
from nodes.execute_tools.environment.file_writes import CurrentFile, current_file, new_name
from nodes.execute_tools.environment.handles import closing, open_directory
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.execute_tools.environment.name_steps import Identity, NameStep, identity, identity_at
from nodes.execute_tools.environment.sandbox import Place
from nodes.records import ToolError

_NO_SECOND_NAME: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
"""Why a file gets no second name: it may not, or the place is on another disk. Then it is copied. Source: link(2)."""


@dataclass(frozen=True)
class ChangedFile:
    """What a change came to: the file's real name, after a move its new one too, and the hash of what it holds now.

    `target` is "" where nothing was moved, `sha256` where the file was deleted.
    """

    path: str
    target: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class PlannedStep:
    """A step with the words for its failure: "Cannot `doing` `path`"."""

    names: NameStep
    doing: str
    path: str


@dataclass
class Transaction:
    """What has been prepared so far. All of it is known here before it is made, so that it can be removed.

    `temporaries` are names in open directories that must be gone in the end, `made` the directories that were made,
    `folders` the directories that are open, by their real names.
    """

    paths: JudgedPaths
    root: int
    handles: ExitStack
    steps: list[PlannedStep] = field(default_factory=list)
    temporaries: list[tuple[int, str]] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    folders: dict[tuple[str, ...], int] = field(default_factory=dict)

    def folder(self, place: Place, *, make: bool = False) -> int:
        """The open directory that holds the place."""
        parts = place.parts[:-1]
        if parts not in self.folders:
            opened = open_directory(self.root, parts, made=self.made if make else None)
            self.folders[parts] = self.handles.enter_context(closing(opened))
        return self.folders[parts]

    def temporary(self, directory: int, name: str) -> str:
        """A name in the directory that will be gone in the end."""
        fresh = temporary_name(name)
        self.temporaries.append((directory, fresh))
        return fresh

    def step(self, names: NameStep, doing: str, place: Place) -> None:
        """Plan a step."""
        self.steps.append(PlannedStep(names, doing, place.requested))


def stage(transaction: Transaction, placed: Sequence[PlacedChange]) -> tuple[ChangedFile, ...] | ToolError:
    """Check and prepare all changes, in order, and tell what they will come to; no file and no name changes yet."""
    done: list[ChangedFile] = []
    for each in placed:
        try:
            staged = _staged(transaction, each)
        except OSError as error:
            return os_failure(error, each.doing, each.place.requested)
        if isinstance(staged, ToolError):
            return staged
        done.append(staged)
    return tuple(done)


def _staged(transaction: Transaction, placed: PlacedChange) -> ChangedFile | ToolError:
    change, place = placed.change, placed.place
    if isinstance(change, WriteFile) and not change.expected_sha256:
        return _create(transaction, place, change.data)
    with current_file(
        transaction.paths,
        transaction.root,
        transaction.folder(place),
        place,
        doing=placed.doing,
        expected_sha256=change.expected_sha256,
        changes=not isinstance(change, MoveFile) or change.data is not None,
    ) as current:
        if isinstance(current, ToolError):
            return current
        if isinstance(change, WriteFile):
            return _replace(transaction, place, current, change.data)
        if isinstance(change, MoveFile) and placed.target is not None:
            return _move(transaction, placed.target, place, current, change)
        _take_away(transaction, place, current, placed.doing)
        return ChangedFile(current.name)


def _create(transaction: Transaction, place: Place, data: bytes) -> ChangedFile | ToolError:
    directory = transaction.folder(place, make=True)
    name = new_name(transaction.paths, transaction.root, directory, place)
    if isinstance(name, ToolError):
        return name
    temporary = transaction.temporary(directory, place.parts[-1])
    status = write_temporary(directory, temporary, data, mode=None, like=(directory, temporary))
    transaction.step(NameStep(directory, place.parts[-1], None, identity(status), temporary), "write", place)
    return ChangedFile(name, sha256=_sha256(data))


def _replace(transaction: Transaction, place: Place, current: CurrentFile, data: bytes) -> ChangedFile:
    directory, name = transaction.folder(place), place.parts[-1]
    kept, temporary = transaction.temporary(directory, name), transaction.temporary(directory, name)
    _second_name((directory, name), current, directory, kept)
    status = write_temporary(directory, temporary, data, mode=_mode(current), like=(directory, name))
    step = NameStep(directory, name, identity(current.status), identity(status), temporary, kept)
    transaction.step(step, "write", place)
    return ChangedFile(current.name, sha256=_sha256(data))


def _move(
    transaction: Transaction, target: Place, place: Place, current: CurrentFile, change: MoveFile
) -> ChangedFile | ToolError:
    """The file comes to the target first and leaves its old name then: there is no moment without it."""
    source = (transaction.folder(place), place.parts[-1])
    directory = transaction.folder(target, make=True)
    name = new_name(transaction.paths, transaction.root, directory, target)
    if isinstance(name, ToolError):
        return name
    temporary = transaction.temporary(directory, target.parts[-1])
    if change.data is None:
        after = _second_name(source, current, directory, temporary)
    else:
        after = identity(write_temporary(directory, temporary, change.data, mode=_mode(current), like=source))
    transaction.step(NameStep(directory, target.parts[-1], None, after, temporary), "move to", target)
    _take_away(transaction, place, current, "move")
    return ChangedFile(current.name, name, change.expected_sha256 if change.data is None else _sha256(change.data))


def _take_away(transaction: Transaction, place: Place, current: CurrentFile, doing: str) -> None:
    directory, name = transaction.folder(place), place.parts[-1]
    kept = transaction.temporary(directory, name)
    transaction.step(NameStep(directory, name, identity(current.status), None, kept=kept), doing, place)


def _second_name(source: tuple[int, str], current: CurrentFile, directory: int, temporary: str) -> Identity:
    """Give the open file, which stands at `source`, another name too; where that cannot be, make a copy of it."""
    try:
        os.link(source[1], temporary, src_dir_fd=source[0], dst_dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_SECOND_NAME:
            raise
        data = current.stream.read()
        return identity(write_temporary(directory, temporary, data, mode=_mode(current), like=source))
    if identity_at(directory, temporary) != identity(current.status):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    return identity(current.status)


def _mode(current: CurrentFile) -> int:
    return stat.S_IMODE(current.status.st_mode)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
