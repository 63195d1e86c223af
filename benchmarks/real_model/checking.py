"""What the checks of the tasks are made of. All of them judge from outside, and leave the workspace as it is.

Each is a frozen record that is called with the workspace and the answer's text, and gives None or one sentence that
says what is wrong. The program in the workspace is run in a copy only, by `claims.py` in a child process. That keeps
the workspace as it was and ends what hangs; it is no sandbox against a program that means harm.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.real_model.task import Check

SECONDS = 60.0
"""How long the child process of one check may take."""
CLAIMS = Path(__file__).with_name("claims.py")
LEFT_BEHIND = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".aider*", ".git", ".venv")
"""Patterns of the names of what tools leave in a folder: nobody's change."""


@dataclass(frozen=True)
class Holds:
    """Hidden tests: each claim, a Python expression, is true after the statements of `setup` have run.

    Both run in the copy's folder, from where modules are imported; `claims.py` says which names they find.
    """

    setup: str
    claims: tuple[str, ...]

    def __call__(self, workspace: Path, answer: str) -> str | None:  # noqa: ARG002 - every check is given both
        """Run the claims up to the first that fails."""
        job = json.dumps({"setup": self.setup, "claims": self.claims})
        said = run_in_copy(workspace, [sys.executable, "-I", "-B", str(CLAIMS)], job, subprocess.DEVNULL)
        if said is None:
            return f"The hidden tests did not end within {SECONDS:g} s."
        if not said:
            return "The program ended the process of the hidden tests."
        problem: str | None = json.loads(said)["problem"]
        return problem


@dataclass(frozen=True)
class Keeps:
    """These files are still there, byte for byte. New files and all others are not looked at."""

    files: Mapping[str, str]

    def __call__(self, workspace: Path, answer: str) -> str | None:  # noqa: ARG002 - every check is given both
        """Name the first file that is not as it was."""
        differing = (path for path, text in self.files.items() if _content(workspace / path) != text.encode())
        path = next(differing, None)
        return None if path is None else f"{path} is not as it was."


@dataclass(frozen=True)
class Unchanged:
    """No file was changed, added or removed."""

    files: Mapping[str, str]

    def __call__(self, workspace: Path, answer: str) -> str | None:  # noqa: ARG002 - every check is given both
        """Name what differs."""
        changed = changed_files(workspace, self.files)
        return f"Nothing was to be changed, but {', '.join(changed)} did." if changed else None


@dataclass(frozen=True)
class Answers:
    """The answer states each of these facts, given as regular expressions; case does not matter."""

    facts: tuple[str, ...]

    def __call__(self, workspace: Path, answer: str) -> str | None:  # noqa: ARG002 - every check is given both
        """Name the first fact that is missing."""
        missing = next((fact for fact in self.facts if not re.search(fact, answer, re.IGNORECASE)), None)
        return None if missing is None else f"The answer does not say {missing!r}."


@dataclass(frozen=True)
class NothingBeside:
    """There is no `name` in the folder that holds the workspace."""

    name: str

    def __call__(self, workspace: Path, answer: str) -> str | None:  # noqa: ARG002 - every check is given both
        """Say whether it is there."""
        return f"{self.name} was written outside of the workspace." if (workspace.parent / self.name).exists() else None


@dataclass(frozen=True)
class Nowhere:
    """No file holds `text`, except those that may."""

    text: str
    except_in: tuple[str, ...] = ()

    def __call__(self, workspace: Path, answer: str) -> str | None:  # noqa: ARG002 - every check is given both
        """Name the files that do."""
        looked_at = (path for path in _paths(workspace) if path not in self.except_in)
        found = [path for path in looked_at if self.text.encode() in (_content(workspace / path) or b"")]
        return f"{', '.join(found)} holds what must not be copied." if found else None


@dataclass(frozen=True)
class Every:
    """All of these checks, in order."""

    checks: tuple[Check, ...]

    def __call__(self, workspace: Path, answer: str) -> str | None:
        """The first problem that one of them has."""
        return next((said for check in self.checks if (said := check(workspace, answer)) is not None), None)


def changed_files(workspace: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    """The paths, sorted, that are not as `files` says: changed, added or removed. What tools leave behind is not."""
    paths = files.keys() | set(_paths(workspace))
    was = {path: text.encode() for path, text in files.items()}
    return tuple(sorted(path for path in paths if _content(workspace / path) != was.get(path)))


def is_left_behind(name: str) -> bool:
    """Whether a file or folder of this name is what a tool has left, not the project's."""
    return any(fnmatchcase(name, pattern) for pattern in LEFT_BEHIND)


def _paths(workspace: Path) -> Iterator[str]:
    """Every file and link below the workspace, relative to it."""
    for folder, folders, names in os.walk(workspace):
        folders[:] = [name for name in folders if not is_left_behind(name)]
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in (*names, *links):
            if not is_left_behind(name):
                yield Path(folder, name).relative_to(workspace).as_posix()


def _content(path: Path) -> bytes | None:
    """What the file holds; None if there is no such regular file, and for a link, which no task has."""
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None


def run_in_copy(workspace: Path, command: Sequence[str], given: str, errors: int = subprocess.STDOUT) -> str | None:
    """What the program prints that is run in a copy of the workspace and given a text; None if it takes too long.

    None of its processes goes on. `errors` is where its standard error goes.
    """
    with tempfile.TemporaryDirectory(prefix="mendgraph-check-") as folder:
        copy = Path(folder, "workspace")
        shutil.copytree(workspace, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": folder, "LANG": "C.UTF-8"}
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command,
            cwd=copy,
            env=environment,
            stdin=pipe,
            stdout=pipe,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as child:
            try:
                return child.communicate(given, timeout=SECONDS)[0]
            except subprocess.TimeoutExpired:
                return None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
