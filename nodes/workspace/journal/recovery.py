"""Completes or undoes changes that a kill has cut off, so that all of a change is on the disk, or nothing of it.

Only the files' hashes decide, so a recovery may be killed as well, and run again: it only undoes, and a change is done
only if nothing has to be undone. Files are opened by handle, and no link is followed. Rules are not applied:
nothing is restored but what was there before the change.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, TypeAlias

from mendgraph.nodes.language.display import listed
from mendgraph.nodes.records import quoted
from mendgraph.nodes.workspace.files.atomic_write import (
    Identity,
    OpenFolders,
    RenameStep,
    Role,
    identity,
    read_state,
    temporary_name,
    undo,
    write_temporary,
)
from mendgraph.nodes.workspace.files.change_records import ChangeState, FileEffect, FileState, RecordedChange
from mendgraph.nodes.workspace.journal.journal import Journal

_NOT_OURS: Final = frozenset(
    {errno.ENOTDIR, errno.EISDIR, errno.ESTALE, errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM, errno.EEXIST}
)
"""Errors for a link, a directory or an unreadable file where the change had a file."""

_CurrentFile: TypeAlias = tuple[FileState | None, Identity | None]
"""State and identity of what has a name now; the state is None unless it is a readable regular file."""


class Recovered(NamedTuple):
    """The result for one change, with a `sentence` for people.

    `state` is DONE, UNDONE, or FOREIGN if somebody else has changed the files `foreign`, which are left alone while the
    others are as before. INTENDED: the disk refused, and the next recovery tries again.
    """

    token: str
    state: ChangeState
    foreign: tuple[str, ...]
    sentence: str


def recover(journal: Journal, root: str) -> tuple[Recovered, ...]:
    """Decide all open changes of the journal; nobody else may use the workspace `root` meanwhile.

    Raises:
        StoreError: the journal cannot be used.
    """
    return tuple(_recover_change(journal, root, change) for change in journal.open_changes())


def _recover_change(journal: Journal, root: str, change: RecordedChange) -> Recovered:
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


class _Recovery:
    """The recovery of one change. Every method raises OSError if the disk refuses."""

    def __init__(self, journal: Journal, folders: OpenFolders, change: RecordedChange) -> None:
        self._journal = journal
        self._folders = folders
        self._change = change

    def run(self) -> tuple[ChangeState, tuple[str, ...]]:
        """Return the state in which the change has ended, and the files that somebody else has changed."""
        effects = self._change.effects
        made: list[tuple[int, Identity | None]] = []
        foreign: set[str] = set()
        is_done = True

        for number, effect in enumerate(effects):
            state, file_identity = self._current_file(effect.path)
            is_before = _has_state(state, effect.before, effect.after)
            is_after = _has_state(state, effect.after, effect.before)

            if is_after and not is_before:
                made.append((number, file_identity))
            elif not is_after:
                is_done = False
                if not is_before:
                    foreign.add(effect.path)

        if not is_done:
            for number, file_identity in reversed(made):
                if not self._undo(number, file_identity):
                    foreign.add(effects[number].path)

        self._clean_up(is_done=is_done)
        if is_done:
            return ChangeState.DONE, ()

        state_of_change = ChangeState.FOREIGN if foreign else ChangeState.UNDONE
        return state_of_change, tuple(effect.path for effect in effects if effect.path in foreign)

    def _current_file(self, path: str) -> _CurrentFile:
        *above, name = path.split("/")
        file: _CurrentFile = (None, None)

        with _foreign_errors_ignored():
            try:
                file = read_state(self._folders.open(above), (name,))
            except FileNotFoundError:
                file = (FileState(), None)

        return file

    def _undo(self, number: int, after: Identity | None) -> bool:
        """Make the file what it was before the effect; False if somebody else has changed it."""
        effect = self._change.effects[number]
        *above, name = effect.path.split("/")
        kept_name = self._temporary_name(number, Role.KEPT)
        is_undone = False

        with _foreign_errors_ignored():
            folder = self._folders.open(above)
            before = None
            if effect.before.sha256:
                before = self._old_file(folder, effect, kept_name)

            if before is not None or not effect.before.sha256:
                undo(RenameStep(folder, name, before, after if effect.after.sha256 else None, kept=kept_name))
                is_undone = True

        state, _ = self._current_file(effect.path)
        return is_undone and _has_state(state, effect.before, effect.after)

    def _old_file(self, folder: int, effect: FileEffect, kept_name: str) -> Identity | None:
        """Return the old file under this name, written from its backup if necessary; None without a backup."""
        with suppress(FileNotFoundError):
            state, file_identity = read_state(folder, (kept_name,))
            if state.sha256 == effect.before.sha256:
                return file_identity

            os.unlink(kept_name, dir_fd=folder)  # a copy that was cut off

        data = self._journal.backup(effect.before.sha256)
        if data is None:
            return None

        like = (folder, effect.path.rpartition("/")[2])
        return identity(write_temporary(folder, kept_name, data, mode=effect.before.mode, like=like))

    def _clean_up(self, *, is_done: bool) -> None:
        for number, effect in enumerate(self._change.effects):
            folder = None
            with _foreign_errors_ignored():
                folder = self._folders.open(effect.path.split("/")[:-1])

            if folder is None:
                continue

            for role in Role:
                with suppress(FileNotFoundError):
                    os.unlink(self._temporary_name(number, role), dir_fd=folder)

        if not is_done:
            self._folders.remove_created(self._change.folders)

        self._folders.sync(self._change.folders)

    def _temporary_name(self, number: int, role: Role) -> str:
        return temporary_name(self._change.effects[number].path, self._change.token, number, role)


@contextmanager
def _foreign_errors_ignored() -> Iterator[None]:
    """Leave the block on an error that says that somebody else has changed what is there."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOENT and error.errno not in _NOT_OURS:
            raise


def _has_state(now: FileState | None, goal: FileState, other: FileState) -> bool:
    """Return whether the file has the goal's state; the mode counts only if the content is that of `other`."""
    if now is None or now.sha256 != goal.sha256:
        return False
    return goal.sha256 != other.sha256 or goal.mode in (now.mode, other.mode)
