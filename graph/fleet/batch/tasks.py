"""The tasks of a batch: what one is made of, how a file of them is read, and whether what they work on is there.

A task file holds a JSON object on each line, with the keys `id`, `prompt`, `workspace` and, where they are wanted,
`revision` and `limits`. Empty lines are passed over. All that is wrong with a file is reported at once.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.settings_file import MORE_PROBLEMS, MOST_PROBLEMS, Problem
from mendgraph.nodes.execute_tools.copies.workspace_copies import pin_source
from mendgraph.nodes.execute_tools.files.failures import os_failure, quoted
from mendgraph.nodes.execute_tools.store.user_files import lines_of, open_regular
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.records import JsonMap, ToolError

_ID: Final = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,100}")
_ID_REMEDY: Final = "use 1 to 100 of the characters A-Z a-z 0-9 . _ - and no dot at the beginning: it names files"
_OTHERS: Final = frozenset({"tool_timeouts_s", "tool_quotas", "tool_calls_per_minute"})

LIMITS: Final = frozenset(
    name
    for name in AgentContext.model_fields
    if name in _OTHERS or (name.startswith("max_") and not name.endswith("_per_account")) or name.endswith("_timeout_s")
)
"""The fields of `AgentContext` that a task may set for itself; those of an account are the whole batch's."""


class BatchTask(BaseModel):
    """One task of a batch.

    `id` names its result, its copy and its patch. `workspace` is a folder, `revision` a commit, tag or
    branch where it is a git repository ("" is what is checked out there, HEAD). `limits` are fields of `AgentContext`
    (`LIMITS`) that hold for this task alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: str
    prompt: str
    workspace: str = Field(min_length=1)
    revision: str = ""
    limits: dict[str, Any] = {}

    @field_validator("id")
    @classmethod
    def _names_files(cls, value: str) -> str:
        if not _ID.fullmatch(value):
            raise PydanticCustomError("id", "{what}", {"what": _ID_REMEDY})
        return value

    @field_validator("prompt")
    @classmethod
    def _says_something(cls, value: str) -> str:
        if not value.strip():
            raise PydanticCustomError("prompt", "it is empty: say in words what is wanted")
        return value

    @field_validator("prompt", "workspace", "revision")
    @classmethod
    def _is_text(cls, value: str) -> str:
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise PydanticCustomError("text", "it holds a NUL or half of a surrogate pair, which no text has")
        return value

    @field_validator("revision")
    @classmethod
    def _is_no_option(cls, value: str) -> str:
        if value.startswith("-"):
            raise PydanticCustomError("revision", "no revision begins with a hyphen")
        return value

    @field_validator("limits")
    @classmethod
    def _are_limits(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if name not in LIMITS:
                meant = ", ".join(closest_names(name, LIMITS)) or "the limits of `mendgraph config show`"
                message = "{name} is no limit that a task may set: did you mean {meant}?"
                raise PydanticCustomError("limits", message, {"name": repr(name), "meant": meant})
        try:
            AgentContext(**value)
        except ValidationError as error:
            raise PydanticCustomError("limits", "{what}", {"what": "; ".join(_problems(error))}) from None
        return value

    @property
    def sha256(self) -> str:
        """What the task is known by: another prompt, workspace, revision or limit makes it another task."""
        whole = json.dumps(self.model_dump(mode="json"), sort_keys=True, ensure_ascii=True)
        return sha256(whole.encode()).hexdigest()


class ReadTask(NamedTuple):
    """A task, and the line of the file that it stands on, counted from 1."""

    task: BatchTask
    line: int


Source = tuple[str, str]
"""A workspace and a revision of it."""

PINNED_AT_ONCE: Final = 500
"""How many different sources are looked at before a batch begins; further ones when a task of theirs begins."""


class Sources(NamedTuple):
    """The commits that copies are made of, and sentences about what is in none of them."""

    pins: Mapping[Source, str]
    notes: tuple[str, ...] = ()


class Numbered:
    """Tasks in the order in which they come, each id once, and what is wrong with the others."""

    def __init__(self, file: str) -> None:
        """`file` is what problems call the place that the tasks come from."""
        self.file = file
        self.tasks: list[ReadTask] = []
        self.problems: list[Problem] = []
        self._seen: dict[str, ReadTask] = {}

    def add(self, task: BatchTask, line: int) -> None:
        """Take one more, unless its id was there before."""
        before = self._seen.setdefault(task.id.lower(), ReadTask(task, line))
        if before.line == line:
            self.tasks.append(before)
        else:
            self.problems.append(Problem(self.file, doubled(task.id, before.task.id, before.line), line, field="id"))


def read_task_file(path: str) -> tuple[list[ReadTask], list[Problem]]:
    """The tasks of a file, with absolute names of their workspaces, and all that is wrong with its other lines."""
    read = Numbered(path)
    base = os.path.dirname(os.path.abspath(path))
    try:
        with open_regular(path) as file:
            for number, line in enumerate(lines_of(file, "it"), 1):
                _add_line(read, line.decode("utf-8-sig" if number == 1 else "utf-8"), number, base)
                if len(read.problems) >= MOST_PROBLEMS:
                    read.problems.append(Problem(path, MORE_PROBLEMS, number))
                    break
    except OSError as error:
        return [], [Problem(path, os_failure(error, "read", path).message)]
    except UnicodeDecodeError as error:
        return [], [Problem(path, f"this is no UTF-8 text ({error.reason}): write it as UTF-8")]
    if not read.tasks and not read.problems:
        what = 'it holds no task: write {"id": ..., "prompt": ..., "workspace": ...} on a line'
        read.problems.append(Problem(path, what))
    return read.tasks, read.problems


def absolute(task: BatchTask, base: str) -> BatchTask:
    """The task with the absolute name of its workspace; a relative one is below `base`."""
    whole = os.path.normpath(os.path.join(base, os.path.expanduser(task.workspace)))
    return task if whole == task.workspace else task.model_copy(update={"workspace": whole})


def find_sources(
    tasks: Sequence[ReadTask], known: Mapping[Source, str], file: str = ""
) -> Sources | tuple[Problem, ...]:
    """Look at the workspaces of all tasks; every problem, with the line of the first task that has it.

    `known` are commits that were pinned at an earlier start, which are kept.
    """
    pins: dict[Source, str] = {}
    problems: list[Problem] = []
    notes: dict[str, None] = {}
    first: dict[Source, int] = {}
    for task, line in tasks:
        first.setdefault((task.workspace, task.revision), line)
    for number, (source, line) in enumerate(first.items()):
        workspace, revision = source
        if not os.path.exists(workspace):
            message = f"there is no workspace {quoted(workspace)}: name a folder that is there"
            problems.append(Problem(file, message, line, field="workspace"))
        elif source not in known and number < PINNED_AT_ONCE:
            found = pin_source(workspace, revision)
            if isinstance(found, ToolError):
                problems.append(Problem(file, found.message, line, field="workspace"))
            else:
                pins[source] = found.revision
                notes |= dict.fromkeys(found.notes)
    return tuple(problems) or Sources(pins, tuple(notes))


def doubled(new: str, before: str, line: int = 0) -> str:
    """The problem of an id that was there before. Not every file system tells small letters from large ones."""
    where = f" on line {line}" if line else ""
    if new == before:
        return f"the id {new!r} is there{where} already: give each task an id of its own"
    return f"the id {new!r} differs from {before!r}{where} in small and large letters alone: give each its own"


class _DoubledKeyError(ValueError):
    """A JSON object that has one key twice."""


def _add_line(read: Numbered, line: str, number: int, base: str) -> None:
    if not line.strip():
        return

    def wrong(message: str, column: int = 0, field: str = "") -> None:
        read.problems.append(Problem(read.file, message, number, column, field))

    try:
        value = json.loads(line.rstrip(), object_pairs_hook=_object, parse_constant=_no_constant)
        if isinstance(value, dict):
            read.add(absolute(BatchTask.model_validate(value, strict=True), base), number)
        else:
            wrong('this is no JSON object: write {"id": ..., "prompt": ..., "workspace": ...}')
    except ValidationError as error:
        for message in _problems(error):
            wrong(message, field=message.partition(":")[0])
    except json.JSONDecodeError as error:
        wrong(f"this is no JSON ({error.msg}): write one object on each line", error.colno)
    except _DoubledKeyError as error:
        wrong(f"the key {error.args[0]!r} is there twice: which one is meant?", field=str(error.args[0]))
    except (RecursionError, ValueError) as error:
        wrong(f"this is no JSON that can be read ({error})")


def _object(pairs: list[tuple[str, Any]]) -> JsonMap:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _DoubledKeyError(next(name for name in names if names.count(name) > 1))
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _problems(error: ValidationError) -> list[str]:
    """Each problem as `field: what is wrong`, with the words of pydantic."""
    return [_problem(each) for each in error.errors(include_url=False, include_input=False)]


def _problem(problem: Mapping[str, Any]) -> str:
    field = ".".join(map(str, problem["loc"]))
    if problem["type"] == "missing":
        return f"{field}: this key is missing"
    if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
        meant = closest_names(field, BatchTask.model_fields)
        return f"{field}: there is no such key" + (f": did you mean {meant[0]}?" if meant else "")
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{field}: {message}" if field else message
