"""What is new of a change is put under temporary names, where nobody looks, and the steps that name it are prepared."""

import errno
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from nodes.execute_tools.environment.atomic_write import Role, temporary_name, write_temporary
from nodes.execute_tools.environment.change_plan import Original, Plan, PlannedEffect
from nodes.execute_tools.environment.failures import os_failure
from nodes.execute_tools.environment.handles import open_regular
from nodes.execute_tools.environment.name_steps import Identity, NameStep, identity, identity_at
from nodes.execute_tools.environment.open_folders import OpenFolders
from nodes.records import ToolError

_NO_SECOND_NAME: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
"""Why a file gets no second name: it may not, or the place is on another disk. Then it is copied. Source: link(2)."""


@dataclass(frozen=True)
class PlannedStep:
    """A step with the words for its failure: "Cannot `doing` `path`"."""

    names: NameStep
    doing: str
    path: str


@dataclass
class Transaction:
    """What has been prepared so far. All of it is known here before it is made, so that it can be removed.

    `temporaries` are names in open directories that must be gone in the end, `made` the directories that were made.
    The `token` is in every temporary name.
    """

    folders: OpenFolders
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    steps: list[PlannedStep] = field(default_factory=list)
    temporaries: list[tuple[int, str]] = field(default_factory=list)
    made: list[str] = field(default_factory=list)

    def remove_temporaries(self) -> tuple[int, OSError | None]:
        """Take them all away. Gives how many were there, and why one could not be removed."""
        removed, failure = 0, None
        for folder, name in self.temporaries:
            try:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
                    removed += 1
            except OSError as error:
                failure = error
        return removed, failure


def stage(transaction: Transaction, plan: Plan) -> ToolError | None:
    """Prepare all effects, in order; no name that anybody knows changes yet. Says what cannot be prepared."""
    for place, planned in enumerate(plan.effects):
        try:
            _stage(transaction, planned, place, alone=len(plan.effects) == 1)
        except OSError as error:
            return os_failure(error, planned.doing, planned.place.requested)
    return None


def _stage(transaction: Transaction, planned: PlannedEffect, place: int, *, alone: bool) -> None:
    """A file that is replaced alone needs no name for the old one: one step has nothing to be taken back after it."""
    folders, effect, parts = transaction.folders, planned.effect, planned.place.parts
    folder = folders.open(parts[:-1], made=transaction.made if planned.comes else None)
    if planned.comes and folders.real_name(folder, parts[-1]) not in {effect.path, None}:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    temporary = kept = ""
    after: Identity | None = None
    if not planned.goes:
        temporary = temporary_name(effect.path, transaction.token, place, Role.NEW)
        transaction.temporaries.append((folder, temporary))
        after = _new_file(folders, planned, folder, temporary)
    if planned.goes or not (planned.comes or alone):
        kept = temporary_name(effect.path, transaction.token, place, Role.KEPT)
        transaction.temporaries.append((folder, kept))
    if kept and planned.original is not None and not planned.goes:
        _second_name(folders, planned.original, effect.before.mode, folder, kept)
    before = None if planned.comes or planned.original is None else planned.original.identity
    names = NameStep(folder, parts[-1], before, after, temporary, kept)
    transaction.steps.append(PlannedStep(names, planned.doing, planned.place.requested))


def _new_file(folders: OpenFolders, planned: PlannedEffect, folder: int, temporary: str) -> Identity | None:
    original, mode = planned.original, planned.effect.after.mode
    if planned.data is not None:
        like = None if original is None else (folders.open(original.place.parts[:-1]), original.place.parts[-1])
        return identity(write_temporary(folder, temporary, planned.data, mode=mode, like=like))
    return None if original is None else _second_name(folders, original, mode, folder, temporary)


def _second_name(folders: OpenFolders, original: Original, mode: int | None, folder: int, temporary: str) -> Identity:
    """Give the file another name in the open folder too; where that cannot be, make a copy of it there."""
    source = (folders.open(original.place.parts[:-1]), original.place.parts[-1])
    try:
        os.link(source[1], temporary, src_dir_fd=source[0], dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_SECOND_NAME:
            raise
        descriptor, status = open_regular(source[0], source[1:], os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as stream:
            _require(identity(status), original.identity)
            return identity(write_temporary(folder, temporary, stream.read(), mode=mode, like=source))
    _require(identity_at(folder, temporary), original.identity)
    return original.identity


def _require(found: Identity | None, expected: Identity) -> None:
    if found != expected:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
