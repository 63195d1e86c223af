"""What changes of files would come to: a workspace that takes them and makes none, for who has to agree to them first.

Files are read through the same judge and the same handles. What one call would change, the next one sees.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

from nodes.execute_tools.environment.change_places import Change, DeleteFile, MoveFile, WriteFile, placed_changes
from nodes.execute_tools.environment.change_plan import ChangedFile
from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.environment.file_reads import FileContent
from nodes.execute_tools.environment.sandbox import PathAccess, Place
from nodes.execute_tools.environment.workspace import Workspace
from nodes.records import ToolError, ToolErrorCode


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

    def write_file(self, path: str, data: bytes, *, expected_sha256: str) -> FileContent | ToolError:
        """Take one write."""
        done = self.change_files([WriteFile(path, data, expected_sha256)])
        return done if isinstance(done, ToolError) else FileContent.of(done[0].path, data)

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
