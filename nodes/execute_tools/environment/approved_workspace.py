"""A workspace for a call that a person has allowed: it makes the changes that the person saw, and no others."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Self

from nodes.execute_tools.environment.change_places import Change, DeleteFile, MoveFile
from nodes.execute_tools.environment.change_plan import ChangedFile
from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.environment.file_reads import FileContent
from nodes.execute_tools.environment.sandbox import PathAccess, Place
from nodes.execute_tools.environment.workspace import Workspace
from nodes.records import ToolError, ToolErrorCode

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

    def write_file(self, path: str, data: bytes, *, expected_sha256: str) -> FileContent | ToolError:
        """As in `Workspace`, where a person has allowed it."""
        refusal = self._refusal(path, expected_sha256, data)
        return refusal or super().write_file(path, data, expected_sha256=expected_sha256)

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
