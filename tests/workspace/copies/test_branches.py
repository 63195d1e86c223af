"""Copies with their own branch, for tasks that nobody watches."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.copies.workspace_copies import (
    BranchCommit,
    BranchRequest,
    Copy,
    commit_branch,
    find_left_out,
    make_branch,
    remove_branch_copy,
)
from tests.extent import slow
from tests.workspace.processes.git_places import git, repository, write

WANTED = BranchRequest("mendgraph/fix-it", "Fix it.", commit=True, report="")
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
    copy = make_branch(str(project), str(folder), WANTED)
    assert isinstance(copy, Copy), copy
    return copy


def branches(project: Path) -> list[str]:
    return git(project, "branch", "--format=%(refname:short)").split()


def test_existing_branch_is_unchanged(project: Path, tmp_path: Path) -> None:
    git(project, "branch", WANTED.branch)
    before = git(project, "rev-parse", WANTED.branch)
    write(project, {"a.txt": "b"})
    git(project, "commit", "-qam", "b")

    result = make_branch(str(project), str(tmp_path / "copy"), WANTED)

    assert isinstance(result, ToolError)
    assert git(project, "rev-parse", WANTED.branch) == before
    assert git(project, "worktree", "list").count("\n") == 1


def test_committed_folder_of_installed_packages_is_copied(project: Path, tmp_path: Path) -> None:
    write(project, {"node_modules/own.js": "1"})
    git(project, "add", "--force", "node_modules")
    git(project, "commit", "-qm", "packages")

    folder = Path(branch(project, tmp_path / "copy").root, "node_modules")

    assert (folder.is_symlink(), (folder / "own.js").read_text()) == (False, "1")


def test_notes_list_what_is_not_committed(project: Path, tmp_path: Path) -> None:
    write(project, {"a.txt": "b", "new.txt": "n"})

    copy = branch(project, tmp_path / "copy")

    assert copy.notes == ("Not included, because not committed: 'a.txt' and files that git does not track.",)
    assert (Path(copy.root, "a.txt").read_text(), os.path.exists(f"{copy.root}/new.txt")) == ("a", False)


def test_commit_contains_only_the_named_files(copy: Copy, project: Path) -> None:
    write(Path(copy.root), {"a.txt": "b", "run.log": "l", "new.txt": "n", "other.txt": "o", "staged.txt": "s"})
    git(Path(copy.root), "add", "staged.txt")
    names = ["a.txt", "run.log", "new.txt"]
    assert find_left_out(copy, names) == {"run.log": "git ignores it"}

    done = commit_branch(copy, names, "Fix it", IDENTITY)

    assert done == BranchCommit(git(project, "rev-parse", WANTED.branch).strip(), {"run.log": "git ignores it"})
    log = git(project, "show", "--name-only", "--format=%s by %an", WANTED.branch)
    assert log == "Fix it by Ada\n\na.txt\nnew.txt\n"


def test_branch_without_a_commit_is_removed_with_its_copy(copy: Copy, project: Path) -> None:
    assert commit_branch(copy, ["a.txt"], "Nothing", IDENTITY) == BranchCommit("", {})
    assert remove_branch_copy(copy, WANTED.branch) == {}
    assert (branches(project), os.listdir(copy.root)) == (["main"], [])


@slow
def test_copy_with_uncommitted_work_is_kept(copy: Copy, project: Path) -> None:
    (project / ".git/info/exclude").write_text("build/\n")
    work = ["a.txt", "build/report.txt", "new.txt", "run.log"]
    write(Path(copy.root), dict.fromkeys(work, "the work of an hour"))

    changed, ignored = "it was changed by somebody else", "git ignores it"
    assert remove_branch_copy(copy, WANTED.branch) == dict(zip(work, (changed, ignored, changed, ignored), strict=True))
    assert branches(project) == ["main", WANTED.branch]
    assert {Path(copy.root, name).read_text() for name in work} == {"the work of an hour"}

    for name in work[1:]:
        Path(copy.root, name).unlink()
        assert name not in remove_branch_copy(copy, WANTED.branch)  # what is left keeps the copy
    assert Path(copy.root, "a.txt").read_text() == "the work of an hour"


@slow
@pytest.mark.parametrize("folder", [".", "web"])
def test_copy_with_staged_work_is_kept(project: Path, tmp_path: Path, folder: str) -> None:
    write(project, {"web/b.txt": "b"})
    git(project, "add", "web")
    git(project, "commit", "-qm", "web")
    copy = branch(project / folder, tmp_path / "copy")
    write(Path(copy.root), {"new.txt": "the work of an hour"})
    git(Path(copy.root), "add", "new.txt")

    assert remove_branch_copy(copy, WANTED.branch) == {"new.txt": "it was changed by somebody else"}
    assert Path(copy.root, "new.txt").read_text() == "the work of an hour"


def test_caches_that_git_ignores_do_not_keep_a_copy(copy: Copy, project: Path) -> None:
    (project / ".git/info/exclude").write_text("*.pyc\n.cache/\ntarget\n")
    files = {"pkg/__pycache__/a.cpython-311.pyc": "b", "b.pyc": "b", ".coverage": "c"}
    write(Path(copy.root), {**files, ".cache/CACHEDIR.TAG": "t", ".cache/x": "x", "target/CACHEDIR.TAG": "t"})

    assert remove_branch_copy(copy, WANTED.branch) == {}
    assert os.listdir(copy.root) == []


def test_links_to_installed_packages_do_not_keep_a_copy(project: Path, tmp_path: Path) -> None:
    files = ("node_modules/x/x.js", "node_modules/@acme/y/y.js", "venv/bin/python")
    write(project, dict.fromkeys(files, "1"))
    copy = branch(project, tmp_path / "copy")
    write(Path(copy.root), {"node_modules/.vite/results.json": "{}"})

    assert remove_branch_copy(copy, WANTED.branch) == {}
    assert all((project / name).exists() for name in files)


def test_folder_of_linked_packages_is_ignored_by_git(tmp_path: Path) -> None:
    project = repository(tmp_path / "project", {"a.txt": "a"})
    write(project, {"node_modules/x/x.js": "1", "node_modules/.gitignore": "x/\n"})
    copy = branch(project, tmp_path / "copy")
    cache = "node_modules/.vite/results.json"
    write(Path(copy.root), {cache: "{}"})

    assert git(Path(copy.root), "status", "--short") == ""
    assert commit_branch(copy, [cache], "A cache", IDENTITY) == BranchCommit("", {cache: "git ignores it"})
    assert remove_branch_copy(copy, WANTED.branch) == {}


def test_work_beside_installed_packages_keeps_a_copy(project: Path, tmp_path: Path) -> None:
    write(project, {"web/package.json": "{}", "node_modules/own.js": "1"})
    (project / "node_modules/web").symlink_to("../web")
    git(project, "add", "--all", "--force")
    git(project, "commit", "-qm", "packages")
    write(project, {"web/node_modules/x/x.js": "1"})
    copy = branch(project, tmp_path / "copy")
    work = ["node_modules/new/a.js", "node_modules/own.js", "web/node_modules/new/a.js"]
    write(Path(copy.root), dict.fromkeys(work, "the work of an hour"))

    assert sorted(remove_branch_copy(copy, WANTED.branch)) == work
    assert {Path(copy.root, name).read_text() for name in work} == {"the work of an hour"}


@pytest.fixture
def parent(project: Path, tmp_path: Path) -> Path:
    """The project with a submodule and a file with a filter."""
    inner = repository(tmp_path / "inner", {"lib.py": "x = 1\n"})
    git(project, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "vendor/sub")
    write(project, {".gitattributes": "*.bin filter=lfs\n*.key filter=git-crypt\n", "a.bin": "pointer", "a.key": "k"})
    git(project, "add", "-A")
    git(project, "commit", "-qm", "with a submodule")
    return project


@slow
@pytest.mark.parametrize("name", ["vendor/sub/lib.py", "vendor"])
def test_submodule_is_never_dropped(parent: Path, tmp_path: Path, name: str) -> None:
    copy = branch(parent, tmp_path / "copy")
    (Path(copy.root) / "vendor/sub").rmdir()
    (Path(copy.root) / "vendor").rmdir()
    write(Path(copy.root), {"a.txt": "b", name: "x = 2\n"})

    done = commit_branch(copy, ["a.txt", name], "Fix it", IDENTITY)

    assert isinstance(done, BranchCommit)
    assert git(parent, "show", "--raw", "--format=", "--abbrev=1", done.id).split("\t")[-1] == "a.txt\n"
    assert done.left_out == {name: "it takes the place of the submodule 'vendor/sub', or lies in it"}
    assert remove_branch_copy(copy, WANTED.branch)
    assert (Path(copy.root) / name).read_text() == "x = 2\n"


@slow
def test_filtered_files_are_left_out_if_their_filter_program_is_missing(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "git").symlink_to(shutil.which("git") or "")
    monkeypatch.setenv("PATH", str(programs))
    copy = branch(parent, tmp_path / "copy")
    write(Path(copy.root), {"a.bin": "changed", "a.key": "secret", "a.txt": "b"})

    done = commit_branch(copy, ["a.bin", "a.key", "a.txt"], "Fix it", IDENTITY)

    assert isinstance(done, BranchCommit)
    reasons = {"a.bin": "git-lfs, which stores it, is not installed", "a.key": "its filter 'git-crypt' is not run"}
    assert done.left_out == reasons
    assert git(parent, "show", "--name-only", "--format=", done.id) == "a.txt\n"
    assert remove_branch_copy(copy, WANTED.branch) == reasons

    (Path(copy.root) / "a.bin").unlink()
    done = commit_branch(copy, ["a.bin"], "Remove it", IDENTITY)
    assert isinstance(done, BranchCommit)
    assert git(parent, "show", "--name-status", "--format=", done.id) == "D\ta.bin\n"


LFS = """#!{python}
import sys

stdin, stdout = sys.stdin.buffer, sys.stdout.buffer


def block():
    parts = []
    while size := int(stdin.read(4) or sys.exit(), 16):
        parts.append(stdin.read(size - 4))
    return parts


def say(*parts):
    for part in parts:
        stdout.write(b"%04x" % (len(part) + 4) + part)
    stdout.write(b"0000")
    stdout.flush()


block()
say(b"git-filter-server\\n", b"version=2\\n")
block()
say(b"capability=clean\\n")
while block():
    data = b"".join(block())
    say(b"status=success\\n")
    say(b"pointer of " + data)
    say()
"""
"""A double of git-lfs, which speaks as gitattributes(5), "Long Running Filter Process", says."""


@slow
def test_lfs_file_is_committed_through_its_filter(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin/git-lfs"
    program.parent.mkdir()
    program.write_text(LFS.replace("{python}", sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    copy = branch(parent, tmp_path / "copy")
    write(Path(copy.root), {"a.bin": "changed"})

    done = commit_branch(copy, ["a.bin"], "Fix it", IDENTITY)

    assert isinstance(done, BranchCommit)
    assert done.left_out == {}
    assert git(parent, "show", f"{done.id}:a.bin") == "pointer of changed"
