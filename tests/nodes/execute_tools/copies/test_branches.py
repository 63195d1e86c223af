"""Copies with a branch of their own: what a task is done on that nobody watches."""

import os
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.copies.workspace_copies import Copy, Wanted, commit_branch, leave_branch, make_branch
from mendgraph.nodes.records import ToolError
from tests.nodes.execute_tools.processes.git_places import git, repository, write

WANTED = Wanted("mendgraph/fix-it", "Fix it.", commit=True, report="")
IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return repository(tmp_path / "project", {"a.txt": "a", ".gitignore": "*.log\n.venv\nvenv\nnode_modules\n"})


@pytest.fixture
def copy(project: Path, tmp_path: Path) -> Copy:
    return branch(project, tmp_path / "copy")


def branch(project: Path, folder: Path) -> Copy:
    made = make_branch(str(project), str(folder), WANTED)
    assert isinstance(made, Copy), made
    return made


def branches(project: Path) -> list[str]:
    return git(project, "branch", "--format=%(refname:short)").split()


def test_branch_that_exists_stays_as_it_is(project: Path, tmp_path: Path) -> None:
    git(project, "branch", WANTED.branch)
    before = git(project, "rev-parse", WANTED.branch)
    write(project, {"a.txt": "b"})
    git(project, "commit", "-qam", "b")

    made = make_branch(str(project), str(tmp_path / "copy"), WANTED)

    assert isinstance(made, ToolError)
    assert git(project, "rev-parse", WANTED.branch) == before
    assert git(project, "worktree", "list").count("\n") == 1


@pytest.mark.parametrize("name", [".venv", "venv", "node_modules"])
def test_what_is_installed_is_linked(project: Path, tmp_path: Path, name: str) -> None:
    (project / name).mkdir()
    assert Path(branch(project, tmp_path / "copy").root, name).readlink() == project / name


def test_folder_of_installed_packages_that_is_committed_is_copied(project: Path, tmp_path: Path) -> None:
    write(project, {"node_modules/own.js": "1"})
    git(project, "add", "--force", "node_modules")
    git(project, "commit", "-qm", "packages")

    folder = Path(branch(project, tmp_path / "copy").root, "node_modules")

    assert (folder.is_symlink(), (folder / "own.js").read_text()) == (False, "1")


def test_notes_tell_what_is_not_committed(project: Path, tmp_path: Path) -> None:
    write(project, {"a.txt": "b", "new.txt": "n"})

    made = branch(project, tmp_path / "copy")

    assert made.notes == ("Not in it, as it is not committed: 'a.txt' and files that git does not track.",)
    assert (Path(made.root, "a.txt").read_text(), os.path.exists(f"{made.root}/new.txt")) == ("a", False)


def test_commit_holds_the_named_files_only(copy: Copy, project: Path) -> None:
    write(Path(copy.root), {"a.txt": "b", "run.log": "l", "new.txt": "n", "other.txt": "o", "staged.txt": "s"})
    git(Path(copy.root), "add", "staged.txt")

    commit = commit_branch(copy, ["a.txt", "run.log", "new.txt"], "Fix it", IDENTITY)

    assert commit == git(project, "rev-parse", WANTED.branch).strip()
    assert git(project, "show", "--name-only", "--format=%s by %an", WANTED.branch).splitlines() == [
        "Fix it by Ada",
        "",
        "a.txt",
        "new.txt",
    ]


def test_commit_of_nothing_is_none(copy: Copy, project: Path) -> None:
    assert commit_branch(copy, ["a.txt"], "Nothing", IDENTITY) == ""
    assert git(project, "rev-parse", WANTED.branch) == git(project, "rev-parse", "HEAD")


def test_branch_without_a_commit_goes_with_its_copy(copy: Copy, project: Path) -> None:
    assert leave_branch(copy, WANTED.branch) == ()
    assert (branches(project), os.listdir(copy.root)) == (["main"], [])


def test_branch_with_a_commit_stays_without_its_copy(copy: Copy, project: Path) -> None:
    write(Path(copy.root), {"a.txt": "b"})
    commit_branch(copy, ["a.txt"], "Fix it", IDENTITY)

    assert leave_branch(copy, WANTED.branch) == ()
    assert (branches(project), os.listdir(copy.root)) == (["main", WANTED.branch], [])


@pytest.mark.parametrize("name", ["a.txt", "new.txt"])
def test_copy_with_a_change_is_not_left(copy: Copy, project: Path, name: str) -> None:
    write(Path(copy.root), {name: "changed"})

    assert leave_branch(copy, WANTED.branch) == [name]
    assert (branches(project), Path(copy.root, name).read_text()) == (["main", WANTED.branch], "changed")
