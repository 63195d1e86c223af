"""Changes that were cut off by a kill are brought to an end: made altogether, or taken back altogether.

What happened is told by the files' hashes alone, so a recovery may be cut off as well, and made again: it only ever
takes back, and decides "made" only where nothing has to be taken back. Files are reached by handle, and no link is
followed. Rules are not asked: nothing is restored but what was there before the change.
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

_SOMETHING_ELSE: Final = frozenset(
    {errno.ENOTDIR, errno.EISDIR, errno.ESTALE, errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM, errno.EEXIST}
)
"""What the system answers where a link, a directory or a file that may not be read is where a file of ours was."""


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
    sentence = {
        ChangeState.DONE: f"A change of {names} was cut off when it was complete.",
        ChangeState.UNDONE: f"A change of {names} was cut off: everything is as it was before it.",
    }.get(
        state,
        f"A change of {names} was cut off, and somebody else has changed {listed(map(quoted, foreign))} meanwhile: that"
        " was left alone, and what the change did elsewhere was taken back.",
    )

    return Recovered(change.token, state, foreign, sentence)


class _Standing(Enum):
    """Where a file stands: as before the effect, as after it, as both (or nobody knows), or as neither of them."""

    BEFORE, AFTER, BOTH, FOREIGN = auto(), auto(), auto(), auto()


class _Found(NamedTuple):
    """What is at a name: its state, or None for what is no file of ours; and which file it is."""

    state: FileState | None
    identity: Identity | None = None


_NOTHING: Final = _Found(FileState())


class _Recovery:
    """Brings one change to an end. Every method raises OSError where the disk refuses."""

    def __init__(self, journal: Journal, folders: OpenFolders, change: RecordedChange) -> None:
        self._journal = journal
        self._folders = folders
        self._change = change

    def run(self) -> tuple[ChangeState, tuple[str, ...]]:
        effects = self._change.effects
        states = [self._look(effect.path) for effect in effects]
        standings = [_standing(effect, each) for effect, each in zip(effects, states, strict=True)]
        foreign = {
            effect.path for effect, standing in zip(effects, standings, strict=True) if standing is _Standing.FOREIGN
        }
        state = ChangeState.FOREIGN if foreign else ChangeState.DONE

        if foreign or _Standing.BEFORE in standings:
            for place in reversed(range(len(effects))):
                if standings[place] is _Standing.AFTER and not self._take_back(place, states[place]):
                    foreign.add(effects[place].path)

            state = ChangeState.FOREIGN if foreign else ChangeState.UNDONE

        self._clean_up(state)
        return state, tuple(effect.path for effect in effects if effect.path in foreign)

    def _look(self, path: str) -> _Found:
        *above, name = path.split("/")
        try:
            return _found(self._folders.open(above), name)
        except FileNotFoundError:
            return _NOTHING
        except OSError as error:
            if error.errno not in _SOMETHING_ELSE:
                raise
            return _Found(None)

    def _take_back(self, place: int, found: _Found) -> bool:
        """Make the file that was found what it was before; False where somebody else has been there since."""
        effect = self._change.effects[place]
        *above, name = effect.path.split("/")

        try:
            folder = self._folders.open(above)
            kept_name = self._name(place, Role.KEPT)

            if effect.before.sha256:
                before = self._kept(folder, effect, kept_name)
            else:
                before = None

            if effect.before.sha256 and before is None:
                return False

            after = found.identity if effect.after.sha256 else None
            undo(RenameStep(folder, name, before, after, kept=kept_name))
        except OSError as error:
            if error.errno not in _SOMETHING_ELSE | {errno.ENOENT}:
                raise
            return False

        return _standing(effect, self._look(effect.path)) is _Standing.BEFORE

    def _kept(self, folder: int, effect: FileEffect, kept: str) -> Identity | None:
        """The old file under the name `kept`: itself, or written anew from its backup. None where there is none."""
        with suppress(FileNotFoundError):
            kept_file = _found(folder, kept)
            if kept_file.state is not None and kept_file.state.sha256 == effect.before.sha256:
                return kept_file.identity

            os.unlink(kept, dir_fd=folder)  # a copy that was cut off

        data = self._journal.backup(effect.before.sha256)
        if data is None:
            return None

        like = (folder, effect.path.rpartition("/")[2])
        return identity(write_temporary(folder, kept, data, mode=effect.before.mode, like=like))

    def _clean_up(self, state: ChangeState) -> None:
        for place, effect in enumerate(self._change.effects):
            folder = self._folder(effect.path)
            for role in Role if folder is not None else ():
                with suppress(FileNotFoundError):
                    os.unlink(self._name(place, role), dir_fd=folder)

        if state is not ChangeState.DONE:
            self._folders.remove_made(self._change.made)

        self._folders.sync(self._change.made)

    def _folder(self, path: str) -> int | None:
        try:
            return self._folders.open(path.split("/")[:-1])
        except OSError as error:
            if error.errno not in _SOMETHING_ELSE | {errno.ENOENT}:
                raise
            return None

    def _name(self, place: int, role: Role) -> str:
        return temporary_name(self._change.effects[place].path, self._change.token, place, role)


def _found(folder: int, name: str) -> _Found:
    descriptor, status = open_regular(folder, (name,), os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()

    return _Found(FileState(sha256, status.st_mode & PERMISSION_BITS), identity(status))


def _standing(effect: FileEffect, found: _Found) -> _Standing:
    before = effect.before
    after = effect.after
    if UNKNOWN_SHA256 in {before.sha256, after.sha256}:
        return _Standing.BOTH  # nothing can be told, and nothing taken back
    if found.state is None or found.state.sha256 not in {before.sha256, after.sha256}:
        return _Standing.FOREIGN

    if before.sha256 != after.sha256:
        if found.state.sha256 == after.sha256:
            return _Standing.AFTER
        return _Standing.BEFORE

    if before.mode == after.mode:
        return _Standing.BOTH

    return {before.mode: _Standing.BEFORE, after.mode: _Standing.AFTER}.get(found.state.mode, _Standing.FOREIGN)
