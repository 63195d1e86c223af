"""What each way into the workspace makes of one spelling, and what it should make of it."""

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from mendgraph.nodes.execute_tools.files.file_reads import FileContent, OpenedFile
from mendgraph.nodes.execute_tools.files.judged_paths import JudgedPaths
from mendgraph.nodes.execute_tools.files.sandbox import PathAccess, PathSandbox
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from mendgraph.nodes.guard.policy import judge_path
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.attacks.layouts import INSIDE, SECRET

DENIED, INVALID = ToolErrorCode.PERMISSION_DENIED, ToolErrorCode.INVALID_ARGUMENT
CONFLICT, MISSING = ToolErrorCode.CONFLICT, ToolErrorCode.NOT_FOUND
NEW: Final = b"new bytes"

Answer: TypeAlias = object
"""An error's code, or what was found: names, (name, bytes), True, None."""

judge = partial(judge_path, rules=DEFAULT_GUARDRAIL_RULES)


@dataclass(frozen=True)
class Door:
    """One workspace, with the real rules of guard."""

    root: Path
    workspace: Workspace
    paths: JudgedPaths
    sandbox: PathSandbox

    @classmethod
    def of(cls, root: Path) -> "Door":
        return cls(root, Workspace(str(root), judge), JudgedPaths(str(root), judge), PathSandbox(str(root)))


def _read(door: Door, path: str) -> Answer:
    found = door.workspace.read_file(path)
    return (found.path, found.data) if isinstance(found, FileContent) else _code(found)


def _open(door: Door, path: str) -> Answer:
    found = door.workspace.open_file(path)
    if not isinstance(found, OpenedFile):
        return _code(found)
    with found:
        return found.path, found.stream.read()


def _code(error: ToolError) -> ToolErrorCode:
    """A refusal is one printable line and gives no secret away."""
    assert error.message.isprintable()
    assert SECRET.decode() not in str(error)
    return error.code


def _list(door: Door, path: str) -> Answer:
    found = door.workspace.list_directory(path)
    return _code(found) if isinstance(found, ToolError) else _names(entry.path for entry in found)


def _walk(door: Door, path: str) -> Answer:
    return _names(entry.path for entry in door.workspace.walk(path))


def _names(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(found))


def _denied(door: Door, path: str, *, for_write: bool) -> Answer:
    found = door.paths.denied_file(path, for_write=for_write)
    return None if found is None else _code(found)


def _resolve(door: Door, path: str, *, access: PathAccess) -> Answer:
    found = door.sandbox.resolve(path, access)
    return _code(found) if isinstance(found, ToolError) else os.path.relpath(found, door.root)


LOOKING: Final[dict[str, Callable[[Door, str], Answer]]] = {
    "read_file": _read,
    "open_file": _open,
    "list_directory": _list,
    "walk": _walk,
    "exists": lambda door, path: door.workspace.exists(path),
    "suggest": lambda door, path: door.workspace.suggest(path),
    "denied for reading": partial(_denied, for_write=False),
    "denied for writing": partial(_denied, for_write=True),
    "resolve to read": partial(_resolve, access=PathAccess.READ_FILE),
    "resolve to write": partial(_resolve, access=PathAccess.WRITE_FILE),
    "resolve to list": partial(_resolve, access=PathAccess.LIST_DIR),
}
"""The operations that may change nothing."""


def create(door: Door, path: str) -> Answer:
    """A new file."""
    return _written(door.workspace.write_file(path, NEW, expected_sha256=""))


def replaced(door: Door, path: str, data: bytes) -> Answer:
    """A new content for a file that holds `data`."""
    return _written(door.workspace.write_file(path, NEW, expected_sha256=hashlib.sha256(data).hexdigest()))


def _written(done: FileContent | ToolError) -> Answer:
    return done.path if isinstance(done, FileContent) else _code(done)


@dataclass(frozen=True)
class Outcome:
    """What is expected of each operation. `data` is what a replacement expects to find."""

    answers: dict[str, Answer]
    data: bytes = INSIDE

    def but(self, answers: dict[str, Answer]) -> "Outcome":
        """The same with some other answers."""
        assert answers.keys() <= self.answers.keys()
        return replace(self, answers={**self.answers, **answers})


_FILES: Final = (
    *("read_file", "open_file", "create", "replace"),
    *("denied for reading", "denied for writing", "resolve to read", "resolve to write"),
)
"""The operations that want a file."""


def file_at(real: str, data: bytes = INSIDE) -> Outcome:
    """An allowed file."""
    content: dict[str, Answer] = {
        "read_file": (real, data),
        "open_file": (real, data),
        "create": CONFLICT,
        "replace": real,
    }
    return replace(no_file_at(real).but(content), data=data)


def directory_at(real: str, *names: str) -> Outcome:
    """A directory that holds these names."""
    return no_file_at(real).but({"list_directory": names, "walk": names})


def no_file_at(real: str) -> Outcome:
    """A pipe or a socket."""
    answers: dict[str, Answer] = {
        **dict.fromkeys(("read_file", "open_file", "create", "replace", "list_directory"), INVALID),
        "walk": (),
        "exists": True,
        "suggest": (),
        **dict.fromkeys(("denied for reading", "denied for writing")),
        **dict.fromkeys(("resolve to read", "resolve to write", "resolve to list"), real),
    }
    return Outcome(answers)


def nothing_at(real: str) -> Outcome:
    """A name that is free, in a directory that exists."""
    missing = dict.fromkeys(("read_file", "open_file", "list_directory", "resolve to read", "resolve to list"), MISSING)
    return no_file_at(real).but({**missing, "create": real, "replace": CONFLICT, "exists": False})


def refused(code: ToolErrorCode) -> Outcome:
    """Nothing may be done, whatever is there."""
    everything = dict.fromkeys((*_FILES, "list_directory", "resolve to list"), code)
    return Outcome({**everything, "walk": (), "exists": False, "suggest": ()})


def secret_at(real: str) -> Outcome:
    """A name that guard denies; the sandbox alone knows no rules."""
    resolved = dict.fromkeys(("resolve to read", "resolve to write", "resolve to list"), real)
    return replace(refused(DENIED).but({**resolved}), data=SECRET)


def new_secret_at(real: str) -> Outcome:
    """The same where nothing is yet."""
    return secret_at(real).but({"resolve to read": MISSING, "resolve to list": MISSING})


def secret_by_hard_link(real: str) -> Outcome:
    """A harmless name of a denied file: it is known, but neither read nor written."""
    refusals = dict.fromkeys(("read_file", "open_file", "replace", "denied for reading", "denied for writing"), DENIED)
    return replace(no_file_at(real).but({**refusals, "create": CONFLICT}), data=SECRET)


def with_slash(outcome: Outcome) -> Outcome:
    """The same with a slash at the end: no file is spelled so, and what leads out is denied before that."""
    if outcome.answers["resolve to read"] is DENIED:
        return outcome
    return outcome.but(dict.fromkeys(_FILES, INVALID))
