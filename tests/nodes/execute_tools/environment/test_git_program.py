import os
import tempfile
from pathlib import Path

import pytest

from nodes.execute_tools.environment import git_program
from nodes.execute_tools.environment.failures import is_disk_full
from nodes.execute_tools.environment.git_program import (
    SAFE_SETTINGS,
    git_environment,
    git_failure,
    pipe_git,
    run_git,
    users_safe_directories,
)
from nodes.execute_tools.environment.processes import ProcessResult
from nodes.records import ToolError, ToolErrorCode


def test_nothing_of_the_user_reaches_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".gitconfig").write_text("[alias]\n\tx = !echo configured\n")
    for name, value in (("HOME", str(tmp_path)), ("GIT_DIR", "/nowhere"), ("GIT_ALIAS", "x"), ("OPENAI_API_KEY", "k")):
        monkeypatch.setenv(name, value)
    found = run_git(["x"], cwd=str(tmp_path))
    assert isinstance(found, ProcessResult)
    assert (found.exit_code, found.stdout) == (1, b"")
    environment = git_environment()
    assert {"HOME", "GIT_DIR", "GIT_ALIAS", "OPENAI_API_KEY"} & environment.keys() == set()
    assert environment["GIT_TERMINAL_PROMPT"] == "0"


def test_settings_are_given_in_their_order(tmp_path: Path) -> None:
    pairs = (("safe.directory", "/one"), ("safe.directory", "/two = 2\n"), ("core.hooksPath", "/own"))
    found = run_git(["config", "--null", "--list"], cwd=str(tmp_path), settings=pairs)
    assert isinstance(found, ProcessResult)
    told = [tuple(os.fsdecode(each).split("\n", 1)) for each in found.stdout.split(b"\0")[:-1]]
    wanted = [(name.lower(), value) for name, value in (*SAFE_SETTINGS, *pairs)]
    assert [(name.lower(), value) for name, value in told] == wanted


def test_a_machine_without_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with tempfile.TemporaryFile() as said:
        found = [run_git(["version"], cwd="/"), pipe_git(["version"], b"", cwd="/", stdout=said)]
    message = "The program 'git' is needed for copies of workspaces and for patches: install your system's package git."
    assert found == [ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)] * 2
    assert users_safe_directories() == ()


def test_bytes_and_files_are_piped_through(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a\n")
    said = []
    with (tmp_path / "in").open("rb") as file:
        for given in (b"a\n", file):
            with tempfile.TemporaryFile() as out:
                done = pipe_git(["hash-object", "--stdin"], given, cwd="/", stdout=out)
                assert done == ProcessResult(0, b"", b"")
                out.seek(0)
                said.append(out.read())
    assert said == [b"78981922613b2afb6025042ff6bd878ac1994e85\n"] * 2


def test_a_git_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_program, "GIT_TIMEOUT_S", 0.1)
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as silent, tempfile.TemporaryFile() as out:
        found = pipe_git(["hash-object", "--stdin"], silent, cwd="/", stdout=out)
    os.close(writer)
    assert found == ToolError(code=ToolErrorCode.TIMEOUT, message="git was stopped after 0.1 s.")


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    with tempfile.TemporaryFile() as out:
        found = pipe_git(["version"], b"", cwd=str(tmp_path / "no"), stdout=out)
    assert isinstance(found, ToolError)
    assert found.code is ToolErrorCode.NOT_FOUND


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        (b"hint: x\nfatal: bad \x1b[31mthing.\nusage", "Git could not copy '/r': bad ?[31mthing."),
        (b"error: one\n", "Git could not copy '/r': one."),
        (b"something\nlast", "Git could not copy '/r': last."),
        (b"", "Git could not copy '/r': exit code 3."),
    ],
)
def test_a_failure_is_one_line(stderr: bytes, said: str) -> None:
    error = git_failure(ProcessResult(3, b"", stderr), "copy", "/r")
    assert error == ToolError(code=ToolErrorCode.IO_ERROR, message=said)


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        (b"fatal: sha1 file 'x' write error. Out of diskspace\n", "the disk is full"),
        (b"error: unable to write file x: No space left on device\nfatal: failed\n", "the disk is full"),
        (b"fatal: write error: Disk quota exceeded\n", "the disk quota is used up"),
    ],
)
def test_a_full_disk_is_told_as_everywhere_else(stderr: bytes, said: str) -> None:
    error = git_failure(ProcessResult(128, b"", stderr), "copy", "/r")
    assert error == ToolError(code=ToolErrorCode.IO_ERROR, message=f"Cannot copy '/r': {said}.")
    assert is_disk_full(error)


def test_a_repository_of_somebody_else_names_the_remedy() -> None:
    result = ProcessResult(128, b"", b"fatal: detected dubious ownership in repository at '/r'\n")
    error = git_failure(result, "copy", "/r")
    assert error.code is ToolErrorCode.PERMISSION_DENIED
    assert "git config --global --add safe.directory '/r'" in error.message


def test_what_the_user_trusts_is_read_from_the_users_own_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gitconfig").write_text("[safe]\n\tdirectory = /one\n\tdirectory = *\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert users_safe_directories() == ("/one", "*")
    (tmp_path / ".gitconfig").unlink()
    assert users_safe_directories() == ()
