"""Runs and tasks for the tests of the evaluation."""

from dataclasses import dataclass
from pathlib import Path

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
