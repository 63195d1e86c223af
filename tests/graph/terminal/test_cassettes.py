"""`mendgraph cassette ...` at the command line."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mendgraph.graph import cli
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.graph.runs.run_plays import EDIT, project

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, which is the current folder."""
    path = project(tmp_path / "work")
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process: exit code, standard output, standard error."""
    monkeypatch.setattr(cli, "_session_options", lambda: {"model": ScriptedModel([EDIT, Say("Done.")])})
    monkeypatch.setenv("COLUMNS", "400")

    def called(*words: str) -> tuple[int, str, str]:
        code = cli.main(words)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    assert folder.is_dir()
    return called


def test_run_becomes_a_test(run: Run, folder: Path) -> None:
    assert run("--no-evidence", "--protocol", "native", "Mend add.")[0] == 0
    run_id = json.loads(run("runs", "--json")[1])[0]["run_id"]
    os.chdir(folder.parent)
    root = ("--root", str(folder))
    code, out, err = run("cassette", "from-run", run_id[:6], "--name", "mended", "-o", "checks", *root)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"wrote {folder}/checks/test_mended.py"
    assert out.splitlines()[1] == f"wrote {folder}/cassettes/checks/test_mended/mended.yaml"
    assert "2 exchanges, 1 file, ends FINISHED (answered)" in out
    assert out.endswith(f"; replay it with: pytest --rootdir {folder} {folder}/checks/test_mended.py\n")
    (folder / "pytest.ini").touch()
    code, out, err = run("cassette", "from-run", run_id, "--name", "other", "--json", *root)
    assert (code, json.loads(out)["name"]) == (0, "other")
    assert json.loads(out)["command"] == f"pytest {folder}/tests/test_other.py"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("from-run",), "Missing argument 'RUN'"),
        (("from-run", "nothing"), "There is no run 'nothing' in this workspace"),
        (("sing",), "No such command 'sing'"),
        (("from-run", "x", "--max-calls", "3"), "--max-calls is for what works on a task"),
    ],
)
def test_mistake_is_one_line(run: Run, words: tuple[str, ...], said: str) -> None:
    code, out, err = run("cassette", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
