from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.copies.copy_folders import CopyFolder, copy_folder
from mendgraph.nodes.execute_tools.copies.copy_sources import (
    RECORD,
    FolderSource,
    GitSource,
    Made,
    Source,
    find_source,
    read_record,
)
from mendgraph.nodes.records import ToolError
from tests.nodes.execute_tools.processes.git_places import committed, git, head, repository, tree, write


def source(path: Path, revision: str = "") -> Source:
    found = find_source(str(path), revision)
    assert not isinstance(found, ToolError), found
    return found


def made(path: Path, folder: Path, revision: str = "") -> Made | ToolError:
    with copy_folder(str(folder), make=True) as opened:
        assert isinstance(opened, CopyFolder)
        return source(path, revision).make(opened)


def test_a_workspace_is_a_repository_or_a_folder(tmp_path: Path) -> None:
    main, folder = repository(tmp_path / "main"), write(tmp_path / "folder", {"a": "a", "in/b": "b"})
    (tmp_path / "link").symlink_to(folder)
    found = source(main)
    assert isinstance(found, GitSource)
    assert (found.commit, found.notes, found.repository.path) == (head(main), (), str(main))
    assert source(tmp_path / "link") == source(folder) == FolderSource(str(folder))
    inner = (folder / "in").stat()
    without = [str(folder / "in"), str(folder / "missing")]
    assert find_source(str(folder), "", without) == FolderSource(str(folder), ((inner.st_dev, inner.st_ino),))


def test_a_folder_without_commits_around_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    write(tmp_path, {"in/a": "a"})
    assert source(tmp_path / "in") == FolderSource(str(tmp_path / "in"))
    git(tmp_path, "add", "in/a")
    refused = find_source(str(tmp_path / "in"))
    assert isinstance(refused, ToolError)
    assert "has no commit yet" in refused.message


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


def test_a_record_that_is_damaged(tmp_path: Path) -> None:
    made(write(tmp_path / "folder", {"a": "a"}), tmp_path / "one")
    with copy_folder(str(tmp_path / "one"), make=False) as folder:
        assert isinstance(folder, CopyFolder)
        assert list(read_record(folder).files) == ["a"]
        for content in ("", "[]", "{}", '{"files": {"a": 1}, "hidden": []}', '{"files": {"a": [1]}, "hidden": []}'):
            (tmp_path / "one" / RECORD).write_text(content)
            with pytest.raises(ValueError, match=r"\w"):
                read_record(folder)
