"""One task of the evaluation: what a user asks in a workspace, and how to see whether it was done.

A task is plain data, its check included (`checking.py`), so that its `repr` is its whole text.
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
"""Takes the workspace and the text of the final answer ("" if there is none). Gives None where the task is solved,
else one sentence that says why not. It changes nothing in the workspace."""


@dataclass(frozen=True)
class Task:
    """A request, the workspace that it is made in, and the check from outside of that workspace."""

    name: str
    """Unique among all tasks; letters, digits and underscores."""
    kind: Kind
    half: Half
    """"dev" may be looked at while the harness is tuned, "held_out" only to report. By position, not by difficulty."""
    request: str
    """What the user types."""
    files: Mapping[str, str]
    """The workspace before the run: relative path to text, with its own line ends."""
    check: Check
    changes: bool
    """Whether files have to change. False for questions and for what has to be refused."""
    solution: Mapping[str, str | None]
    """A reference for the tests of the tasks: the files that it writes; None stands for a deletion."""
    again: str = ""
    """What the user types below what the check has said, for a second try in the same conversation; "" for no such."""


def write_files(folder: Path, files: Mapping[str, str | None]) -> None:
    """Lay `files` out below `folder`, as UTF-8 and with exactly these line ends; None removes a file."""
    for path, text in files.items():
        place = folder / path
        if text is None:
            place.unlink()
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode())


def replace_once(text: str, old: str, new: str) -> str:
    """`text` with its one `old` exchanged for `new`: how solutions are written down.

    Raises:
        ValueError: `old` is not there, or more than once.
    """
    if text.count(old) != 1:
        raise ValueError(f"{old!r} is in the text {text.count(old)} times instead of once")
    return text.replace(old, new)
