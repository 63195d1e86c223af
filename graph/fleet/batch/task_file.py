"""The file of tasks on the disk, and whether what its tasks work on is there."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mendgraph.graph.configuration.settings_file import Problem
from mendgraph.graph.fleet.batch.copies import pin_revision
from mendgraph.graph.fleet.batch.tasks import BatchTask, ReadTask, read_tasks
from mendgraph.nodes.execute_tools.files.failures import os_failure, quoted
from mendgraph.nodes.execute_tools.store.user_files import lines_of, open_regular
from mendgraph.nodes.records import ToolError

PINNED_AT_ONCE: Final = 500
"""How many different workspaces and revisions are looked at before a batch begins; further ones when a task begins."""

Source = tuple[str, str]
"""A workspace and a revision of it."""


@dataclass(frozen=True)
class Sources:
    """The commits that copies are made of, and sentences about what is in none of them."""

    pins: Mapping[Source, str]
    notes: tuple[str, ...] = ()


def read_task_file(path: str) -> tuple[list[ReadTask], list[Problem]]:
    """The tasks of a file, with absolute names of their workspaces, and all that is wrong with the others."""
    try:
        with open_regular(path) as file:
            tasks, problems = read_tasks(_texts(lines_of(file, "it")), path)
    except OSError as error:
        return [], [Problem(path, os_failure(error, "read", path).message)]
    except UnicodeDecodeError as error:
        return [], [Problem(path, f"this is no UTF-8 text ({error.reason}): write it as UTF-8")]
    base = os.path.dirname(os.path.abspath(path))
    return [ReadTask(absolute(task, base), line) for task, line in tasks], problems


def _texts(lines: Iterable[bytes]) -> Iterator[str]:
    """The lines as text; a byte order mark may stand before the first."""
    for number, line in enumerate(lines):
        yield line.decode("utf-8" if number else "utf-8-sig")


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
    seen: set[Source] = set()
    for task, line in tasks:
        source = (task.workspace, task.revision)
        if source in seen:
            continue
        seen.add(source)
        if not os.path.exists(task.workspace):
            message = f"there is no workspace {quoted(task.workspace)}: name a folder or an archive that is there"
            problems.append(Problem(file, message, line, field="workspace"))
        elif source not in known and len(seen) <= PINNED_AT_ONCE:
            found = pin_revision(task)
            if isinstance(found, ToolError):
                problems.append(Problem(file, found.message, line, field="workspace"))
            else:
                pins[source] = found.revision
                notes |= dict.fromkeys(found.notes)
    return tuple(problems) or Sources(pins, tuple(notes))
