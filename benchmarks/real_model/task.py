"""A task of the evaluation: the request of a user in a workspace, and its check.

A task and its check (`checking.py`) are plain data, so that `repr` shows the complete task.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal[
    "repair",
    "one_file",
    "several_files",
    "other_files",
    "new_files",
    "unnamed",
    "question",
    "refusal",
    "everyday",
    "order",
    "exercism",
    "humanevalfix",
]
Half = Literal["dev", "held_out"]
Check = Callable[[Path, str], str | None]
"""A function of the workspace and the final answer ("" without an answer). It returns None if the task is solved,
otherwise a sentence with the problem. It does not change the workspace."""


@dataclass(frozen=True)
class Task:
    """A request, its workspace, and its check."""

    name: str
    """Unique among all tasks; letters, digits and underscores."""
    kind: Kind
    half: Half
    """"dev" is for tuning the harness, "held_out" only for reports. Assigned by position, not by difficulty."""
    request: str
    """The text of the user."""
    files: Mapping[str, str]
    """The workspace before the run: the texts by relative path, with their line ends."""
    check: Check
    changes: bool
    """Whether files must change. False for questions and for requests that must be refused."""
    solution: Mapping[str, str | None]
    """The reference solution for the tests of the tasks: the files that it writes; None is a deletion."""
    again: str = ""
    """The user's text after the check's problem, for a second try in the same conversation; "" without a second try."""


def write_files(folder: Path, files: Mapping[str, str | None]) -> None:
    """Write `files` below `folder`, as UTF-8 with unchanged line ends; None removes a file."""
    for path, text in files.items():
        file = folder / path
        if text is None:
            file.unlink()
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())


def replace_once(text: str, old: str, new: str) -> str:
    """Return `text` with its only occurrence of `old` replaced by `new`.

    Raises:
        ValueError: `old` does not occur exactly once.
    """
    if text.count(old) != 1:
        raise ValueError(f"{old!r} is in the text {text.count(old)} times instead of once")
    return text.replace(old, new)
