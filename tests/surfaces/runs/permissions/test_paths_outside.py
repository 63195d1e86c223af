"""A path means the file that it names, or it is refused with the workspace path that may be meant."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.replies import Say
from tests.doubles.tool_use import use
from tests.extent import slow
from tests.surfaces.runs.tool_play import PROTOCOLS, Line, play, results_of
from tests.vocabulary import JsonMap, Protocol
from tests.workspace_files import changed_files, write_files

FILES = {"notes.txt": "ours\n", "src/calc.py": "def add(a, b):\n    return a - b\n"}
FIXED = "def add(a, b):\n    return a + b\n"
PATCH = "*** Begin Patch\n*** Update File: {}\n@@\n-ours\n+mine\n*** End Patch"

CALLS: list[tuple[str, JsonMap]] = [
    ("read_file", {"path": "{}"}),
    ("list_files", {"path": "{}"}),
    ("search_files", {"pattern": "ours", "path": "{}"}),
    ("glob_files", {"pattern": "*", "path": "{}"}),
    ("run_checks", {"paths": ["notes.txt", "{}"]}),
    ("edit_file", {"path": "{}", "old_str": "ours", "new_str": "mine"}),
    ("multi_edit", {"path": "{}", "edits": [{"old_str": "ours", "new_str": "mine"}]}),
    ("edit_blocks", {"path": "{}", "content": "mine\n"}),
    ("write_file", {"path": "{}", "content": "mine\n"}),
    ("append_file", {"path": "{}", "content": "mine\n"}),
    ("delete_file", {"path": "{}"}),
    ("move_file", {"path": "{}", "target": "b.txt"}),
    ("move_file", {"path": "src/calc.py", "target": "{}"}),
    ("apply_patch", {"patch": PATCH}),
]
"""Every tool that takes a path, in every place of it."""


def results(folder: Path, *lines: Line, **settings: Any) -> list[Any]:
    return results_of(play(folder, *lines, **settings).events)


def suggestions(folder: Path, tool: str, path: str, **arguments: str) -> tuple[str, ...]:
    """The suggestions for this path."""
    [result] = results(folder, use((tool, {"path": path, **arguments})))
    assert result.result.error is not None
    return tuple(result.result.error.suggestions)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path, {"other/notes.txt": "theirs\n"})
    workspace = tmp_path / "work"
    write_files(workspace, FILES)
    return workspace


@pytest.mark.parametrize("form", ["replace", "blocks"])
@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("OTHER/notes.txt", "notes.txt"),
        ("~/notes.txt", "notes.txt"),
        ("/workspace/src/calc.py", "src/calc.py"),
        ("file:///workspace/notes.txt", "notes.txt"),
        ("C:\\work\\src\\calc.py", "src/calc.py"),
        ("../other/notes.txt", "notes.txt"),
    ],
)
def test_path_outside_the_workspace_is_never_read_as_one_inside(folder: Path, path: str, meant: str, form: str) -> None:
    path = path.replace("OTHER", str(folder.parent / "other"))
    calls = [(tool, json.dumps(arguments).replace("{}", json.dumps(path)[1:-1])) for tool, arguments in CALLS]
    call_results = results(folder, use(*calls), edit_form=form)
    assert [result.tool for result in call_results] == [tool for tool, _ in calls]
    errors = [result.result.error for result in call_results]
    assert {(error.code.value, error.suggestions) for error in errors if error} == {("permission_denied", (meant,))}
    assert {error.message.partition(" is ")[2] for error in errors if error} == {
        f"outside the workspace; did you mean {meant!r}? Use a relative path under '.'."
    }
    assert changed_files(folder, FILES) == {}
    assert (folder.parent / "other" / "notes.txt").read_text() == "theirs\n"


@slow
def test_suggestion_is_the_workspace_path_with_the_same_name(folder: Path) -> None:
    write_files(folder, {"src/.env": "", ".env": ""})
    for path, suggested in (
        ("calc.py", "src/calc.py"),
        ("Calc.py", "src/calc.py"),
        ("/path/to/Notes.txt", "notes.txt"),
        ("path/to/calc.py", "src/calc.py"),
        ("/path/to/calc.py", "src/calc.py"),
        ("/path/to/.env", "."),
        ("/path/to/none.py", "."),
    ):
        assert suggestions(folder, "read_file", path) == (suggested,), path
    assert suggestions(folder, "write_file", "/path/to/calc.py", content="x") == ("src/calc.py", "calc.py")


def test_weak_models_next_call_uses_the_suggested_path(folder: Path) -> None:
    block = "/home/dev/src/calc.py\n```python\n" + FIXED + "```"
    script = (Say(block), Say(block.removeprefix("/home/dev/")))
    run = play(folder, *script, request="Fix the sum.", edit_form="blocks", protocol=Protocol.TEXT, read_ahead=True)
    assert "'/home/dev/src/calc.py' is outside the workspace; did you mean 'src/calc.py'?" in run.sent()
    assert changed_files(folder, FILES) == {"src/calc.py": FIXED}


@pytest.mark.parametrize("root", ["work", "alias"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_absolute_path_in_the_workspace_is_accepted(folder: Path, root: str, protocol: Protocol) -> None:
    (folder.parent / "alias").symlink_to(folder)
    path = str(folder.parent / root / "notes.txt")
    edit = {"path": path, "old_str": "ours", "new_str": "mine"}
    call_results = results(folder, use(("read_file", {"path": path}), ("edit_file", edit)), protocol=protocol)
    assert [result.result.data.get("path") for result in call_results] == ["notes.txt", "notes.txt"]
    assert changed_files(folder, FILES) == {"notes.txt": "mine\n"}


@pytest.mark.parametrize("form", ["replace", "blocks"])
def test_absolute_path_in_a_request_names_that_file(folder: Path, form: str) -> None:
    write_files(folder, {"src/AGENTS.md": "Add with care.\n"})
    task = f"Fix the sum in {folder}/src/calc.py, not in {folder.parent}/other/notes.txt."
    run = play(folder, Say("No."), request=task, edit_form=form, protocol=Protocol.TEXT, read_ahead=True)
    assert [(result.tool, result.result.data["path"]) for result in results_of(run.events)] == [
        ("read_file", "src/calc.py")
    ]
    assert "return a - b" in run.sent(0)
    assert "Add with care." in run.sent(0)
    assert "There is no" not in run.sent(0)


@slow
def test_backslashes_are_not_part_of_a_new_file_name(folder: Path) -> None:
    for path in ("src\\calc.py", ".\\src\\calc.py", "src\\new.py"):
        meant = path.removeprefix(".\\").replace("\\", "/")
        assert suggestions(folder, "write_file", path, content="x\n") == (meant,)
        assert changed_files(folder, FILES) == {}
        write_files(folder, {path: "there\n"})
        [result] = results(folder, use(("read_file", {"path": path})))
        assert result.result.data["content"] == "there\n"
        (folder / path).unlink()
