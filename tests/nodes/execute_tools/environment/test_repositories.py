import os
import shutil
from pathlib import Path

import pytest

from nodes.execute_tools.environment import repositories
from nodes.execute_tools.environment.processes import ProcessResult
from nodes.execute_tools.environment.repositories import (
    Repository,
    Uncommitted,
    find_commit,
    find_repository,
    find_tree,
    find_uncommitted,
    object_folder,
)
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.git_places import committed, found, git, head, repository, write


def error(found: object) -> str:
    assert isinstance(found, ToolError), found
    return f"{found.code.value}: {found.message}"


def test_a_repository_is_found_from_its_top_a_folder_in_it_a_worktree_and_a_bare_one(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    git(main, "worktree", "add", "--quiet", "--detach", str(tmp_path / "tree"))
    git(main, "clone", "--quiet", "--bare", ".", str(tmp_path / "bare.git"))
    common = str(main / ".git")
    for path, shared, prefix, is_bare in (
        (main, common, "", False),
        (main / "src", common, "src", False),
        (tmp_path / "tree/src", common, "src", False),
        (tmp_path / "bare.git", str(tmp_path / "bare.git"), "", True),
    ):
        assert found(path) == Repository(str(path), shared, prefix, "sha1", is_bare)
    assert object_folder(found(main / "src")) == f"{common}/objects"
    assert find_repository(str(tmp_path)) is None


def test_names_with_newlines_are_found(tmp_path: Path) -> None:
    main = repository(tmp_path / "a\nb", {"c\nd/e": "x"})
    assert found(main / "c\nd")[:3] == (str(main / "c\nd"), str(main / ".git"), "c\nd")


def test_programs_that_a_repository_names_are_turned_off(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    for setting in ("clean", "smudge", "process"):
        git(main, "config", f"filter.a.b.{setting}", "touch /tmp/x")
    off = (("clean", ""), ("smudge", ""), ("process", ""), ("required", "false"))
    assert found(main).settings == tuple((f"filter.a.b.{name}", value) for name, value in off)


def test_a_revision_is_a_commit(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    first = head(main)
    git(main, "tag", "-a", "v1", "-m", "v1")
    git(main, "branch", "side")
    write(main, {"a.txt": "more"})
    committed(main)
    here = found(main)
    assert [find_commit(here, each) for each in ("", "HEAD", "main")] == [head(main)] * 3
    assert [find_commit(here, each) for each in ("HEAD~1", "v1", "side", first[:8])] == [first] * 4


@pytest.mark.parametrize("revision", ["--upload-pack=x", "-h", " HEAD", "HEAD\n", "a\0b", "x" * 2_000])
def test_what_is_no_revision_is_refused(tmp_path: Path, revision: str) -> None:
    said = error(find_commit(found(repository(tmp_path / "main")), revision))
    assert said.startswith("invalid_argument: ")
    assert said.endswith(" is no git revision: name a branch, a tag or a commit.")


@pytest.mark.parametrize("revision", ["no", "HEAD~9", "HEAD:a.txt", "HEAD..main", "0" * 40])
def test_a_commit_that_is_not_there(tmp_path: Path, revision: str) -> None:
    said = error(find_commit(found(repository(tmp_path / "main")), revision))
    assert said.startswith(f"not_found: There is no commit '{revision}' in the repository '{tmp_path}/main': ")


def test_a_repository_without_commits(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    assert error(find_commit(found(tmp_path))) == (
        f"not_found: The repository '{tmp_path}' has no commit yet: commit what is there first."
    )
    repository(tmp_path / "other")
    git(tmp_path, "fetch", "--quiet", str(tmp_path / "other"), "main:side")
    assert "There is no commit 'HEAD'" in error(find_commit(found(tmp_path)))


def test_the_tree_of_a_folder(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", {"src/a": "a", "b": "b"})
    tree = git(main, "rev-parse", "HEAD:src").strip()
    assert find_tree(found(main / "src"), head(main)) == tree
    (main / "new").mkdir()
    assert find_tree(found(main / "new"), head(main)) is None
    git(main, "rm", "--quiet", "-r", "src")
    committed(write(main, {"src": "a file now"}))
    (main / "src").unlink()
    (main / "src").mkdir()
    assert find_tree(found(main / "src"), head(main)) is None


def test_what_is_not_committed(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", {"a": "a\n" * 20, "b": "b", "c": "c", "src/d": "d", "src/e f": "e"})
    before = (main / ".git/index").read_bytes()
    os.utime(main / "a")
    assert find_uncommitted(found(main)) == Uncommitted((), untracked=False)
    assert (main / ".git/index").read_bytes() == before
    git(main, "mv", "a", "new name")
    write(main, {"b": "changed", "src/e f": "changed", "untracked": "x"})
    (main / "c").unlink()
    assert find_uncommitted(found(main)) == Uncommitted(("b", "c", "new name", "src/e f"), untracked=True)
    assert find_uncommitted(found(main / "src")) == Uncommitted(("src/e f",), untracked=False)
    git(main, "clone", "--quiet", "--bare", ".", str(tmp_path / "bare.git"))
    assert find_uncommitted(found(tmp_path / "bare.git")) == Uncommitted((), untracked=False)


def test_a_merge_that_is_not_settled_is_not_committed(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    git(main, "checkout", "--quiet", "-b", "side")
    committed(write(main, {"a.txt": "side"}))
    git(main, "checkout", "--quiet", "main")
    committed(write(main, {"a.txt": "main"}))
    with pytest.raises(Exception, match="merge"):
        git(main, "merge", "side")
    assert find_uncommitted(found(main)) == Uncommitted(("a.txt",), untracked=False)


def test_a_repository_of_another_user_is_trusted_if_the_user_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user: run the tests as root to try this")
    main = repository(tmp_path / "main")
    for path in (main, main / ".git"):
        shutil.chown(path, 65534)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert error(find_repository(str(main))).startswith("permission_denied: Git does not trust the repository ")
    (tmp_path / ".gitconfig").write_text(f'[safe]\n\tdirectory = /other\n\tdirectory = "{main}"\n')
    here = found(main)
    assert here.settings == (("safe.directory", "/other"), ("safe.directory", str(main)))
    assert find_commit(here) == here.line("rev-parse", "HEAD")


def test_a_repository_that_is_damaged_is_told(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    (main / ".git/config").write_text("[core\n")
    said = error(find_repository(str(main)))
    assert said.startswith(f"io_error: Git could not open the repository '{main}': bad config line 1")


def test_a_git_that_is_too_old_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = ProcessResult(0, b"--path-format=absolute\n.git\nfalse\nsha1\n", b"")
    monkeypatch.setattr(repositories, "run_git", lambda *_, **__: said)
    message = "The program 'git' is too old for copies of workspaces: install 2.31 or newer."
    assert find_repository(str(tmp_path)) == ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def test_a_git_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = found(repository(tmp_path / "main"))
    (tmp_path / "main/.git/index").write_bytes(b"no index")
    assert error(find_uncommitted(here)).startswith("io_error: Git could not look for changes in ")
    gone = ToolError(code=ToolErrorCode.UNAVAILABLE, message="no git")
    monkeypatch.setattr(repositories, "run_git", lambda *_, **__: gone)
    assert find_repository(str(tmp_path)) == gone
    assert find_uncommitted(here) == gone
    assert here.line("version") is None
    assert repositories.filters_off(here) == ()
    monkeypatch.setattr(
        repositories, "run_git", lambda *_, **__: ProcessResult(128, b"", b"fatal: not a git repository")
    )
    assert find_repository(str(tmp_path)) is None
