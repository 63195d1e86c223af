"""The tasks of a batch: what one is made of, and how a file of them is read. Pure.

A task file holds a JSON object on each line, with the keys `id`, `prompt`, `workspace` and, where they are wanted,
`revision` and `limits`. Empty lines are passed over. All that is wrong with a file is told at once.
"""

import json
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.settings_file import MORE_PROBLEMS, MOST_PROBLEMS, Problem
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.records import JsonMap

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

    `id` names its result, its copy and its patch. `workspace` is a folder or an archive, `revision` a commit, tag or
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
            raise PydanticCustomError("limits", "{what}", {"what": "; ".join(_told(error))}) from None
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


def read_tasks(lines: Iterable[str], file: str = "") -> tuple[list[ReadTask], list[Problem]]:
    """The tasks of a file, and all that is wrong with its lines; `file` is its name for the problems."""
    tasks: list[ReadTask] = []
    problems: list[Problem] = []
    seen: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        found = _read_line(line)
        if isinstance(found, BatchTask):
            before = seen.setdefault(found.id.lower(), (found.id, number))
            if before[1] == number:
                tasks.append(ReadTask(found, number))
            else:
                problems.append(Problem(file, doubled(found.id, *before), number, field="id"))
        else:
            problems += [Problem(file, message, number, column, field) for message, column, field in found]
        if len(problems) >= MOST_PROBLEMS:
            problems.append(Problem(file, MORE_PROBLEMS, number))
            break
    if not tasks and not problems:
        problems.append(Problem(file, 'it holds no task: write {"id": ..., "prompt": ..., "workspace": ...} on a line'))
    return tasks, problems


def doubled(new: str, before: str, line: int = 0) -> str:
    """What is said of an id that was there before. Not every file system tells small letters from large ones."""
    where = f" on line {line}" if line else ""
    if new == before:
        return f"the id {new!r} is there{where} already: give each task an id of its own"
    return f"the id {new!r} differs from {before!r}{where} in small and large letters alone: give each its own"


class _DoubledKeyError(ValueError):
    """A JSON object that has one key twice."""


def _read_line(line: str) -> BatchTask | list[tuple[str, int, str]]:
    """The task, or what is wrong with it: message, column and field of each problem."""
    try:
        value = json.loads(line, object_pairs_hook=_object, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        return [(f"this is no JSON ({error.msg}): write one object on each line", error.colno, "")]
    except _DoubledKeyError as error:
        return [(f"the key {error.args[0]!r} is there twice: which one is meant?", 0, str(error.args[0]))]
    except RecursionError:
        return [("this is no JSON that can be read (nested too deep)", 0, "")]
    except ValueError as error:
        return [(f"this is no JSON that can be read ({error})", 0, "")]
    if not isinstance(value, dict):
        return [('this is no JSON object: write {"id": ..., "prompt": ..., "workspace": ...}', 0, "")]
    try:
        return BatchTask.model_validate(value, strict=True)
    except ValidationError as error:
        return [(message, 0, message.partition(":")[0]) for message in _told(error)]


def _object(pairs: list[tuple[str, Any]]) -> JsonMap:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _DoubledKeyError(next(name for name in names if names.count(name) > 1))
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _told(error: ValidationError) -> list[str]:
    """Each problem as `field: what is wrong`, with the words of pydantic."""
    return [_in_words(each) for each in error.errors(include_url=False, include_input=False)]


def _in_words(problem: Mapping[str, Any]) -> str:
    field = ".".join(map(str, problem["loc"]))
    if problem["type"] == "missing":
        return f"{field}: this key is missing"
    if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
        meant = closest_names(field, BatchTask.model_fields)
        return f"{field}: there is no such key" + (f": did you mean {meant[0]}?" if meant else "")
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{field}: {message}" if field else message
