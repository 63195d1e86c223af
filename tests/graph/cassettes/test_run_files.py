"""The files of a workspace as they were when a run began."""

from pathlib import Path

import pytest

from graph.cassettes.run_course import RunCourse, ToolStep
from graph.cassettes.run_files import StartFiles, files_at_start, secret_in
from graph.context import AgentContext
from graph.run import run_task
from nodes.execute_tools.environment.journal import Journal
from nodes.execute_tools.environment.run_folder import workspace_folder_path
from nodes.execute_tools.secrets.redact import Redactor
from nodes.records import Profile, ToolCall, ToolError, ToolErrorCode
from tests.doubles.history_model import HistoryModel
from tests.graph.run_plays import FILES, LINES, context, error, project

SECRET = "correct-horse-battery"  # noqa: S105 - a test's own


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = project(tmp_path / "work")
    (path / "other.txt").write_text("unread\n", encoding="utf-8")
    (path / ".gitignore").write_text("*.log\n", encoding="utf-8")
    (path / "a.log").write_text("ignored\n", encoding="utf-8")
    (path / ".env").write_text("KEY=1\n", encoding="utf-8")
    return path


def start(folder: Path) -> StartFiles:
    run = run_task("Mend add.", context(folder), model=HistoryModel(LINES)).thread_id
    found = files_at_start(workspace_folder_path(str(folder)), str(folder), run)
    assert isinstance(found, StartFiles)
    return found


def course(*calls: ToolCall, result: str = "") -> RunCourse:
    return RunCourse(AgentContext(), Profile(), (), (), (), (ToolStep(1, "t", result),), calls, (), (), {})


def call(**arguments: str) -> ToolCall:
    return ToolCall(call_id="1", tool="t", arguments=arguments, raw_arguments="")


def test_what_the_run_changed_is_as_it_was_before(folder: Path) -> None:
    before = {path: text.encode() for path, text in FILES.items()}
    assert start(folder).touched(course()) == {".gitignore": b"*.log\n", **before}


def test_all_files_are_those_that_the_agent_may_see(folder: Path) -> None:
    every = start(folder).every(course())
    assert not isinstance(every, ToolError)
    assert sorted(every) == [".gitignore", "calc.py", "notes.txt", "other.txt"]


@pytest.mark.parametrize("named", ["other.txt", "./other.txt", "{root}/other.txt", "*** Update File: other.txt\n@@"])
def test_what_a_call_names_is_taken(folder: Path, named: str) -> None:
    begun = start(folder)
    files = begun.touched(course(call(path=named.format(root=begun.workspace.root))))
    assert not isinstance(files, ToolError)
    assert "other.txt" in files


def test_what_lies_in_a_named_folder_is_taken(folder: Path) -> None:
    (folder / "src/in").mkdir(parents=True)
    (folder / "src/in/a.py").write_text("", encoding="utf-8")
    files = start(folder).touched(course(call(path="src/")))
    assert not isinstance(files, ToolError)
    assert "src/in/a.py" in files


def copied(folder: Path, beside: str, *names: str) -> None:
    """The files of an earlier run, beside its cassette."""
    for name in names:
        path = folder / beside / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")


def taken(folder: Path, course: RunCourse) -> tuple[list[str], list[str]]:
    """What of the copies is among those that the run touched, and among all."""
    begun = start(folder)
    found = (begun.touched(course), begun.every(course))
    few, every = ([path for path in files if "files/" in path] for files in found if not isinstance(files, ToolError))
    return sorted(few), sorted(every)


def test_what_lies_beside_the_cassettes_of_other_runs_is_left_out(folder: Path) -> None:
    names = ("before/.gitignore", "before/a.py", "after/x/files/before/.gitignore")
    copied(folder, "cassettes/test_a", *names, "conftest.py")
    assert taken(folder, course()) == ([], ["cassettes/test_a/files/conftest.py"])


def test_what_the_run_itself_has_named_or_seen_of_them_is_taken(folder: Path) -> None:
    copied(folder, "kept", "before/.gitignore", "after/a.py", "conftest.py")
    named, seen = "kept/files/before/.gitignore", "kept/files/after/a.py"
    conftest = "kept/files/conftest.py"
    assert taken(folder, course(call(path=named))) == ([named], [named, conftest])
    assert taken(folder, course(result=f'["{seen}"]')) == ([], [seen, conftest])


def test_folders_that_merely_have_such_names_are_taken(folder: Path) -> None:
    copied(folder, ".", "before/.gitignore", "after/a.py")
    assert taken(folder, course()) == (["files/before/.gitignore"], ["files/after/a.py", "files/before/.gitignore"])


def test_too_many_bytes_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graph.cassettes.run_files.MOST_BYTES", 20)
    assert error(start(folder).every(course())).code is ToolErrorCode.INVALID_ARGUMENT


def test_a_file_that_is_too_large_to_be_kept_is_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graph.cassettes.run_files.MOST_BYTES", 100)
    (folder / "other.txt").write_text("x" * 101, encoding="utf-8")
    assert "other.txt" in error(start(folder).every(course())).message


def test_bytes_that_were_not_kept_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_task("Mend add.", context(folder), model=HistoryModel(LINES)).thread_id
    monkeypatch.setattr(Journal, "backup", lambda *_: None)
    found = error(files_at_start(workspace_folder_path(str(folder)), str(folder), run))
    assert found.message.startswith("What 'calc.py' held before the run is gone or damaged")


def test_secrets_are_found_by_shape_and_by_value() -> None:
    redactor = Redactor((SECRET,))
    assert secret_in({"a": b"nothing", "b": b"\xff"}, redactor) is None
    by_shape = secret_in({"a": b"one\nsk-" + b"a1B2" * 8}, redactor)
    assert by_shape is not None
    assert by_shape.message.startswith("'a' holds a secret in line 2")
    by_value = secret_in({"a": SECRET.encode()}, redactor)
    assert by_value is not None
    assert by_value.message.startswith("'a' holds a secret of the environment")
