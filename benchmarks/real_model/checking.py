"""The checks of the tasks. They do not change the workspace.

Each check is a frozen record. Called with the workspace and the answer's text, it returns None, or a sentence with the
problem. `claims.py` runs the program of the workspace in a copy, in a child process with a time limit. That is not a
sandbox against a malicious program. Renaming a check changes the digests of the tasks, and so discards their results.
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
"""The time limit of a check's child process."""
CLAIMS = Path(__file__).with_name("claims.py")
TOOL_FILES = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".aider*", ".git", ".venv")
"""The name patterns of files that tools create, which are not changes of the agent."""


@dataclass(frozen=True)
class Holds:
    """Hidden tests: each claim, a Python expression, is true after the statements of `setup`.

    Both run in the copy's folder and can import its modules. `claims.py` documents their names.
    """

    setup: str
    claims: tuple[str, ...]

    def __call__(self, workspace: Path, answer: str) -> str | None:  # noqa: ARG002 - the signature of a check
        """Run the claims up to the first one that fails."""
        job = json.dumps({"setup": self.setup, "claims": self.claims})
        output = run_in_copy(workspace, [sys.executable, "-I", "-B", str(CLAIMS)], job, subprocess.DEVNULL)
        if output is None:
            return f"The hidden tests did not end within {SECONDS:g} s."
        if not output:
            return "The program ended the process of the hidden tests."

        problem: str | None = json.loads(output)["problem"]
        return problem


@dataclass(frozen=True)
class Keeps:
    """These files have not changed. Other files and new files are not checked."""

    files: Mapping[str, str]

    def __call__(self, workspace: Path, answer: str) -> str | None:  # noqa: ARG002 - the signature of a check
        """Name the first changed file."""
        for path, text in self.files.items():
            if _content(workspace / path) != text.encode():
                return f"{path} is not as it was."
        return None


@dataclass(frozen=True)
class Unchanged:
    """No file was changed, added or removed."""

    files: Mapping[str, str]

    def __call__(self, workspace: Path, answer: str) -> str | None:  # noqa: ARG002 - the signature of a check
        """Name the changed files."""
        paths = changed_files(workspace, self.files)
        return f"Nothing was to be changed, but {', '.join(paths)} did." if paths else None


@dataclass(frozen=True)
class Answers:
    """The answer states each of these facts, which are regular expressions that ignore case."""

    facts: tuple[str, ...]

    def __call__(self, workspace: Path, answer: str) -> str | None:  # noqa: ARG002 - the signature of a check
        """Name the first missing fact."""
        for fact in self.facts:
            if not re.search(fact, answer, re.IGNORECASE):
                return f"The answer does not say {fact!r}."
        return None


@dataclass(frozen=True)
class NothingBeside:
    """The parent folder of the workspace has no entry `name`."""

    name: str

    def __call__(self, workspace: Path, answer: str) -> str | None:  # noqa: ARG002 - the signature of a check
        """Report an existing entry."""
        if not (workspace.parent / self.name).exists():
            return None
        return f"{self.name} was written outside of the workspace."


@dataclass(frozen=True)
class Nowhere:
    """No file contains `text`, except those in `except_in`."""

    text: str
    except_in: tuple[str, ...] = ()

    def __call__(self, workspace: Path, answer: str) -> str | None:  # noqa: ARG002 - the signature of a check
        """Name the files that contain the text."""
        data = self.text.encode()
        paths = [path for path in _paths(workspace) if path not in self.except_in]
        copies = [path for path in paths if data in (_content(workspace / path) or b"")]
        return f"{', '.join(copies)} holds what must not be copied." if copies else None


@dataclass(frozen=True)
class Every:
    """All of these checks, in order."""

    checks: tuple[Check, ...]

    def __call__(self, workspace: Path, answer: str) -> str | None:
        """Return the first problem."""
        for check in self.checks:
            problem = check(workspace, answer)
            if problem is not None:
                return problem
        return None


def changed_files(workspace: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    """Return the sorted paths of files that were changed, added or removed. Files of tools are ignored."""
    paths = files.keys() | set(_paths(workspace))
    contents = {path: text.encode() for path, text in files.items()}
    return tuple(sorted(path for path in paths if _content(workspace / path) != contents.get(path)))


def is_tool_file(name: str) -> bool:
    """Whether a tool creates files or folders with this name."""
    return any(fnmatchcase(name, pattern) for pattern in TOOL_FILES)


def _paths(workspace: Path) -> Iterator[str]:
    """Yield the relative path of every file and link below the workspace."""
    for folder, folders, names in os.walk(workspace):
        folders[:] = [name for name in folders if not is_tool_file(name)]
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in (*names, *links):
            if not is_tool_file(name):
                yield Path(folder, name).relative_to(workspace).as_posix()


def _content(path: Path) -> bytes | None:
    """Return the content of a regular file; None for links and missing files."""
    if path.is_symlink() or not path.is_file():
        return None
    return path.read_bytes()


def run_in_copy(
    workspace: Path, command: Sequence[str], input_text: str, errors: int = subprocess.STDOUT
) -> str | None:
    """Run a program in a copy of the workspace and return its output; None after the time limit.

    All its processes are killed at the end. `errors` is the target of its standard error.
    """
    with tempfile.TemporaryDirectory(prefix="mendgraph-check-") as folder:
        copy = Path(folder, "workspace")
        shutil.copytree(workspace, copy, symlinks=True, ignore=shutil.ignore_patterns(*TOOL_FILES))
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": folder, "LANG": "C.UTF-8"}
        with subprocess.Popen(
            command,
            cwd=copy,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as child:
            try:
                return child.communicate(input_text, timeout=SECONDS)[0]
            except subprocess.TimeoutExpired:
                return None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
