import errno
import fcntl
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nodes.execute_tools.environment.commands import CommandResult
from nodes.execute_tools.environment.handles import closing, open_root
from nodes.execute_tools.environment.protected_git import linked_repository, protected_git, remove_placeholder
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.command_place import Place, command_place, opened


@contextmanager
def protected(root: Path, seconds: float = 60) -> Iterator[ToolError | None]:
    with closing(open_root(str(root))) as handle, protected_git(handle, time.monotonic() + seconds) as problem:
        yield problem


def test_an_absent_git_gets_a_placeholder_for_a_while(tmp_path: Path) -> None:
    with protected(tmp_path) as problem:
        assert problem is None
        assert os.listdir(tmp_path / ".git") == []
    assert not (tmp_path / ".git").exists()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").touch()
    with protected(tmp_path):
        pass
    assert (tmp_path / ".git/config").exists()


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_the_last_of_several_commands_takes_the_placeholder_away(tmp_path: Path, first_ends_first: bool) -> None:
    with ExitStack() as first, ExitStack() as second:
        for each in (first, second):
            assert each.enter_context(protected(tmp_path)) is None
        made = (tmp_path / ".git").stat().st_ino
        (first if first_ends_first else second).close()
        assert (tmp_path / ".git").stat().st_ino == made
        (second if first_ends_first else first).close()
        assert not (tmp_path / ".git").exists()


def test_a_placeholder_that_a_killed_run_left_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    with protected(tmp_path):
        pass
    assert not (tmp_path / ".git").exists()


def test_a_copy_of_the_handle_does_not_keep_the_lock(tmp_path: Path) -> None:
    with closing(open_root(str(tmp_path))) as handle, closing(os.dup(handle)) as copy:
        with protected_git(handle, time.monotonic() + 60):
            pass
        with protected(tmp_path, seconds=0) as problem:
            assert problem is None
        assert copy != handle


def test_a_workspace_that_somebody_else_has_locked_is_refused(tmp_path: Path) -> None:
    with closing(open_root(str(tmp_path))) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with protected(tmp_path, seconds=0.05) as problem:
            message = "Another program has locked the workspace (flock), so no command is run in it: end that one."
            assert problem == ToolError(code=ToolErrorCode.TIMEOUT, message=message)
            assert not (tmp_path / ".git").exists()


def test_without_locks_the_placeholder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*arguments: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available", str(arguments))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with protected(tmp_path) as problem:
        assert problem is None
    assert (tmp_path / ".git").is_dir()


def test_a_git_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".git").symlink_to("elsewhere")
    with protected(tmp_path) as problem:
        message = "'.git' is a symbolic link, which cannot be made read-only, so no command is run in this workspace."
        assert problem == ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_only_a_worktree_that_its_repository_knows_is_linked(tmp_path: Path) -> None:
    main, tree, false = tmp_path / "main", tmp_path / "tree", tmp_path / "false"
    for folder in (main, false):
        folder.mkdir()
    git(main, "init")
    git(main, "commit", "--allow-empty", "-m", "first")
    git(main, "worktree", "add", str(tree))
    assert linked_repository(str(tree)) == str(main / ".git")
    (false / ".git").write_text((tree / ".git").read_text())
    assert linked_repository(str(false)) is None
    assert linked_repository(str(main)) is None


@pytest.mark.parametrize(
    "pointer", ["", "gitdir: /root/.ssh", "gitdir: /", "gitdir: ../outside/worktrees/x", "x", "\0"]
)
def test_a_pointer_to_any_other_folder_is_not_followed(tmp_path: Path, pointer: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside/worktrees/x").mkdir(parents=True)
    for name in ("outside/worktrees/x/gitdir", "outside/HEAD"):
        (tmp_path / name).write_text("x")
    (root / ".git").write_text(pointer)
    assert linked_repository(str(root)) is None
    (root / ".git").unlink()
    assert linked_repository(str(root)) is None


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with command_place(tmp_path) as made:
        yield made


def test_a_repository_cannot_be_made_where_there_is_none(place: Place) -> None:
    (place.root / ".git/config").unlink()
    (place.root / ".git").rmdir()
    said = place.says("git init 2>&1; mkdir -p .git/hooks; echo x > .git; rmdir .git; mv .git away; ln -s /tmp .git")
    assert said.count(".git") >= 5
    assert not (place.root / ".git").exists()
    assert not (place.root / "away").exists()


def test_a_repository_cannot_be_made_while_another_run_ends(place: Place) -> None:
    (place.root / ".git/config").unlink()
    (place.root / ".git").rmdir()
    script = "echo > up; while [ ! -e go ]; do sleep 0.01; done; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit"
    second = threading.Thread(target=place.commands.run, args=(["sh", "-c", script],))
    other = opened(place.root)
    second.start()
    while not (place.root / "up").exists():
        time.sleep(0.01)
    assert isinstance(other.run(["true"]), CommandResult)
    assert (place.root / ".git").exists()
    (place.root / "go").touch()
    second.join()
    assert not (place.root / ".git").exists()


def test_git_works_in_a_repository_and_in_a_linked_worktree(tmp_path: Path) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=trunk")
    main, root = tmp_path.resolve() / "main", tmp_path.resolve() / "root"
    for line in (("init", str(main)), ("-C", str(main), "commit", "--allow-empty", "-m", "first")):
        subprocess.run(["git", *identity, *line], check=True, capture_output=True)
    subprocess.run(
        ["git", "-C", str(main), "worktree", "add", "-b", "side", str(root)], check=True, capture_output=True
    )
    (root / "new").touch()
    result = opened(tmp_path / "root").run(["git", "status", "--short", "--branch"])
    assert isinstance(result, CommandResult)
    assert (result.stdout.head, result.stderr.head) == (b"## side\n?? new\n", b"")
    for argv in (["git", "add", "new"], ["sh", "-c", f"echo x > {main}/.git/x"]):
        refused = opened(tmp_path / "root").run(argv)
        assert isinstance(refused, CommandResult)
        assert b"ead-only file system" in refused.stderr.head


def test_what_a_killed_command_left_is_removed_unless_it_is_needed_or_holds_something(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    with protected(tmp_path):
        remove_placeholder(str(tmp_path))
        assert (tmp_path / ".git").exists()
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / ".git/config").touch()
    remove_placeholder(str(tmp_path))
    assert (tmp_path / ".git/config").exists()
    (tmp_path / ".git/config").unlink()
    remove_placeholder(str(tmp_path))
    assert not (tmp_path / ".git").exists()


def test_a_file_system_without_locks_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", unknown)
    with protected(tmp_path) as problem:
        assert problem is None
        assert (tmp_path / ".git").is_dir()


@pytest.mark.parametrize(
    ("call", "number", "code"),
    [
        ("mkdir", errno.EROFS, None),
        ("mkdir", errno.EACCES, ToolErrorCode.PERMISSION_DENIED),
        ("stat", errno.EACCES, ToolErrorCode.PERMISSION_DENIED),
    ],
)
def test_a_git_that_cannot_be_made_or_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, code: ToolErrorCode | None
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError(number, "no")

    with closing(open_root(str(tmp_path))) as handle:
        monkeypatch.setattr(os, call, failing)
        with protected_git(handle, time.monotonic() + 60) as problem:
            assert (problem.code if problem else None) is code
        monkeypatch.undo()
