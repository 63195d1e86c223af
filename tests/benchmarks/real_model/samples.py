"""Runs and tasks for the tests of the evaluation."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.real_model.record import CallRecord, RunEnd, RunRecord
from benchmarks.real_model.task import Half, Task


@dataclass(frozen=True)
class Says:
    """A check: the file says this, and so does the answer."""

    path: str
    text: str
    answer: str = ""

    def __call__(self, workspace: Path, answer: str) -> str | None:
        if (workspace / self.path).read_text("utf-8") != self.text:
            return f"{self.path} says something else"
        return None if self.answer in answer else "the answer says something else"


def task(name: str = "greeting", half: Half = "dev", text: str = "Hello\n") -> Task:
    """A task that is solved once hello.txt holds `text`."""
    return Task(
        name=name,
        kind="other_files",
        half=half,
        request="Write Hello into hello.txt",
        files={"hello.txt": "Bye\r\n", "other.txt": ""},
        check=Says("hello.txt", text),
        changes=True,
        solution={"hello.txt": text},
    )


def call(**fields: Any) -> CallRecord:
    """A call of 100 prompt tokens, 40 of them uncached, and 10 more."""
    usual: dict[str, Any] = {
        "key": "k",
        "status": 200,
        "prompt_tokens": 100,
        "uncached_tokens": 40,
        "completion_tokens": 10,
        "seconds": 2.0,
        "finish_reason": "stop",
        "native_calls": 0,
        "replayed": False,
    }
    return CallRecord(**{**usual, **fields})


def run(
    name: str, *, solved: bool, ended: str = "done", end: Mapping[str, Any] | None = None, **fields: Any
) -> RunRecord:
    """A run of task `name`."""
    usual: dict[str, Any] = {
        "harness": "aider",
        "label": "default",
        "task": name,
        "kind": "repair",
        "half": "dev",
        "changes": True,
        "digest": "d",
        "options": {},
        "problem": None if solved else "median gives 3",
        "end": RunEnd(ended=ended, **{"seconds": 5.0, **(end or {})}),
        "changed_files": ("a.py",),
        "calls": (call(),),
    }
    return RunRecord(**{**usual, **fields})
