"""`mendgraph runs`, `undo` and `fork` at the command line."""

import json
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph import cli
from mendgraph.graph.runs.runs import get_run
from mendgraph.graph.terminal import options as opt
from mendgraph.graph.terminal.process_end import refused
from mendgraph.nodes.execute_tools.store.database import FILE_NAME
from mendgraph.nodes.execute_tools.store.run_folder import workspace_folder, workspace_folder_path
from mendgraph.nodes.execute_tools.store.run_lock import Owner, RunLock
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.doubles.replies import Say
from tests.graph.runs.run_plays import cut_off, listed, played, project, tree, use

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = project(tmp_path / "project")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process: exit code, standard output, standard error."""

    def called(*words: str) -> tuple[int, str, str]:
        code = cli.main(words)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    assert folder.is_dir()
    return called


def loaded(shown: tuple[int, str, str]) -> Any:
    code, out, err = shown
    assert (code, err, out.count("\n")) == (0, "", 1)
    return json.loads(out)


# --- Looking


def test_a_folder_without_runs_says_so(run: Run) -> None:
    assert run("runs") == (0, "There are no runs of this folder yet.\n", "")
    assert loaded(run("runs", "--json")) == []


def test_runs_are_a_table(run: Run, folder: Path) -> None:
    done, dead = played(folder).thread_id, cut_off(folder, 0)
    code, out, err = run("runs")
    assert (code, err) == (0, "")
    head, first, second = (line.split() for line in out.splitlines())
    assert head == ["RUN", "WHEN", "STATE", "TURNS", "FILES", "TASK"]
    assert (first[0], first[3:]) == (dead[:8], ["cut", "off", "1", "0", "Mend", "add."])
    assert (second[0], second[3:]) == (done[:8], ["finished", "1", "4", "Mend", "add."])
    shown = loaded(run("--json", "runs"))
    assert [(each["run_id"], each["state"], each["can_go_on"]) for each in shown] == [
        (dead, "cut off", True),
        (done, "finished", False),
    ]
    assert shown[1]["context"]["workspace"] == str(folder)


def test_a_run_is_shown_with_its_steps(run: Run, folder: Path) -> None:
    done = played(folder).thread_id
    code, out, err = run("runs", "show", done[:6])
    assert (code, err) == (0, "")
    assert "\n   4  yes   apply_patch\n            changed: calc.py\n            changed: docs/calc.md\n" in out
    shown = loaded(run("runs", "show", done, "--json"))
    assert [step["step"] for step in shown["steps"] if step["can_fork"]] == [0, 1, 2, 3, 4, 5]
    assert shown["steps"][2]["calls"] == [{"tool": "edit_file", "target": "calc.py"}]


def test_another_folder_may_be_named(run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = played(folder).thread_id
    monkeypatch.chdir(tmp_path)
    assert loaded(run("runs", "--json")) == []
    assert [each["run_id"] for each in loaded(run("runs", "--root", "project", "--json"))] == [done]
    new = loaded(run("fork", done, "--at", "2", "--root", "project", "--json"))
    assert new["resume"] == f"mendgraph resume {new['run_id'][:8]} --root project"


# --- Removing


def test_what_was_removed_is_told(run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = (use(("write_file", {"path": "more.txt", "content": "x"})), Say("It is there."))
    old, new, dead = played(folder).thread_id, played(folder, more).thread_id, cut_off(folder, 0)
    monkeypatch.chdir(tmp_path)
    run = partial(run, "--root", "project")
    code, out, _ = run("runs", "prune", "--keep", "2")
    assert (code, out.partition(", ")[0], out.rpartition(": ")[2]) == (0, "removed 1 run", f"{old[:8]}\n")
    assert run("runs", "prune", "--older-than", "1")[1] == "removed 0 runs, 0 bytes\n"
    shown = loaded(run("runs", "prune", "--older-than", "0", "--json"))
    assert (shown["removed"], shown["freed_bytes"] > 0, [name for name, _ in listed(folder)]) == ([new], True, [dead])
    assert loaded(run("runs", "prune", "--keep", "0", "--unfinished", "--json"))["removed"] == [dead]


def test_without_a_limit_nothing_is_removed(run: Run, folder: Path) -> None:
    played(folder)
    code, out, err = run("runs", "prune")
    assert (code, out, len(listed(folder))) == (2, "", 1)
    assert err.startswith("mendgraph: say which runs to remove: --keep N, --older-than DAYS, or both")


# --- Taking back

RESTORED = "restored calc.py\nremoved docs/calc.md\nbrought back notes.txt\nremoved pkg/new.py\n"


def test_undo_tells_what_it_restored(run: Run, folder: Path) -> None:
    before = tree(folder)
    done = played(folder).thread_id
    assert run("undo", done[:8]) == (
        0,
        f"{RESTORED}removed docs/, which was empty\nremoved pkg/, which was empty\n",
        "",
    )
    assert tree(folder) == before
    assert run("undo", done)[:2] == (0, "nothing to undo: it changed no file, or all of that has been taken back\n")


def test_undo_may_begin_at_a_step_and_be_read_by_a_program(run: Run, folder: Path) -> None:
    done = played(folder).thread_id
    assert loaded(run("undo", "--from-step", "5", done, "--json")) == {
        "restored": [{"path": "notes.txt", "kind": "created"}],
        "left": [],
        "removed_directories": [],
        "cut_off": [],
        "steps": [5],
    }
    assert (folder / "pkg" / "new.py").exists()


def test_a_refusal_names_the_files_and_changes_nothing(run: Run, folder: Path) -> None:
    done = played(folder).thread_id
    for name in ("calc.py", "docs/calc.md"):
        (folder / name).write_text("mine\n", encoding="utf-8")
    mine = tree(folder)
    code, out, err = run("undo", done)
    assert (code, out, tree(folder)) == (4, "", mine)
    first, *files = err.splitlines()
    assert first.startswith("mendgraph: Nothing was restored. ")
    assert "--skip-changed" in first
    assert files == ["  calc.py", "  docs/calc.md"]
    code, out, err = run("undo", done, "--json")
    shown = json.loads(out)["error"]
    assert (code, shown["code"], shown["suggestions"]) == (4, "conflict", ["calc.py", "docs/calc.md"])
    code, out, err = run("undo", done, "--skip-changed")
    assert (code, err) == (0, "")
    assert out.startswith("brought back notes.txt\nremoved pkg/new.py\nremoved pkg/, which was empty\nleft calc.py: ")
    assert (folder / "calc.py").read_text(encoding="utf-8") == "mine\n"


# --- Forks


def test_a_fork_says_how_to_go_on(run: Run, folder: Path) -> None:
    done = played(folder).thread_id
    code, out, err = run("fork", done[:8], "--at", "3")
    new = get_run("", str(folder))
    assert not isinstance(new, ToolError)
    begun = f"run {new.run_id[:8]} begins where run {done[:8]} was after step 3"
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "restored calc.py",
        "removed docs/calc.md",
        "brought back notes.txt",
        "removed docs/, which was empty",
        f"{begun}; go on with: mendgraph resume {new.run_id[:8]}",
    ]


def test_a_step_that_cannot_be_forked_at_is_told_with_those_that_can(run: Run, folder: Path) -> None:
    done = played(folder).thread_id
    message = "mendgraph: The run cannot be forked after step 6: it can be after one of the steps 0, 1, 2, 3, 4, 5.\n"
    assert run("fork", done, "--at", "6") == (2, "", message)


# --- Mistakes


COMMANDS = [["runs", "show", "x"], ["undo", "x"], ["fork", "x", "--at", "1"], ["resume", "x"], ["chat", "--run", "x"]]
EVERYWHERE = [["runs"], ["runs", "prune", "--keep", "1"], *COMMANDS]


@pytest.mark.parametrize("words", COMMANDS)
def test_an_unknown_run_is_one_line(run: Run, words: list[str]) -> None:
    message = "There is no run 'x' in this workspace: `mendgraph runs` lists those that there are."
    assert run(*words) == (2, "", f"mendgraph: {message}\n")
    code, out, err = run("--json", *words)
    assert (code, err, json.loads(out)["error"]) == (
        2,
        f"mendgraph: {message}\n",
        {"code": "not_found", "message": message, "suggestions": []},
    )


@pytest.mark.parametrize("words", EVERYWHERE)
@pytest.mark.parametrize("damage", [b"not a database at all" * 400, b""], ids=["torn", "newer"])
def test_a_store_that_cannot_be_read_is_one_line(run: Run, folder: Path, words: list[str], damage: bytes) -> None:
    done = played(folder).thread_id
    path = Path(workspace_folder_path(str(folder)), FILE_NAME)
    data = path.read_bytes()
    path.write_bytes(damage or data[:60] + (99).to_bytes(4) + data[64:])
    code, out, err = run(*[done if word == "x" else word for word in words])
    assert (code, out, err.count("\n"), str(path) in err) == (4, "", 1, True)


def test_a_run_whose_steps_cannot_be_read_is_one_line(run: Run, folder: Path) -> None:
    done = played(folder).thread_id
    path = Path(workspace_folder_path(str(folder)), FILE_NAME)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE checkpoints SET type = NULL")
    code, out, err = run("runs", "show", done)
    assert (code, out, err.count("\n"), f"'{path}' is damaged" in err) == (4, "", 1, True)


@pytest.mark.parametrize(
    "words", [["runs", "prune", "--keep", "0"], ["undo", "x"], ["fork", "x", "--at", "1"], ["resume", "x", "--json"]]
)
def test_while_another_run_works_here_it_is_told_who(run: Run, folder: Path, words: list[str]) -> None:
    done = played(folder).thread_id
    before, place = tree(folder), workspace_folder(str(folder))
    assert isinstance(place, str)
    with RunLock(place) as lock:
        assert lock.acquire(Owner("nightly")) is None
        code, out, err = run(*[done if word == "x" else word for word in words])
    assert (code, tree(folder), len(listed(folder))) == (4, before, 1)
    assert "nightly" in out + err
    assert str(os.getpid()) in out + err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["undo"], "Missing argument 'RUN'"),
        (["undo", "a", "b"], "Got unexpected extra argument"),
        (["undo", "a", "--from-step", "-1"], "Invalid value for '--from-step'"),
        (["fork", "a"], "Missing option '--at'"),
        (["fork", "a", "--at", "x"], "Invalid value for '--at'"),
        (["runs", "a"], "No such command 'a'"),
        (["runs", "prune", "--keep", "-1"], "Invalid value for '--keep'"),
        (["resume", "a", "b"], "Got unexpected extra argument"),
        (["undo", "a", "--max-calls", "3"], "--max-calls is for new runs: a run goes on with the options that it was"),
        (["resume", "--mode", "ask"], "--mode is for new runs"),
        (["runs", "--durability", "exit"], "--durability is for new runs"),
    ],
)
def test_a_mistake_is_one_line(run: Run, words: list[str], message: str) -> None:
    code, out, err = run(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"mendgraph: {message}")


def error(code: ToolErrorCode, message: str, *suggestions: str) -> ToolError:
    return ToolError(code=code, message=message, suggestions=suggestions)


@pytest.mark.parametrize(
    ("said", "code", "lines"),
    [
        (error(ToolErrorCode.NOT_FOUND, "No 'a'.", "ab\x1b", "ac"), 2, ["No 'a'. Did you mean ab\\x1b or ac?"]),
        (error(ToolErrorCode.INVALID_ARGUMENT, "Not 3: 1, 2.", "1", "2"), 2, ["Not 3: 1, 2."]),
        (error(ToolErrorCode.PERMISSION_DENIED, "No: a.", "a"), 4, ["No: a.", "  a"]),
        (error(ToolErrorCode.CONFLICT, "No.", *"a" * 53), 4, ["No.", *["  a"] * 50, "  and 3 more"]),
    ],
)
def test_an_error_is_a_line_and_the_files_that_it_names(
    capsys: pytest.CaptureFixture[str], said: ToolError, code: int, lines: list[str]
) -> None:
    assert refused(opt.Options(Path(), as_json=False, debug=False, settings={}), said) == code
    first, *more = lines
    assert capsys.readouterr().err.splitlines() == [f"mendgraph: {first}", *more]


@pytest.fixture
def run_report(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs the command in this process: exit code, standard output, standard error."""

    def called(*words: str) -> tuple[int, str, str]:
        code = cli.main(words)
        shown = capfdbinary.readouterr()
        return code, shown.out.decode(), shown.err.decode()

    assert folder.is_dir()
    return called


def test_the_page_is_written_into_this_folder(folder: Path, run_report: Run) -> None:
    run_id = played(folder).thread_id
    path = folder / f"mendgraph-{run_id[:8]}.html"
    assert run_report("report") == (0, f"report of run {run_id[:8]}: {path}\n", "")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_what_is_there_is_written_over_only_by_force(folder: Path, run_report: Run) -> None:
    played(folder)
    kept = folder / "page.html"
    kept.write_text("mine")
    code, out, err = run_report("report", "-o", "page.html")
    assert (code, out) == (2, "")
    assert err == f"mendgraph: '{kept}' is there already: name another FILE with -o, or write over it with --force.\n"
    assert kept.read_text() == "mine"
    assert run_report("report", "-o", "page.html", "--force")[0] == 0
    assert kept.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_line_is_the_page_itself(folder: Path, run_report: Run) -> None:
    played(folder)
    before = sorted(folder.iterdir())
    code, out, err = run_report("report", "-o", "-")
    assert (code, err) == (0, "")
    assert out.startswith("<!doctype html>")
    assert out.endswith("</html>\n")
    assert sorted(folder.iterdir()) == before


def test_for_programs_the_path_is_told(folder: Path, run_report: Run) -> None:
    run_id = played(folder).thread_id
    code, out, err = run_report("report", run_id[:6], "-o", "../out.html", "--json")
    path = folder.parent / "out.html"
    assert (code, err) == (0, "")
    assert json.loads(out) == {"run_id": run_id, "path": str(path), "bytes": path.stat().st_size}
    code, out, err = run_report("report", "-o", "-", "--json")
    assert code == 2
    assert "with --json the page goes into a file" in json.loads(out)["error"]["message"]


def test_another_folder_s_run(folder: Path, run_report: Run, tmp_path: Path) -> None:
    other = project(tmp_path / "other")
    run_id = played(other).thread_id
    assert run_report("report", run_id, "--root", str(other))[0] == 0
    page = (folder / f"mendgraph-{run_id[:8]}.html").read_text("utf-8")
    assert f"mendgraph undo {run_id[:8]} --root {other}" in re.sub("<[^>]+>", "", page)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("zzz",), "There is no run 'zzz' in this workspace"),
        (("-o", "nowhere/x.html"), "There is no folder '{folder}/nowhere' to write the page to"),
        (("-o", "."), "it is a directory, and a file is needed"),
        (("-o", "link.html", "--force"), "cannot be written to '{folder}/link.html': it is a link to elsewhere"),
    ],
)
def test_what_cannot_be_is_one_line(words: tuple[str, ...], message: str, folder: Path, run_report: Run) -> None:
    played(folder)
    (folder / "link.html").symlink_to("/etc/hostname")
    code, out, err = run_report("report", *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message.format(folder=folder) in err


def test_without_runs_there_is_nothing_to_report(run_report: Run) -> None:
    assert run_report("report") == (2, "", "mendgraph: There are no runs of this folder yet.\n")


def test_a_folder_that_may_not_be_written_is_told(
    folder: Path, run_report: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from mendgraph.nodes.execute_tools.files.workspace import Workspace
    from mendgraph.nodes.records import ToolError, ToolErrorCode

    played(folder)
    full = ToolError(code=ToolErrorCode.IO_ERROR, message="The disk is full.")
    monkeypatch.setattr(Workspace, "change_files", lambda *_: full)
    assert run_report("report", "-o", str(tmp_path / "x.html")) == (4, "", "mendgraph: The disk is full.\n")
    assert os.listdir(tmp_path) == ["project"]
