"""Workspaces for approvals: one that only takes changes, to show them, and one that makes those that a person saw.

In a dry one files are read through the same judge and the same handles. What one call would change, the next one sees.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from mendgraph.nodes.execute_tools.files.change_plan import (
    Change,
    ChangedFile,
    DeleteFile,
    MoveFile,
    placed_changes,
)
from mendgraph.nodes.execute_tools.files.failures import quoted
from mendgraph.nodes.execute_tools.files.file_reads import FileContent
from mendgraph.nodes.execute_tools.files.sandbox import PathAccess, Place
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.records import ToolError, ToolErrorCode

Pin = tuple[str, str, str]
"""A change that was allowed: the path, the hash of the file then ("": none), and the mark of the change ("": any)."""


def change_mark(before: bytes | None, after: bytes | None, target: str = "") -> str:
    """A short name of a change: the same wherever it stands in a file, another one for any other change."""
    old, new = _lines(before), _lines(after)
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    parts = [b"" if after is not None else b"gone", b"" if before is not None else b"new", target.encode()]
    digest = hashlib.sha256()
    for part in (*parts, b"".join(old[start : len(old) - end]), b"".join(new[start : len(new) - end])):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:32]


class ApprovedWorkspace(Workspace):
    """Refuses (CONFLICT) what the pins do not allow: another file, one that was changed since, or another change."""

    _pins: dict[str, Pin]
    _known: Mapping[str, str]

    @classmethod
    def of(cls, workspace: Workspace, pins: Sequence[Pin], known: Mapping[str, str]) -> Self:
        """The same files. `known` are the hashes of those that this step has changed itself, by their real names."""
        bound = cls.__new__(cls)
        vars(bound).update(vars(workspace))
        bound._pins, bound._known = {pin[0]: pin for pin in pins}, known  # noqa: SLF001 - its own kind
        return bound

    def change_files(self, changes: Sequence[Change]) -> tuple[ChangedFile, ...] | ToolError:
        """As in `Workspace`, where a person has allowed all of it."""
        refusals = (self._refusal_of(change) for change in changes)
        return next((each for each in refusals if each is not None), None) or super().change_files(changes)

    def _refusal_of(self, change: Change) -> ToolError | None:
        if isinstance(change, MoveFile):
            goal = self._paths.place(change.target, PathAccess.WRITE_FILE)
            target = goal.real if isinstance(goal, Place) else change.target
            return self._refusal(change.path, change.expected_sha256, change.data, target)
        after = None if isinstance(change, DeleteFile) else change.data
        return self._refusal(change.path, change.expected_sha256, after)

    def _refusal(self, path: str, expected: str, after: bytes | None, target: str = "") -> ToolError | None:
        place = self._paths.place(path, PathAccess.WRITE_FILE)
        if isinstance(place, ToolError):
            return place
        pin = self._pins.get(path) or self._pins.get(place.real)
        if pin is None:
            free = bool(self._pins) and not any(mark for _, _, mark in self._pins.values())
            return None if free else _conflict(f"A person did not see a change of {quoted(place.real)} in this call")
        if expected != self._known.get(place.real, pin[1]):
            return _conflict(f"{quoted(place.real)} has changed since a person was shown this call")
        if not pin[2]:
            return None
        now = self.read_file(path) if expected else None
        before = now.data if isinstance(now, FileContent) else None
        made = before if target and after is None else after
        if change_mark(before, made, target) == pin[2]:
            return None
        return _conflict(f"This call would change {quoted(place.real)} in another way than a person was shown")


def _lines(data: bytes | None) -> list[bytes]:
    return (data or b"").splitlines(keepends=True)


def _conflict(reason: str) -> ToolError:
    message = f"{reason}, so nothing was changed: read_file it, and make the call anew."
    return ToolError(code=ToolErrorCode.CONFLICT, message=message)


class DryChange(NamedTuple):
    """A change that was not made. `path` is the name that was given, `name` the real one, `target` that of a move.

    `before` and `after` are None where there is no file; `sha256` is the hash of what is on the disk, "" for nothing.
    """

    path: str
    name: str
    target: str
    before: bytes | None
    after: bytes | None
    sha256: str


class DryWorkspace(Workspace):
    """Takes changes without making any, in order; `made` are those that it took."""

    made: list[DryChange]
    _files: dict[str, bytes | None]

    @classmethod
    def of(cls, workspace: Workspace) -> Self:
        """A dry one of the same files."""
        dry = cls.__new__(cls)
        vars(dry).update(vars(workspace))
        dry.made, dry._files, dry.recorder = [], {}, None  # noqa: SLF001 - its own kind
        return dry

    def real_name(self, path: str) -> str:
        """Where the path leads, by links too; "" where it may not be used."""
        place = self._paths.place(path, PathAccess.READ_FILE)
        return place.real if isinstance(place, Place) else ""

    def on_disk(self, name: str) -> str:
        """The hash of what a file really holds, "" where there is none that may be read."""
        found = super().read_file(name)
        return found.sha256 if isinstance(found, FileContent) else ""

    def read_file(self, path: str, max_bytes: int = 10_000_000) -> FileContent | ToolError:
        """The file as it would be after the changes so far."""
        name = self.real_name(path)
        if name not in self._files:
            return super().read_file(path, max_bytes)
        data = self._files[name]
        if data is None:
            message = f"{quoted(name)} would be gone: an earlier call of this reply takes it away."
            return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)
        return FileContent.of(name, data)

    def exists(self, path: str) -> bool:
        """Whether something would be there after the changes so far."""
        name = self.real_name(path)
        return self._files[name] is not None if name in self._files else super().exists(path)

    def change_files(self, changes: Sequence[Change]) -> tuple[ChangedFile, ...] | ToolError:
        """Take all changes, or none."""
        names = {self.real_name(each.path) for each in changes}
        if names.isdisjoint(self._files):
            placed = placed_changes(self._paths, changes)
            if isinstance(placed, ToolError):
                return placed
        taken: list[DryChange] = []
        for change in changes:
            planned = self._taken(change)
            if isinstance(planned, ToolError):
                return planned
            taken.append(planned)
        for each in taken:
            self._files[each.name] = None if each.target else each.after
            if each.target:
                self._files[each.target] = each.after
        self.made.extend(taken)
        return tuple(_told(each) for each in taken)

    def _taken(self, change: Change) -> DryChange | ToolError:
        place = self._paths.place(change.path, PathAccess.WRITE_FILE)
        if isinstance(place, ToolError):
            return place
        now = self.read_file(change.path)
        before = now.data if isinstance(now, FileContent) else None
        if (now.sha256 if isinstance(now, FileContent) else "") != change.expected_sha256:
            message = f"{quoted(place.real)} is not what this change is for."
            return ToolError(code=ToolErrorCode.CONFLICT, message=message)
        target, after = "", None if isinstance(change, DeleteFile) else change.data
        if isinstance(change, MoveFile):
            goal = self._paths.place(change.target, PathAccess.WRITE_FILE)
            if isinstance(goal, ToolError):
                return goal
            target, after = goal.real, before if change.data is None else change.data
        return DryChange(change.path, place.real, target, before, after, self.on_disk(place.real))


def _told(change: DryChange) -> ChangedFile:
    sha256 = "" if change.after is None else FileContent.of(change.name, change.after).sha256
    return ChangedFile(change.name, change.target, sha256)
