"""The command in this process, and a spending book as two processes open it."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mendgraph.graph import cli
from mendgraph.graph.spending.store import SpendingStore
from tests.doubles.replies import Say
from tests.doubles.scripted_model import Line, ScriptedModel
from tests.sandboxes import without_first_line
from tests.surfaces.runs.run_plays import project
from tests.surfaces.spending.spending_entries import Clock

Command = Callable[..., tuple[int, str, str]]


class Typed(io.StringIO):
    """What a person types at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a bug, which is the current folder."""
    path = project(tmp_path / "project")
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`mendgraph ...` on a model with these replies: exit code, standard output, standard error."""
    assert folder.is_dir()
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "1000")
    script: list[Line] = []
    monkeypatch.setattr(cli, "_session_options", lambda: {"model": ScriptedModel(script)})

    def called(
        *words: str, says: tuple[Line | str, ...] = (), typed: io.StringIO | None = None, piped: bool = False
    ) -> tuple[int, str, str]:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: not piped)
        script[:] = [Say(line) if isinstance(line, str) else line for line in says]
        if typed is not None:
            monkeypatch.setattr("sys.stdin", typed)
        code = cli.main(words)
        captured = capsys.readouterr()
        return code, captured.out, without_first_line(captured.err)

    return called


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(any_store: str, tmp_path: Path, clock: Clock) -> Iterator[SpendingStore]:  # noqa: ARG001 - where it is kept
    with closing(SpendingStore(str(tmp_path), clock)) as opened:
        yield opened


@pytest.fixture
def other_process_store(tmp_path: Path, clock: Clock) -> Iterator[SpendingStore]:
    """Another process's."""
    with closing(SpendingStore(str(tmp_path), clock)) as opened:
        yield opened
