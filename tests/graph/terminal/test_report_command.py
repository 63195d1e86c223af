"""`mendgraph report` at the command line."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from graph import cli
from tests.graph.run_plays import played, project

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = project(tmp_path / "project")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs the command in this process: exit code, standard output, standard error."""

    def called(*words: str) -> tuple[int, str, str]:
        code = cli.main(words)
        shown = capfdbinary.readouterr()
        return code, shown.out.decode(), shown.err.decode()

    assert folder.is_dir()
    return called


def test_the_page_is_written_into_this_folder(folder: Path, run: Run) -> None:
    run_id = played(folder).thread_id
    path = folder / f"mendgraph-{run_id[:8]}.html"
    assert run("report") == (0, f"report of run {run_id[:8]}: {path}\n", "")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_what_is_there_is_written_over_only_by_force(folder: Path, run: Run) -> None:
    played(folder)
    kept = folder / "page.html"
    kept.write_text("mine")
    code, out, err = run("report", "-o", "page.html")
    assert (code, out) == (2, "")
    assert err == f"mendgraph: '{kept}' is there already: name another FILE with -o, or write over it with --force.\n"
    assert kept.read_text() == "mine"
    assert run("report", "-o", "page.html", "--force")[0] == 0
    assert kept.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_line_is_the_page_itself(folder: Path, run: Run) -> None:
    played(folder)
    before = sorted(folder.iterdir())
    code, out, err = run("report", "-o", "-")
    assert (code, err) == (0, "")
    assert out.startswith("<!doctype html>")
    assert out.endswith("</html>\n")
    assert sorted(folder.iterdir()) == before


def test_for_programs_the_path_is_told(folder: Path, run: Run) -> None:
    run_id = played(folder).thread_id
    code, out, err = run("report", run_id[:6], "-o", "../out.html", "--json")
    path = folder.parent / "out.html"
    assert (code, err) == (0, "")
    assert json.loads(out) == {"run_id": run_id, "path": str(path), "bytes": path.stat().st_size}
    code, out, err = run("report", "-o", "-", "--json")
    assert code == 2
    assert "with --json the page goes into a file" in json.loads(out)["error"]["message"]


def test_another_folder_s_run(folder: Path, run: Run, tmp_path: Path) -> None:
    other = project(tmp_path / "other")
    run_id = played(other).thread_id
    assert run("report", run_id, "--root", str(other))[0] == 0
    page = (folder / f"mendgraph-{run_id[:8]}.html").read_text("utf-8")
    assert f"mendgraph undo {run_id[:8]} --root {other}" in re.sub("<[^>]+>", "", page)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("zzz",), "There is no run 'zzz' in this workspace"),
        (("-o", "nowhere/x.html"), "There is no folder '{folder}/nowhere' to write the page to"),
        (("-o", "."), "it is a directory, and a file is needed"),
        (("-o", "link.html", "--force"), "cannot be written to '{folder}/link.html', which is a link to elsewhere"),
    ],
)
def test_what_cannot_be_is_one_line(words: tuple[str, ...], message: str, folder: Path, run: Run) -> None:
    played(folder)
    (folder / "link.html").symlink_to("/etc/hostname")
    code, out, err = run("report", *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message.format(folder=folder) in err


def test_without_runs_there_is_nothing_to_report(run: Run) -> None:
    assert run("report") == (2, "", "mendgraph: There are no runs of this folder yet.\n")


def test_a_folder_that_may_not_be_written_is_told(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from nodes.execute_tools.environment.workspace import Workspace
    from nodes.records import ToolError, ToolErrorCode

    played(folder)
    full = ToolError(code=ToolErrorCode.IO_ERROR, message="The disk is full.")
    monkeypatch.setattr(Workspace, "change_files", lambda *_: full)
    assert run("report", "-o", str(tmp_path / "x.html")) == (4, "", "mendgraph: The disk is full.\n")
    assert os.listdir(tmp_path) == ["project"]
