"""What has to be done so that files are again as they were before a run, and what stands in the way. Pure.

All that a run did to one path counts as one: how the path was before the first change, and how the last one left it.
Only a path that is still as the run left it is restored; what anybody else has changed meanwhile is an obstacle.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from nodes.execute_tools.environment.atomic_write import PERMISSION_BITS
from nodes.execute_tools.environment.journal_records import UNKNOWN_SHA256, FileState, RecordedChange
from nodes.records import ChangeKind

NO_FILE: Final = FileState()


class NetEffect(NamedTuple):
    """What a run did to one path in all. `gap`: between two of its changes somebody else changed the file."""

    path: str
    before: FileState
    after: FileState
    gap: bool = False


class FoundDirectory(NamedTuple):
    """A directory is at the path; all that lies below it, by the names in the workspace."""

    files: frozenset[str]
    directories: frozenset[str]


class FoundAbove(NamedTuple):
    """Nothing can be at the path, because a part of it is a file."""

    file: str


class Unusable(NamedTuple):
    """Something else is there, or it cannot be looked at."""

    why: str


Found: TypeAlias = FileState | FoundDirectory | FoundAbove | Unusable
"""What is at a path now; a `FileState` is a file, or that nothing is there."""


class Obstacle(StrEnum):
    """Why a file cannot be restored, in the words of messages."""

    CHANGED_SINCE = "Changed since the run"
    CHANGED_BETWEEN = "Changed also between two recorded changes of the run"
    NOT_KEPT = "Changed by a command, and what it held was not recorded"
    TOO_LARGE = "Too large to be replaced"
    BACKUP_MISSING = "The backup is missing or damaged"
    DENIED = "May not be written"


class LeftFile(NamedTuple):
    """A file that is not restored; `detail` says more than the obstacle does, or is ""."""

    path: str
    obstacle: Obstacle
    detail: str = ""

    @property
    def why(self) -> str:
        """The reason as one phrase."""
        return f"{self.obstacle}: {self.detail}" if self.detail else str(self.obstacle)


class RestoreStep(NamedTuple):
    """One file goes from how it is `now` to its `goal`."""

    path: str
    now: FileState
    goal: FileState

    @property
    def kind(self) -> ChangeKind:
        """What happens to the file: it is made again, gets its bytes and mode back, or goes away."""
        if not self.now.sha256:
            return ChangeKind.CREATED
        return ChangeKind.EDITED if self.goal.sha256 else ChangeKind.DELETED


class RestorePlan(NamedTuple):
    """What to do, all but the directories sorted by path.

    `clearing` are deletions that make room for the `steps`. `directories` are those that the run made, innermost
    first: they go where they are empty, before the steps and after them. `left` is not restored.
    """

    clearing: tuple[RestoreStep, ...]
    steps: tuple[RestoreStep, ...]
    directories: tuple[str, ...]
    left: tuple[LeftFile, ...]

    @property
    def all_steps(self) -> tuple[RestoreStep, ...]:
        """Every step in its order."""
        return self.clearing + self.steps


def net_effects(changes: Sequence[RecordedChange]) -> tuple[NetEffect, ...]:
    """What these changes of a run, newest first, did to each path in all; sorted, without what came to nothing."""
    found: dict[str, NetEffect] = {}
    for effect in (effect for change in reversed(changes) for effect in change.effects):
        earlier = found.get(effect.path, NetEffect(effect.path, effect.before, effect.before))
        gap = earlier.gap or not _may_be_one(earlier.after, effect.before)
        found[effect.path] = NetEffect(effect.path, earlier.before, effect.after, gap)
    return tuple(found[path] for path in sorted(found) if not _is_nothing(found[path]))


def restore_plan(
    changes: Sequence[RecordedChange],
    found: Mapping[str, Found],
    refused: Mapping[str, LeftFile] | None = None,
) -> RestorePlan:
    """How to take back these changes of a run, newest first. `found` is what is there now, by each path they concern.

    `refused` are files that would have to be restored, and cannot be for a reason that is not to be seen here.
    """
    refused = refused or {}
    made = frozenset(name for change in changes for name in change.made)
    steps: dict[str, RestoreStep] = {}
    left: dict[str, LeftFile] = {}
    effects = net_effects(changes)
    for effect in sorted(effects, key=lambda effect: not effect.after.sha256):  # what goes away makes room for others
        goes = {path for path, step in steps.items() if step.kind is ChangeKind.DELETED}
        now = _state(effect, found[effect.path], goes, made)
        if isinstance(now, FileState) and is_state(now, effect.before):
            continue
        obstacle = _obstacle(effect, now) or refused.get(effect.path)
        if obstacle is not None:
            left[effect.path] = obstacle
        elif isinstance(now, FileState):
            steps[effect.path] = RestoreStep(effect.path, now, effect.before)
    clearing = _in_the_way(steps)
    needed = {each for path, step in steps.items() if step.goal.sha256 for each in _above(path)}
    return RestorePlan(
        tuple(steps[path] for path in sorted(clearing)),
        tuple(steps[path] for path in sorted(steps.keys() - clearing)),
        tuple(sorted(made - needed, key=lambda name: (-name.count("/"), name))),
        tuple(left[path] for path in sorted(left)),
    )


def is_state(now: FileState, wanted: FileState) -> bool:
    """Whether a file is as it is wanted, as far as that is known."""
    if UNKNOWN_SHA256 in (now.sha256, wanted.sha256) or now.sha256 != wanted.sha256:
        return False
    return _same_mode(now, wanted)


def _may_be_one(one: FileState, other: FileState) -> bool:
    """Whether both may be the same state of a file: whatever is unknown speaks for it."""
    known = UNKNOWN_SHA256 not in (one.sha256, other.sha256)
    return not (known and one.sha256 != other.sha256) and _same_mode(one, other)


def _same_mode(one: FileState, other: FileState) -> bool:
    """Whether the bits that can be given agree, as far as both are known."""
    if one.mode is None or other.mode is None:
        return True
    return one.mode & PERMISSION_BITS == other.mode & PERMISSION_BITS


def _is_nothing(effect: NetEffect) -> bool:
    """Whether the run left the path as it had found it: then it is not the run's to touch."""
    return effect.before.mode == effect.after.mode and is_state(effect.after, effect.before)


def _state(effect: NetEffect, found: Found, goes: set[str], made: frozenset[str]) -> FileState | Unusable:
    """The file at the path, or that none is in its way once the files in `goes` and what held them are gone."""
    if isinstance(found, FileState | Unusable):
        return found
    if not effect.before.sha256:  # whatever it is, it is not the file
        return NO_FILE
    if isinstance(found, FoundAbove):
        return NO_FILE if found.file in goes else Unusable("a part of its path is a file now")
    emptied = found.files <= goes and found.directories | {effect.path} <= made
    return NO_FILE if emptied else Unusable("it is a directory now")


def _obstacle(effect: NetEffect, now: FileState | Unusable) -> LeftFile | None:
    if UNKNOWN_SHA256 in (effect.before.sha256, effect.after.sha256):
        return LeftFile(effect.path, Obstacle.NOT_KEPT)
    if isinstance(now, Unusable):
        return LeftFile(effect.path, Obstacle.CHANGED_SINCE, now.why)
    if not is_state(now, effect.after):
        return LeftFile(effect.path, Obstacle.CHANGED_SINCE)
    return LeftFile(effect.path, Obstacle.CHANGED_BETWEEN) if effect.gap else None


def _in_the_way(steps: Mapping[str, RestoreStep]) -> set[str]:
    """The files that have to go before others can come: they lie where those need a directory, or below them."""
    come = {path for path, step in steps.items() if step.kind is ChangeKind.CREATED}
    above = {each for path in come for each in _above(path)}
    return {
        path
        for path, step in steps.items()
        if step.kind is ChangeKind.DELETED and (path in above or not come.isdisjoint(_above(path)))
    }


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]
