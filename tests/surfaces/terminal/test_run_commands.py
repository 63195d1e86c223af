"""`mendgraph runs`, `undo`, `report` and `cassette` at the command line."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.workspace.store.database import FILE_NAME
from mendgraph.nodes.workspace.store.run_folder import run_folder_path, workspace_folder, workspace_folder_path
from mendgraph.nodes.workspace.store.run_lock import Owner, RunLock
from tests.doubles.replies import Say
from tests.extent import slow
from tests.surfaces.conftest import Command
from tests.surfaces.runs.run_plays import killed_run, list_states, run_lines, tree, use


def load_output(result: tuple[int, str, str]) -> Any:
    code, out, err = result
    assert (code, err, out.count("\n")) == (0, "", 1)
    return json.loads(out)


# --- Listing


def test_folder_without_runs_says_so(command: Command) -> None:
    assert command("runs") == (0, "This folder has no runs yet.\n", "")
    assert load_output(command("runs", "--json")) == []


@slow
def test_runs_are_listed_and_one_is_shown_with_its_steps(command: Command, folder: Path) -> None:
    done, dead = run_lines(folder).thread_id, killed_run(folder, 0)
    code, out, err = command("runs")
    assert (code, err) == (0, "")
    head, first, second = (line.split() for line in out.splitlines())
    assert head == ["RUN", "WHEN", "STATE", "FILES", "TASK"]
    assert (first[0], first[3:]) == (dead[:8], ["cut", "off", "0", "Mend", "add."])
    assert (second[0], second[3:]) == (done[:8], ["finished", "4", "Mend", "add."])
    listed_runs = load_output(command("--json", "runs"))
    standing = [(run["run_id"], run["state"], run["can_go_on"]) for run in listed_runs]
    assert standing == [(dead, "cut off", True), (done, "finished", False)]
    assert listed_runs[1]["context"]["workspace"] == str(folder)

    out = command("runs", "show", done[:6])[1]
    assert "\n   4  yes   apply_patch\n            changed: calc.py\n            changed: docs/calc.md\n" in out
    steps = load_output(command("runs", "show", done, "--json"))["steps"]
    assert [step["step"] for step in steps if step["can_fork"]] == [0, 1, 2, 3, 4, 5]
    assert steps[2]["calls"] == [{"tool": "edit_file", "target": "calc.py"}]


# --- Pruning and undo


@slow
def test_pruned_runs_are_named(command: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = (use(("write_file", {"path": "more.txt", "content": "x"})), Say("It is there."))
    old, new, dead = run_lines(folder).thread_id, run_lines(folder, more).thread_id, killed_run(folder, 0)
    monkeypatch.chdir(tmp_path)
    prune = ("--root", "project", "runs", "prune")
    code, out, _ = command(*prune, "--keep", "2")
    assert (code, out.partition(", ")[0], out.rpartition(": ")[2]) == (0, "removed 1 run", f"{old[:8]}\n")
    assert command(*prune, "--older-than", "1")[1] == "removed 0 runs, 0.0 MB\n"
    result = load_output(command(*prune, "--older-than", "0", "--json"))
    assert (result["removed"], result["freed_bytes"] > 0, [name for name, _ in list_states(folder)]) == (
        [new],
        True,
        [dead],
    )
    assert load_output(command(*prune, "--keep", "0", "--unfinished", "--json"))["removed"] == [dead]


RESTORED = "restored calc.py\nremoved docs/calc.md\nbrought back notes.txt\nremoved pkg/new.py\n"


@slow
def test_undo_lists_what_it_restored(command: Command, folder: Path) -> None:
    before = tree(folder)
    done = run_lines(folder).thread_id
    empty = "removed docs/, which was empty\nremoved pkg/, which was empty\n"
    assert command("undo", done[:8]) == (0, RESTORED + empty, "")
    assert tree(folder) == before
    nothing = "nothing to undo: the run changed no file, or all of its changes were taken back\n"
    assert command("undo", done)[:2] == (0, nothing)


def test_undo_names_files_changed_since_and_changes_nothing(command: Command, folder: Path) -> None:
    done = run_lines(folder).thread_id
    for name in ("calc.py", "docs/calc.md"):
        (folder / name).write_text("mine\n", encoding="utf-8")
    mine = tree(folder)
    code, out, err = command("undo", done)
    assert (code, out, tree(folder)) == (4, "", mine)
    first, *files = err.splitlines()
    assert first.startswith("mendgraph: Nothing was restored. ")
    assert ("--skip-changed" in first, files) == (True, ["  calc.py", "  docs/calc.md"])
    code, out, err = command("undo", done, "--json")
    error = json.loads(out)["error"]
    assert (code, error["code"], error["suggestions"]) == (4, "conflict", ["calc.py", "docs/calc.md"])
    code, out, err = command("undo", done, "--skip-changed")
    assert (code, err) == (0, "")
    assert out.startswith("brought back notes.txt\nremoved pkg/new.py\nremoved pkg/, which was empty\nleft calc.py: ")
    assert (folder / "calc.py").read_text(encoding="utf-8") == "mine\n"


# --- Damaged stores and active runs

COMMANDS = [["runs", "show", "x"], ["undo", "x"], ["fork", "x", "--at", "1"], ["resume", "x"], ["chat", "--run", "x"]]
EVERYWHERE = [["runs"], ["runs", "prune", "--keep", "1"], *COMMANDS]


@slow
@pytest.mark.parametrize("damage", [b"not a database at all" * 400, b""], ids=["torn", "newer"])
def test_unreadable_store_is_reported_in_one_line(command: Command, folder: Path, damage: bytes) -> None:
    done = run_lines(folder).thread_id
    path = Path(workspace_folder_path(str(folder)), FILE_NAME)
    data = path.read_bytes()
    path.write_bytes(damage or data[:60] + (99).to_bytes(4) + data[64:])
    for words in EVERYWHERE:
        code, out, err = command(*[done if word == "x" else word for word in words])
        assert (code, out, err.count("\n"), str(path) in err) == (4, "", 1, True), words


@slow
def test_active_run_is_named_by_commands_that_change_something(command: Command, folder: Path) -> None:
    done = run_lines(folder).thread_id
    before, place = tree(folder), workspace_folder(str(folder))
    assert isinstance(place, str)
    with RunLock(place) as lock:
        assert lock.acquire(Owner("nightly")) is None
        for words in ("runs prune --keep 0", f"undo {done}", f"fork {done} --at 1", f"resume {done} --json"):
            code, out, err = command(*words.split())
            assert (code, tree(folder), len(list_states(folder))) == (4, before, 1), words
            assert ("nightly" in out + err, str(os.getpid()) in out + err) == (True, True)


# --- Files that are written


@slow
def test_report_is_written_and_replaces_a_file_only_with_force(folder: Path, command: Command) -> None:
    run_id = run_lines(folder).thread_id
    path, default_path = folder / "page.html", Path(run_folder_path(run_id), "report.html")
    before = tree(folder)
    code, out, err = command("report", "-o", "-")
    assert (code, err, default_path.exists()) == (0, "", False)
    assert (out.startswith("<!doctype html>"), out.endswith("</html>\n")) == (True, True)
    for _ in range(2):
        assert command("report") == (0, f"report of run {run_id[:8]}: {default_path}\n", "")
    assert default_path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert tree(folder) == before
    path.write_text("mine")
    code, out, err = command("report", "-o", "page.html")
    assert (code, out, path.read_text()) == (2, "", "mine")
    assert err == f"mendgraph: '{path}' exists: name another file, or replace it with --force.\n"
    assert command("report", "-o", "page.html", "--force") == (0, f"report of run {run_id[:8]}: {path}\n", "")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


@slow
def test_report_that_cannot_be_made_is_reported_in_one_line(folder: Path, command: Command) -> None:
    run_lines(folder)
    (folder / "link.html").symlink_to("/etc/hostname")
    for words, code, message in (
        ("zzz", 2, "There is no run 'zzz' in this workspace"),
        ("-o nowhere/x.html", 2, "nowhere"),
        ("-o .", 2, "it is a directory, and a file is needed"),
        ("-o link.html --force", 4, "link.html"),
    ):
        exit_code, out, err = command("report", *words.split())
        assert (exit_code, out, message in err) == (code, "", True), err


def test_run_becomes_a_test(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = run_lines(folder).thread_id
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("COLUMNS", "400")
    root = ("--root", str(folder))
    code, out, err = command("cassette", "from-run", run_id[:6], "--name", "mended", "-o", "checks", *root)
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [
        f"wrote {folder}/checks/test_mended.py",
        f"wrote {folder}/cassettes/checks/test_mended/mended.yaml",
    ]
    assert "6 exchanges, 2 files, ends FINISHED (answered)" in out
    assert out.endswith(f"; replay it with: pytest --rootdir {folder} {folder}/checks/test_mended.py\n")
    (folder / "pytest.ini").touch()
    code, out, err = command("cassette", "from-run", run_id, "--name", "other", "--json", *root)
    assert (code, json.loads(out)["name"]) == (0, "other")
    assert json.loads(out)["command"] == f"pytest --rootdir {folder} {folder}/tests/test_other.py"
