"""The files of a workspace as they were when a run began: read by handle, with the run's own changes taken back.

The workspace itself is only looked at. What is taken back is what the journal kept of each file before the run.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from graph.cassettes.cassette_file import secrets_in
from graph.cassettes.replayed_run import Files
from graph.cassettes.run_course import RunCourse
from graph.judged_workspace import judged_workspace
from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.environment.journal import Journal
from nodes.execute_tools.environment.restoring import net_effects
from nodes.execute_tools.environment.workspace import FileContent, Workspace
from nodes.execute_tools.secrets.redact import Redactor
from nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from nodes.guard.policy import judge_path
from nodes.records import ToolError, ToolErrorCode

MOST_FILES: Final = 200
MOST_BYTES: Final = 2_000_000
"""What is kept beside a cassette; a test that needs more is no test of one run."""

KEEPS_TESTS_OUT: Final = "conftest.py"
"""Stands in the folder `files` beside a cassette, so that pytest collects nothing there."""

_COPY: Final = re.compile(r"((?:.*?/)?files)/(?:before|after)/")


@dataclass(frozen=True)
class StartFiles:
    """A workspace at a run's start. `before` are the files that the run changed, None where there was none."""

    workspace: Workspace
    before: Mapping[str, bytes | None]

    def names(self, course: RunCourse) -> Iterator[str]:
        """The files that git would not ignore and that the rules allow, those first that are there now.

        What lies beside the cassettes of other runs is left out, unless this one has seen it.
        """
        named = self._named(course)
        seen: set[str] = set()
        for entry in self.workspace.walk():
            if entry.kind != "file" or self.workspace.denied(entry.path) is not None:
                continue
            if self._is_copy(entry.path) and not _is_named(entry.path, named) and not _is_shown(entry.path, course):
                continue
            if self.before.get(entry.path, b"") is not None:
                seen.add(entry.path)
                yield entry.path
        yield from sorted(path for path, data in self.before.items() if data is not None and path not in seen)

    def touched(self, course: RunCourse) -> Files | ToolError:
        """Those files that the run read, changed or named, and what lies in the folders that it named."""
        named = self._named(course)
        return self._read(path for path in self.names(course) if _is_listed_by(path) or _is_named(path, named))

    def every(self, course: RunCourse) -> Files | ToolError:
        """All of them."""
        return self._read(self.names(course))

    def _named(self, course: RunCourse) -> set[str]:
        return {*self.before, *course.files_read, *_named(course, self.workspace.root)}

    def _is_copy(self, path: str) -> bool:
        """Whether it is a file of an earlier run, kept beside the cassette that was made of that."""
        found = _COPY.match(path)
        return found is not None and self.workspace.exists(f"{found[1]}/{KEEPS_TESTS_OUT}")

    def _read(self, names: Iterator[str]) -> Files | ToolError:
        files: dict[str, bytes] = {}
        left = MOST_BYTES
        for path in names:
            data = self.before.get(path)
            content = FileContent.of(path, data) if data is not None else self.workspace.read_file(path, MOST_BYTES)
            if isinstance(content, ToolError):
                return content
            files[path] = content.data
            left -= len(content.data)
            if len(files) > MOST_FILES or left < 0:
                message = (
                    f"The run needs more than {MOST_FILES} files or {MOST_BYTES:,} bytes of its workspace, more"
                    " than is kept beside a test. Let a .gitignore name what it does not need, or run the task in a"
                    " smaller folder."
                )
                return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
        return files


def files_at_start(records: str, root: str, run_id: str) -> StartFiles | ToolError:
    """The workspace at `root` before the run; `records` is the folder of its journal.

    Raises:
        StoreError: the journal cannot be read.
    """
    journal = Journal(records)
    before: dict[str, bytes | None] = {}
    for effect in net_effects(journal.changes_of(run_id)):
        sha256 = effect.before.sha256
        before[effect.path] = journal.backup(sha256) if sha256 else None
        if sha256 and before[effect.path] is None:
            message = f"What {quoted(effect.path)} held before the run is gone or damaged: the run cannot be played again."
            return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)
    return StartFiles(judged_workspace(root), before)


def secret_in(files: Files, redactor: Redactor) -> ToolError | None:
    """The refusal of the first file that holds a secret."""
    for path, data in files.items():
        text = data.decode("utf-8", "replace")
        found = secrets_in(text)
        if found or redactor.unnamed(text) != text:
            what = f"{found[0].what} in line {found[0].line}" if found else "a secret of the environment"
            message = (
                f"{quoted(path)} holds {what}, and the test would need the file: take the secret out of it, or let a"
                " .gitignore name it, and run the task again."
            )
            return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message, suggestions=(path,))
    return None


def _named(course: RunCourse, root: str) -> Iterator[str]:
    """What stands in the arguments of its calls, as far as it may be a path."""
    for call in course.calls:
        for text in _texts(getattr(call, "arguments", {})):
            if len(text) < 1_000 and "\n" not in text:
                yield text.removeprefix(f"{root}/").removeprefix("./").rstrip("/")
            yield from (
                line.split(": ", 1)[1].strip() for line in text.splitlines() if line.startswith("*** ") and ": " in line
            )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, Sequence):
        for each in value:
            yield from _texts(each)


def _is_listed_by(path: str) -> bool:
    """What git ignores is part of every listing."""
    return path.rpartition("/")[2] == ".gitignore"


def _is_named(path: str, named: set[str]) -> bool:
    """Whether the file, or a folder that it lies in, was named."""
    parts = path.split("/")
    return any("/".join(parts[:length]) in named for length in range(1, len(parts) + 1))


def _is_shown(path: str, course: RunCourse) -> bool:
    """Whether a result of the run tells of the file, as a listing does."""
    return any(path in step.result for step in course.results)
