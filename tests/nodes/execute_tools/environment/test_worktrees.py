import os
import subprocess
from pathlib import Path
from typing import IO

import pytest

from nodes.execute_tools.environment import worktrees
from nodes.execute_tools.environment.handles import closing, open_root
from nodes.execute_tools.environment.processes import ProcessResult
from nodes.execute_tools.environment.repositories import Repository
from nodes.execute_tools.environment.worktrees import (
    ATTEMPTS,
    add_worktree,
    bare_repository,
    records_path,
    remove_worktree_records,
    worktree_name,
)
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.git_places import FILES, found, git, head, repository, tree, write


def added(main: Path, folder: Path, commit: str = "") -> str | ToolError:
    folder.mkdir(exist_ok=True)
    with closing(open_root(str(folder))) as handle:
        return add_worktree(found(main), commit or head(main), handle, str(folder), "workspace")


def test_a_worktree_has_a_name_of_its_own_and_is_not_locked(tmp_path: Path) -> None:
    main, folder = repository(tmp_path / "main"), tmp_path / "one"
    records = added(main, folder)
    assert (
        records
        == records_path(str(main / ".git"), str(folder))
        == str(main / ".git/worktrees" / worktree_name(str(folder)))
    )
    assert tree(folder / "workspace") == {name: (False, text.encode()) for name, text in FILES.items()}
    assert git(main, "worktree", "list", "--porcelain").split("\n\n")[1].splitlines() == [
        f"worktree {folder}/workspace",
        f"HEAD {head(main)}",
        "detached",
    ]
    assert git(folder / "workspace", "status", "--short") == ""
    git(main, "worktree", "prune")
    assert os.path.isdir(str(records))


def test_what_a_killed_process_left_is_made_anew(tmp_path: Path) -> None:
    main, folder = repository(tmp_path / "main"), tmp_path / "one"
    git(main, "worktree", "add", "--lock", "--detach", str(folder / worktree_name(str(folder))))
    git(main, "worktree", "add", "--detach", str(tmp_path / "another"))
    subprocess.run(["rm", "-r", str(folder)], check=True)
    assert isinstance(added(main, folder), str)
    assert sorted(os.listdir(main / ".git/worktrees")) == ["another", worktree_name(str(folder))]


def test_only_the_records_of_this_folder_are_taken_away(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    one, two = added(main, tmp_path / "one"), added(main, tmp_path / "two")
    assert isinstance(one, str)
    assert isinstance(two, str)
    remove_worktree_records(two, str(tmp_path / "one"))
    remove_worktree_records(str(main / ".git/hooks"), str(tmp_path / "one"))
    remove_worktree_records(str(tmp_path / "gone/.git/worktrees/x"), str(tmp_path / "one"))
    assert os.path.isdir(two)
    remove_worktree_records(one, str(tmp_path / "one"))
    remove_worktree_records(one, str(tmp_path / "one"))
    assert os.listdir(main / ".git/worktrees") == [os.path.basename(two)]
    (main / ".git/worktrees" / os.path.basename(two) / "gitdir").unlink()
    remove_worktree_records(two, str(tmp_path / "two"))
    assert not (main / ".git/worktrees").exists()
    write(main, {".git/worktrees/file": "x"})
    remove_worktree_records(str(main / ".git/worktrees/file"), str(tmp_path / "two"))
    assert (main / ".git/worktrees/file").exists()


@pytest.mark.parametrize("failures", [2, ATTEMPTS])
def test_a_worktree_is_begun_several_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    main, real, tries = repository(tmp_path / "main"), Repository.run, []

    def run(self: Repository, *arguments: str, cwd: str | None = None) -> ProcessResult | ToolError:
        if arguments[:2] == ("worktree", "add"):
            tries.append(1)
            if len(tries) <= failures:
                return ProcessResult(128, b"", b"fatal: could not create directory")
        return real(self, *arguments, cwd=cwd)

    monkeypatch.setattr(Repository, "run", run)
    made = added(main, tmp_path / "one")
    if failures < ATTEMPTS:
        assert isinstance(made, str)
        return
    message = f"Git could not make a worktree of '{main}': could not create directory."
    assert made == ToolError(code=ToolErrorCode.IO_ERROR, message=message)


def test_a_program_that_is_missing_or_a_disk_that_refuses_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = repository(tmp_path / "main")
    gone = ToolError(code=ToolErrorCode.UNAVAILABLE, message="no git")
    real, failing = Repository.run, [""]

    def run(self: Repository, *arguments: str, cwd: str | None = None) -> ProcessResult | ToolError:
        return gone if arguments[0] in failing else real(self, *arguments, cwd=cwd)

    monkeypatch.setattr(Repository, "run", run)
    commit = head(main)
    for command in ("worktree", "reset"):
        failing[:] = [command]
        assert added(main, tmp_path / command, commit) == gone
    failing.clear()

    def refused(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", refused)
    assert added(main, tmp_path / "three", commit) == ToolError(
        code=ToolErrorCode.IO_ERROR, message=f"Cannot make a worktree of '{main}': the disk is full."
    )


def test_files_that_are_only_on_a_server_are_not_fetched(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    git(main, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "--quiet", "--no-checkout", "--filter=blob:none", f"file://{main}", "partial")
    failed = added(tmp_path / "partial", tmp_path / "one")
    assert isinstance(failed, ToolError)
    assert failed.code is ToolErrorCode.IO_ERROR
    assert "Nothing is fetched for a copy" in failed.message


def test_a_commit_that_cannot_be_checked_out_is_told(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    blob = git(main, "rev-parse", "HEAD:a.txt").strip()
    (main / ".git/objects" / blob[:2] / blob[2:]).unlink()
    failed = added(main, tmp_path / "one")
    assert isinstance(failed, ToolError)
    assert failed.message.startswith(f"Git could not check out '{main}': ")


def packed(main: Path, file: IO[bytes]) -> IO[bytes]:
    """One commit without its past."""
    wanted = f"--shallow {head(main)}\n{head(main)}\n"
    argv = ["git", "-C", str(main), "pack-objects", "--revs", "--stdout", "--quiet"]
    subprocess.run(argv, input=wanted.encode(), stdout=file, check=True)
    file.seek(0)
    return file


def test_a_repository_of_one_commit(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    git(main, "commit", "--quiet", "--allow-empty", "--message", "second")
    bare = tmp_path / "bare.git"
    with (tmp_path / "pack").open("w+b") as file:
        assert bare_repository(str(bare), "sha1", head(main), packed(main, file)) is None
    assert git(bare, "log", "--format=%s", head(main)) == "second\n"
    git(bare, "fsck", "--strict")


def test_a_repository_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad").write_bytes(b"no pack")
    (tmp_path / "file").touch()
    with (tmp_path / "bad").open("rb") as file:
        for path, doing in (("bare.git", "store the packed commit in"), ("file", "make a repository at")):
            failed = bare_repository(str(tmp_path / path), "sha1", "0" * 40, file)
            assert isinstance(failed, ToolError)
            assert failed.message.startswith(f"Git could not {doing} '{tmp_path}/{path}': ")
        gone = ToolError(code=ToolErrorCode.UNAVAILABLE, message="no git")
        monkeypatch.setattr(worktrees, "pipe_git", lambda *_, **__: gone)
        assert bare_repository(str(tmp_path / "again.git"), "sha1", "0" * 40, file) == gone
        monkeypatch.setattr(worktrees, "run_git", lambda *_, **__: gone)
        assert bare_repository(str(tmp_path / "third.git"), "sha1", "0" * 40, file) == gone
