from pathlib import Path

import pytest

from nodes.execute_tools.environment import copy_sources
from nodes.execute_tools.environment.copy_folders import CopyFolder, copy_folder
from nodes.execute_tools.environment.copy_sources import (
    RECORD,
    ArchiveSource,
    FolderSource,
    GitSource,
    Made,
    Source,
    find_source,
    read_record,
)
from nodes.execute_tools.environment.private_git import PrivateGit
from nodes.execute_tools.environment.processes import ProcessResult
from nodes.execute_tools.environment.repositories import Repository, Uncommitted
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.git_places import committed, git, head, repository, tar, tree, write

NO_GIT = ToolError(code=ToolErrorCode.UNAVAILABLE, message="no git")


def source(path: Path, revision: str = "") -> Source:
    found = find_source(str(path), revision)
    assert not isinstance(found, ToolError), found
    return found


def made(path: Path, folder: Path, revision: str = "") -> Made | ToolError:
    with copy_folder(str(folder), make=True) as opened:
        assert isinstance(opened, CopyFolder)
        return source(path, revision).make(opened)


def test_a_workspace_is_a_repository_a_folder_or_an_archive(tmp_path: Path) -> None:
    main, folder = repository(tmp_path / "main"), write(tmp_path / "folder", {"a": "a", "in/b": "b"})
    archive = tar(tmp_path / "x.TAR", ("a", "a", {}), mode="w")
    (tmp_path / "link").symlink_to(folder)
    found = source(main)
    assert isinstance(found, GitSource)
    assert (found.commit, found.notes, found.repository.path) == (head(main), (), str(main))
    assert source(tmp_path / "link") == source(folder) == FolderSource(str(folder))
    assert source(archive) == ArchiveSource(str(archive))
    inner = (folder / "in").stat()
    without = [str(folder / "in"), str(folder / "missing")]
    assert find_source(str(folder), "", without) == FolderSource(str(folder), ((inner.st_dev, inner.st_ino),))


def test_the_home_of_the_user_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "folder", {"a": "a"})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_source("~/folder") == FolderSource(str(folder))


def test_a_folder_without_commits_around_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    write(tmp_path, {"in/a": "a"})
    assert source(tmp_path / "in") == FolderSource(str(tmp_path / "in"))
    git(tmp_path, "add", "in/a")
    refused = find_source(str(tmp_path / "in"))
    assert isinstance(refused, ToolError)
    assert "has no commit yet" in refused.message


def test_many_changed_files_are_counted(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", dict.fromkeys("abcde", "1"))
    write(main, dict.fromkeys("abcde", "2"))
    refused = find_source(str(main))
    assert isinstance(refused, ToolError)
    assert "('a', 'b', 'c' and 2 more)" in refused.message


def test_files_that_git_converts_are_taken_as_they_are(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", {"a.txt": "1\n2\n", "b.py": "b\n", "c.txt": "no line"})
    commit = head(main)
    plain = made(main, tmp_path / "plain")
    assert isinstance(plain, Made)
    write(main, {".git/info/attributes": "*.txt text eol=crlf\n"})
    converted = made(main, tmp_path / "converted", commit)
    assert isinstance(converted, Made)
    assert (converted.base, converted.root) == (commit, "workspace")
    assert tree(tmp_path / "converted/workspace")["a.txt"] == (False, b"1\r\n2\r\n")
    own = [git(tmp_path / folder / "base.git", "rev-parse", "base:a.txt") for folder in ("plain", "converted")]
    assert own[0] != own[1]
    same = [git(tmp_path / folder / "base.git", "rev-parse", "base:b.py") for folder in ("plain", "converted")]
    assert same[0] == same[1]


def test_a_repository_with_longer_hashes(tmp_path: Path) -> None:
    main = tmp_path / "main"
    main.mkdir()
    git(main, "init", "--quiet", "--object-format=sha256")
    committed(write(main, {"a.txt": "a\n", ".gitattributes": "*.txt text eol=crlf\n"}))
    found = made(main, tmp_path / "one")
    assert isinstance(found, Made)
    assert len(found.base) == 64


def test_only_a_part_of_the_files_may_be_checked_out(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", {"in/a": "a", "out/b": "b", "c": "c"})
    git(main, "sparse-checkout", "set", "in")
    found = made(main, tmp_path / "one")
    assert isinstance(found, Made)
    assert sorted(tree(tmp_path / "one/workspace")) == ["c", "in/a"]


def test_a_record_that_is_damaged(tmp_path: Path) -> None:
    made(write(tmp_path / "folder", {"a": "a"}), tmp_path / "one")
    with copy_folder(str(tmp_path / "one"), make=False) as folder:
        assert isinstance(folder, CopyFolder)
        assert list(read_record(folder).files) == ["a"]
        for content in ("", "[]", "{}", '{"files": {"a": 1}, "hidden": []}', '{"files": {"a": [1]}, "hidden": []}'):
            (tmp_path / "one" / RECORD).write_text(content)
            with pytest.raises(ValueError, match=r"\w"):
                read_record(folder)


@pytest.mark.parametrize("call", ["ls-files", "status", "worktree"])
def test_a_git_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    main, real = repository(tmp_path / "main"), Repository.run
    answers = iter((NO_GIT, ProcessResult(128, b"", b"fatal: broken")))

    def run(self: Repository, *arguments: str, cwd: str | None = None) -> ProcessResult | ToolError:
        return next(answers) if arguments[0] == call else real(self, *arguments, cwd=cwd)

    monkeypatch.setattr(Repository, "run", run)
    monkeypatch.setattr("nodes.execute_tools.environment.worktrees.ATTEMPTS", 1)
    for number in range(2):
        with copy_folder(str(tmp_path / str(number)), make=True) as folder:
            assert isinstance(folder, CopyFolder)
            found = find_source(str(main))
            failed = found if isinstance(found, ToolError) else found.make(folder)
        assert isinstance(failed, ToolError)
        assert failed == NO_GIT if number == 0 else failed.message.endswith(": broken.")


@pytest.mark.parametrize("step", ["make", "keep"])
@pytest.mark.parametrize("kind", ["repository", "folder"])
def test_a_private_repository_that_cannot_be_made_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, kind: str
) -> None:
    path = repository(tmp_path / "x") if kind == "repository" else write(tmp_path / "x", {"a": "a"})
    monkeypatch.setattr(PrivateGit, step, lambda *_, **__: NO_GIT)
    assert made(path, tmp_path / "one") == NO_GIT


def test_a_machine_without_git_copies_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "folder", {"a": "a"})
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_source(str(folder))
    assert isinstance(found, ToolError)
    assert found.code is ToolErrorCode.UNAVAILABLE


def test_a_folder_that_has_left_the_commit(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", {"in/a": "a"})
    assert isinstance(source(main / "in", head(main)), GitSource)
    git(main, "rm", "--quiet", "-r", "--cached", "in")
    git(main, "commit", "--quiet", "-m", "without")
    message = f"The folder 'in' is not in the commit {head(main)} of its repository."
    assert find_source(str(main / "in"), "HEAD") == ToolError(code=ToolErrorCode.NOT_FOUND, message=message)


def test_files_that_are_untracked_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = repository(tmp_path / "main")
    monkeypatch.setattr(copy_sources, "find_uncommitted", lambda _: Uncommitted((), untracked=True))
    found = source(main)
    assert isinstance(found, GitSource)
    assert found.notes == ("Files that git does not track are in no copy: commit what is needed.",)
