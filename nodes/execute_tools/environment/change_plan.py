"""What a change will do, name by name, as it is written down before it begins. Nothing on the disk changes here."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from nodes.execute_tools.environment.atomic_write import PERMISSION_BITS
from nodes.execute_tools.environment.change_places import MoveFile, PlacedChange, WriteFile
from nodes.execute_tools.environment.current_files import Expected, current_file, new_name
from nodes.execute_tools.environment.failures import os_failure
from nodes.execute_tools.environment.journal_records import FileEffect, FileState
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.execute_tools.environment.name_steps import Identity, identity
from nodes.execute_tools.environment.open_folders import OpenFolders
from nodes.execute_tools.environment.sandbox import Place
from nodes.records import ToolError

_NO_FILE: Final = FileState()


@dataclass(frozen=True)
class ChangedFile:
    """What a change came to: the file's real name, after a move its new one too, and the hash of what it holds now.

    `target` is "" where nothing was moved, `sha256` where the file was deleted.
    """

    path: str
    target: str = ""
    sha256: str = ""


class Original(NamedTuple):
    """The file that is replaced, goes away or is moved: where it stands, and which one it has to be still."""

    place: Place
    identity: Identity


@dataclass(frozen=True)
class PlannedEffect:
    """One name that will mean another file: a file comes, is replaced, or goes away, as `effect` says.

    `data` is what the new file holds; None where none comes, or where it is the `original` itself, which is moved. A
    file that is made out of nothing has no original. `doing` and `place` are for errors: "Cannot `doing` `place`".
    """

    effect: FileEffect
    doing: str
    place: Place
    data: bytes | None = None
    original: Original | None = None

    @property
    def comes(self) -> bool:
        """Whether nothing is there before."""
        return not self.effect.before.sha256

    @property
    def goes(self) -> bool:
        """Whether nothing is there afterwards."""
        return not self.effect.after.sha256


@dataclass
class Plan:
    """All of a change: its effects in order, what it will come to, and what has to be known to take it back.

    `made` are the directories that have to be made, outermost first; `backups` the bytes of the files before, by their
    hash, where they were asked for.
    """

    effects: list[PlannedEffect] = field(default_factory=list)
    done: list[ChangedFile] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    backups: dict[str, bytes] = field(default_factory=dict)


def plan_changes(
    paths: JudgedPaths, folders: OpenFolders, placed: Sequence[PlacedChange], *, backups: bool
) -> Plan | ToolError:
    """Check all changes against what is there now. With `backups` a file that is too large for one is refused."""
    planner = _Planner(paths, folders, backups)
    for each in placed:
        try:
            done = planner.add(each)
        except OSError as error:
            return os_failure(error, each.doing, each.place.requested)
        if isinstance(done, ToolError):
            return done
        planner.plan.done.append(done)
    return planner.plan


class _Planner:
    """Adds one change after the other to a plan."""

    def __init__(self, paths: JudgedPaths, folders: OpenFolders, backups: bool) -> None:
        self._paths, self._folders, self._backups = paths, folders, backups
        self.plan = Plan()

    def add(self, placed: PlacedChange) -> ChangedFile | ToolError:
        """Check the change and plan its effects.

        Raises:
            OSError: it cannot be made.
        """
        change, place = placed.change, placed.place
        if isinstance(change, WriteFile) and not change.expected_sha256:
            new = FileState(_sha256(change.data), _bits(change.mode))
            name = self._come(place, new, "write", change.data)
            return name if isinstance(name, ToolError) else ChangedFile(name, sha256=new.sha256)
        current = current_file(self._paths, self._folders, place, self._expected(placed))
        if isinstance(current, ToolError):
            return current
        if current.data is not None:
            self.plan.backups[change.expected_sha256] = current.data
        before = FileState(change.expected_sha256, _bits(current.status.st_mode))
        original = Original(place, identity(current.status))
        if isinstance(change, WriteFile):
            after = FileState(_sha256(change.data), before.mode if change.mode is None else _bits(change.mode))
            effect = FileEffect(current.name, before, after)
            self.plan.effects.append(PlannedEffect(effect, placed.doing, place, change.data, original))
            return ChangedFile(current.name, sha256=after.sha256)
        target = ""
        if isinstance(change, MoveFile) and placed.target is not None:
            # It comes to the target first and leaves its old name then: there is no moment without it.
            new = before if change.data is None else FileState(_sha256(change.data), before.mode)
            name = self._come(placed.target, new, "move to", change.data, original)
            if isinstance(name, ToolError):
                return name
            target = name
        effect = FileEffect(current.name, before, _NO_FILE)
        self.plan.effects.append(PlannedEffect(effect, placed.doing, place, None, original))
        return ChangedFile(current.name, target, new.sha256 if target else "")

    def _come(
        self, place: Place, after: FileState, doing: str, data: bytes | None, original: Original | None = None
    ) -> str | ToolError:
        """Plan a new file, and the directories that it needs. Gives its real name."""
        parts = place.parts
        folder, length = self._folders.deepest(parts[:-1])
        name = new_name(self._paths, self._folders, folder, parts[length:], place)
        if isinstance(name, ToolError):
            return name
        above = name.split("/")[:-1]
        missing = len(parts) - 1 - length
        made = ("/".join(above[:depth]) for depth in range(len(above) - missing + 1, len(above) + 1))
        self.plan.made.extend(each for each in made if each not in self.plan.made)
        self.plan.effects.append(PlannedEffect(FileEffect(name, _NO_FILE, after), doing, place, data, original))
        return name

    def _expected(self, placed: PlacedChange) -> Expected:
        change = placed.change
        keeps = change.data is None if isinstance(change, MoveFile) else change.even_read_only
        return Expected(placed.doing, change.expected_sha256, writable=not keeps, whole=self._backups)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _bits(mode: int | None) -> int | None:
    return None if mode is None else mode & PERMISSION_BITS
