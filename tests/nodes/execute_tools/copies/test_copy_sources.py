import json
import os
import stat
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.copies import copy_sources
from mendgraph.nodes.execute_tools.copies.copy_folders import CopyFolder, copy_folder
from mendgraph.nodes.execute_tools.copies.copy_sources import (
    RECORD,
    ArchiveSource,
    FolderSource,
    GitSource,
    Made,
    Packed,
    PackedSource,
    Source,
    find_source,
    pack_source,
    read_record,
)
from mendgraph.nodes.execute_tools.processes.git import Uncommitted
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.processes.git_places import FILES, committed, git, head, repository, tar, tree, write


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


def packed(path: Path, revision: str = "") -> Packed:
    found = pack_source(str(path), revision)
    assert isinstance(found, Packed), found
    return found


def unpacked(data: bytes, folder: Path) -> Made | ToolError:
    with copy_folder(str(folder), make=True) as opened:
        assert isinstance(opened, CopyFolder)
        return PackedSource(data).make(opened)


def test_one_commit_is_packed_the_same_however_it_is_stored(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", FILES | {"big": os.urandom(50_000)})
    commit = head(main)
    first = packed(main)
    committed(write(main, {"a.txt": "later"}))
    git(main, "gc", "--quiet", "--aggressive")
    git(main, "clone", "--quiet", str(main), str(tmp_path / "clone"))
    for path in (main, tmp_path / "clone"):
        assert packed(path, commit) == first
    assert packed(main).digest != first.digest
    assert isinstance(unpacked(packed(main).data, tmp_path / "one"), Made)
    workspace = tmp_path / "one/workspace"
    assert git(workspace, "log", "--format=%H %s") == f"{head(main)} more\n"
    assert git(workspace, "status", "--short", "--branch") == "## HEAD (no branch)\n"
    assert (workspace / "big").stat().st_size == 50_000


def test_a_folder_is_packed_the_same_and_made_the_same(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"b": "b", "a/x": "x", "odd \n\udcff": "o"})
    (source / "b").chmod(0o750)
    (source / "empty").mkdir(0o700)
    (source / "link").symlink_to("/etc/passwd")
    os.mkfifo(source / "pipe")
    first = packed(source)
    assert packed(source) == first
    found = unpacked(first.data, tmp_path / "one")
    assert isinstance(found, Made)
    workspace = tmp_path / "one/workspace"
    assert tree(workspace) == tree(source)
    assert stat.S_IMODE((workspace / "b").stat().st_mode) == 0o750
    assert stat.S_IMODE((workspace / "empty").stat().st_mode) == 0o700
    assert int((workspace / "a/x").stat().st_mtime) == int((source / "a/x").stat().st_mtime)
    without = pack_source(str(source), "", [str(source / "a")])
    assert isinstance(without, Packed)
    assert isinstance(unpacked(without.data, tmp_path / "two"), Made)
    assert "a/x" not in tree(tmp_path / "two/workspace")


@pytest.mark.parametrize("kind", ["repository", "folder", "archive"])
def test_what_is_too_large_is_refused(tmp_path: Path, kind: str) -> None:
    files = {"a": os.urandom(20_000)}
    path = tmp_path / "x.tar"
    if kind == "archive":
        tar(path, ("a", files["a"], {}), mode="w")
    else:
        path = repository(tmp_path / "x", files) if kind == "repository" else write(tmp_path / "x", files)
    found = pack_source(str(path), most_bytes=10_000)
    assert found == ToolError(
        code=ToolErrorCode.INVALID_ARGUMENT,
        message=f"The workspace '{path}' has more than 10,000 bytes when it is packed for other machines: take what is"
        " not needed out of it, or keep it where all machines see it.",
    )


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"{}\n", b"[]\n", json.dumps({"mendgraph_source": 2, "kind": "git", "name": ""}).encode() + b"\n"]
    + [json.dumps({"mendgraph_source": 1, "kind": kind, "name": ""}).encode() for kind in ("git", "other")],
)
def test_bytes_that_are_no_source_are_refused(tmp_path: Path, data: bytes) -> None:
    message = "These bytes are no packed workspace, or one of another version of mendgraph: pack it anew."
    assert unpacked(data, tmp_path / "one") == ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def test_a_commit_without_the_workspace_is_refused(tmp_path: Path) -> None:
    line, _, pack = packed(repository(tmp_path / "main")).data.partition(b"\n")
    data = json.dumps(json.loads(line) | {"prefix": "elsewhere"}).encode() + b"\n" + pack
    failed = unpacked(data, tmp_path / "one")
    assert isinstance(failed, ToolError)
    assert failed.message.endswith("does not hold the workspace: pack it anew.")


def test_a_source_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert isinstance(pack_source(str(tmp_path / "no")), ToolError)
