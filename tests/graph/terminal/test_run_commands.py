"""`mendgraph runs`, `undo` and `fork` at the command line."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph import cli
from mendgraph.nodes.execute_tools.store.database import FILE_NAME
from mendgraph.nodes.execute_tools.store.run_folder import run_folder_path, workspace_folder, workspace_folder_path
from mendgraph.nodes.execute_tools.store.run_lock import Owner, RunLock
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


def test_folder_without_runs_says_so(run: Run) -> None:
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


def test_run_is_shown_with_its_steps(run: Run, folder: Path) -> None:
    done = played(folder).thread_id
    code, out, err = run("runs", "show", done[:6])
    assert (code, err) == (0, "")
    assert "\n   4  yes   apply_patch\n            changed: calc.py\n            changed: docs/calc.md\n" in out
    shown = loaded(run("runs", "show", done, "--json"))
    assert [step["step"] for step in shown["steps"] if step["can_fork"]] == [0, 1, 2, 3, 4, 5]
    assert shown["steps"][2]["calls"] == [{"tool": "edit_file", "target": "calc.py"}]


# --- Removing


def test_what_was_removed_is_told(run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = (use(("write_file", {"path": "more.txt", "content": "x"})), Say("It is there."))
    old, new, dead = played(folder).thread_id, played(folder, more).thread_id, cut_off(folder, 0)
    monkeypatch.chdir(tmp_path)
    run = partial(run, "--root", "project")
    code, out, _ = run("runs", "prune", "--keep", "2")
    assert (code, out.partition(", ")[0], out.rpartition(": ")[2]) == (0, "removed 1 run", f"{old[:8]}\n")
    assert run("runs", "prune", "--older-than", "1")[1] == "removed 0 runs, 0.0 MB\n"
    shown = loaded(run("runs", "prune", "--older-than", "0", "--json"))
    assert (shown["removed"], shown["freed_bytes"] > 0, [name for name, _ in listed(folder)]) == ([new], True, [dead])
    assert loaded(run("runs", "prune", "--keep", "0", "--unfinished", "--json"))["removed"] == [dead]


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


def test_refusal_names_the_files_and_changes_nothing(run: Run, folder: Path) -> None:
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


# --- Mistakes


COMMANDS = [["runs", "show", "x"], ["undo", "x"], ["fork", "x", "--at", "1"], ["resume", "x"], ["chat", "--run", "x"]]
EVERYWHERE = [["runs"], ["runs", "prune", "--keep", "1"], *COMMANDS]


@pytest.mark.parametrize("damage", [b"not a database at all" * 400, b""], ids=["torn", "newer"])
def test_store_that_cannot_be_read_is_one_line(run: Run, folder: Path, damage: bytes) -> None:
    done = played(folder).thread_id
    path = Path(workspace_folder_path(str(folder)), FILE_NAME)
    data = path.read_bytes()
    path.write_bytes(damage or data[:60] + (99).to_bytes(4) + data[64:])
    for words in EVERYWHERE:
        code, out, err = run(*[done if word == "x" else word for word in words])
        assert (code, out, err.count("\n"), str(path) in err) == (4, "", 1, True), words


def test_while_another_run_works_here_it_is_told_who(run: Run, folder: Path) -> None:
    done = played(folder).thread_id
    before, place = tree(folder), workspace_folder(str(folder))
    assert isinstance(place, str)
    with RunLock(place) as lock:
        assert lock.acquire(Owner("nightly")) is None
        for words in ("runs prune --keep 0", f"undo {done}", f"fork {done} --at 1", f"resume {done} --json"):
            code, out, err = run(*words.split())
            assert (code, tree(folder), len(listed(folder))) == (4, before, 1), words
            assert "nightly" in out + err
            assert str(os.getpid()) in out + err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["undo"], "Missing argument 'RUN'"),
        (["fork", "a"], "Missing option '--at'"),
        (["runs", "prune"], "say which runs to remove: --keep N, --older-than DAYS, or both"),
        (["report", "-o", "-", "--json"], "with --json the page goes into a file: omit -o - or --json"),
        (["undo", "a", "--max-calls", "3"], "--max-calls is for what works on a task (run, chat, resume)"),
        (["runs", "--durability", "exit"], "--durability is for what works on a task"),
    ],
)
def test_mistake_is_one_line(run: Run, words: list[str], message: str) -> None:
    code, _, err = run(*words)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"mendgraph: {message}")


def test_page_is_written_and_what_is_there_is_written_over_only_by_force(folder: Path, run: Run) -> None:
    run_id = played(folder).thread_id
    path, own = folder / "page.html", Path(run_folder_path(run_id), "report.html")
    before = tree(folder)
    code, out, err = run("report", "-o", "-")
    assert (code, err, own.exists()) == (0, "", False)
    assert out.startswith("<!doctype html>")
    assert out.endswith("</html>\n")
    for _ in range(2):
        assert run("report") == (0, f"report of run {run_id[:8]}: {own}\n", "")
    assert own.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert tree(folder) == before
    path.write_text("mine")
    code, out, err = run("report", "-o", "page.html")
    assert (code, out) == (2, "")
    assert err == f"mendgraph: '{path}' is there already: name another file, or write over it with --force.\n"
    assert path.read_text() == "mine"
    assert run("report", "-o", "page.html", "--force") == (0, f"report of run {run_id[:8]}: {path}\n", "")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_page_that_cannot_be_made_is_one_line(folder: Path, run: Run) -> None:
    played(folder)
    (folder / "link.html").symlink_to("/etc/hostname")
    for words, code, message in (
        ("zzz", 2, "There is no run 'zzz' in this workspace"),
        ("-o nowhere/x.html", 2, "nowhere"),
        ("-o .", 2, "it is a directory, and a file is needed"),
        ("-o link.html --force", 4, "link.html"),
    ):
        found, out, err = run("report", *words.split())
        assert (found, out, message in err) == (code, "", True), err
