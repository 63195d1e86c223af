"""Changes that a kill has cut off are completed or undone: all of a change, or nothing of it, is on the disk then.

The files' hashes alone decide, so a recovery may be cut off as well, and run again: it only ever undoes, and decides
that a change is done only where nothing has to be undone. Files are opened by handle, and no link is followed. Rules
are not applied: nothing is restored but what was there before the change.
"""

import errno
import hashlib
import os
from contextlib import suppress
from enum import Enum, auto
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.files.atomic_write import (
    PERMISSION_BITS,
    Identity,
    OpenFolders,
    RenameStep,
    Role,
    identity,
    temporary_name,
    undo,
    write_temporary,
)
from mendgraph.nodes.execute_tools.files.change_records import (
    UNKNOWN_SHA256,
    ChangeState,
    FileEffect,
    FileState,
    RecordedChange,
)
from mendgraph.nodes.execute_tools.files.handles import open_regular
from mendgraph.nodes.execute_tools.journal.journal import Journal
from mendgraph.nodes.language.display import listed
from mendgraph.nodes.records import quoted

_NOT_OURS: Final = frozenset(
    {errno.ENOTDIR, errno.EISDIR, errno.ESTALE, errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM, errno.EEXIST}
)
"""Errors of the system for a link, a directory or an unreadable file where the change had a file."""


class Recovered(NamedTuple):
    """How a change that was cut off has ended, with a `sentence` for people.

    `state` is DONE, UNDONE, or FOREIGN where somebody else has changed the files that `foreign` names: these are left
    as they are, the others are as before. INTENDED: it could not be brought to an end yet, as the disk refused.
    """

    token: str
    state: ChangeState
    foreign: tuple[str, ...]
    sentence: str


def recover(journal: Journal, root: str) -> tuple[Recovered, ...]:
    """Decide all changes that are open in the journal; nobody may be at work in the workspace `root` meanwhile.

    Raises StoreError: the journal cannot be used. What is still open is decided by the next recovery.
    """
    return tuple(_recovered(journal, root, change) for change in journal.open_changes())


def _recovered(journal: Journal, root: str, change: RecordedChange) -> Recovered:
    names = listed(quoted(effect.path) for effect in change.effects)
    try:
        with OpenFolders(root) as folders:
            state, foreign = _Recovery(journal, folders, change).run()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        sentence = f"A change of {names} was cut off, and cannot be brought to an end yet: {reason}."
        return Recovered(change.token, ChangeState.INTENDED, (), sentence)

    journal.settle(change.token, state)
    if state is ChangeState.DONE:
        sentence = f"A change of {names} was cut off when it was complete."
    elif state is ChangeState.UNDONE:
        sentence = f"A change of {names} was cut off: everything is as it was before it."
    else:
        sentence = (
            f"A change of {names} was cut off, and somebody else has changed {listed(map(quoted, foreign))} meanwhile:"
            " that was left alone, and what the change did elsewhere was taken back."
        )

    return Recovered(change.token, state, foreign, sentence)


class _Comparison(Enum):
    """A file is as before the effect, as after it, as both (or that is unknown), or as neither of them."""

    BEFORE, AFTER, BOTH, FOREIGN = auto(), auto(), auto(), auto()


class _File(NamedTuple):
    """What is at a name: the state of a regular file, or None for something else; and the identity of the file."""

    state: FileState | None
    identity: Identity | None = None


_NO_FILE: Final = _File(FileState())


class _Recovery:
    """Brings one change to an end. Every method raises OSError where the disk refuses."""

    def __init__(self, journal: Journal, folders: OpenFolders, change: RecordedChange) -> None:
        self._journal = journal
        self._folders = folders
        self._change = change

    def run(self) -> tuple[ChangeState, tuple[str, ...]]:
        """The state in which the change has ended, and the files that somebody else has changed."""
        effects = self._change.effects
        files = [self._look(effect.path) for effect in effects]
        comparisons = [_compare(effect, file) for effect, file in zip(effects, files, strict=True)]
        foreign: set[str] = set()

        for effect, comparison in zip(effects, comparisons, strict=True):
            if comparison is _Comparison.FOREIGN:
                foreign.add(effect.path)

        state = ChangeState.DONE
        if foreign or _Comparison.BEFORE in comparisons:
            state = ChangeState.UNDONE
            for place in reversed(range(len(effects))):
                if comparisons[place] is _Comparison.AFTER and not self._undo(place, files[place]):
                    foreign.add(effects[place].path)

        if foreign:
            state = ChangeState.FOREIGN

        self._clean_up(state)
        return state, tuple(effect.path for effect in effects if effect.path in foreign)

    def _look(self, path: str) -> _File:
        *above, name = path.split("/")
        try:
            return _open_file(self._folders.open(above), name)
        except FileNotFoundError:
            return _NO_FILE
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
            return _File(None)

    def _undo(self, place: int, file: _File) -> bool:
        """Make the file what it was before the effect; False where somebody else has changed it since."""
        effect = self._change.effects[place]
        *above, name = effect.path.split("/")

        try:
            folder = self._folders.open(above)
            kept_name = self._name(place, Role.KEPT)
            before = None

            if effect.before.sha256:
                before = self._old_file(folder, effect, kept_name)
                if before is None:
                    return False

            after = file.identity if effect.after.sha256 else None
            undo(RenameStep(folder, name, before, after, kept=kept_name))
        except OSError as error:
            if error.errno not in _NOT_OURS | {errno.ENOENT}:
                raise
            return False

        return _compare(effect, self._look(effect.path)) is _Comparison.BEFORE

    def _old_file(self, folder: int, effect: FileEffect, kept_name: str) -> Identity | None:
        """The old file under this name: itself, or written anew from its backup. None where there is none."""
        with suppress(FileNotFoundError):
            file = _open_file(folder, kept_name)
            if file.state is not None and file.state.sha256 == effect.before.sha256:
                return file.identity

            os.unlink(kept_name, dir_fd=folder)  # a copy that was cut off

        data = self._journal.backup(effect.before.sha256)
        if data is None:
            return None

        like = (folder, effect.path.rpartition("/")[2])
        return identity(write_temporary(folder, kept_name, data, mode=effect.before.mode, like=like))

    def _clean_up(self, state: ChangeState) -> None:
        for place, effect in enumerate(self._change.effects):
            folder = self._folder(effect.path)
            if folder is None:
                continue

            for role in Role:
                with suppress(FileNotFoundError):
                    os.unlink(self._name(place, role), dir_fd=folder)

        if state is not ChangeState.DONE:
            self._folders.remove_made(self._change.folders)

        self._folders.sync(self._change.folders)

    def _folder(self, path: str) -> int | None:
        try:
            return self._folders.open(path.split("/")[:-1])
        except OSError as error:
            if error.errno not in _NOT_OURS | {errno.ENOENT}:
                raise
            return None

    def _name(self, place: int, role: Role) -> str:
        return temporary_name(self._change.effects[place].path, self._change.token, place, role)


def _open_file(folder: int, name: str) -> _File:
    descriptor, status = open_regular(folder, (name,), os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()

    return _File(FileState(sha256, status.st_mode & PERMISSION_BITS), identity(status))


def _compare(effect: FileEffect, file: _File) -> _Comparison:
    before = effect.before
    after = effect.after
    if UNKNOWN_SHA256 in {before.sha256, after.sha256}:
        return _Comparison.BOTH  # it cannot be compared, and not undone
    if file.state is None:
        return _Comparison.FOREIGN

    if before.sha256 != after.sha256:
        return _by_value(file.state.sha256, before.sha256, after.sha256)
    if file.state.sha256 != before.sha256:
        return _Comparison.FOREIGN
    if before.mode == after.mode:
        return _Comparison.BOTH

    return _by_value(file.state.mode, before.mode, after.mode)


def _by_value(now: object, before: object, after: object) -> _Comparison:
    if now == after:
        return _Comparison.AFTER
    if now == before:
        return _Comparison.BEFORE

    return _Comparison.FOREIGN
