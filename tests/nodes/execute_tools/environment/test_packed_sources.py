import json
import os
import stat
from pathlib import Path

import pytest

from nodes.execute_tools.environment import packed_sources
from nodes.execute_tools.environment.copy_folders import CopyFolder, copy_folder
from nodes.execute_tools.environment.copy_sources import Made
from nodes.execute_tools.environment.handles import open_regular
from nodes.execute_tools.environment.packed_sources import Packed, PackedSource, pack_source
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.git_places import FILES, committed, git, head, repository, tar, tree, write

NO_GIT = ToolError(code=ToolErrorCode.UNAVAILABLE, message="no git")


def packed(path: Path, revision: str = "") -> Packed:
    found = pack_source(str(path), revision)
    assert isinstance(found, Packed), found
    return found


def made(data: bytes, folder: Path) -> Made | ToolError:
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
    assert isinstance(made(packed(main).data, tmp_path / "one"), Made)
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
    found = made(first.data, tmp_path / "one")
    assert isinstance(found, Made)
    workspace = tmp_path / "one/workspace"
    assert tree(workspace) == tree(source)
    assert stat.S_IMODE((workspace / "b").stat().st_mode) == 0o750
    assert stat.S_IMODE((workspace / "empty").stat().st_mode) == 0o700
    assert int((workspace / "a/x").stat().st_mtime) == int((source / "a/x").stat().st_mtime)
    without = pack_source(str(source), "", [str(source / "a")])
    assert isinstance(without, Packed)
    assert isinstance(made(without.data, tmp_path / "two"), Made)
    assert "a/x" not in tree(tmp_path / "two/workspace")


def test_a_folder_may_compress_very_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_sources, "_TRUSTED", packed_sources._TRUSTED._replace(free_bytes=1_000))
    source = write(tmp_path / "source", {"zeros": b"\0" * 3_000_000})
    found = packed(source)
    assert len(found.data) < 3_000_000 / 200
    assert isinstance(made(found.data, tmp_path / "one"), Made)


def test_an_archive_is_packed_as_it_is(tmp_path: Path) -> None:
    archive = tar(tmp_path / "x.tar.xz", ("top/a", "a", {}), mode="w:xz")
    assert packed(archive).data.endswith(archive.read_bytes())
    assert isinstance(made(packed(archive).data, tmp_path / "one"), Made)
    assert tree(tmp_path / "one/workspace") == {"a": (False, b"a")}


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
    assert made(data, tmp_path / "one") == ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def test_a_commit_without_the_workspace_is_refused(tmp_path: Path) -> None:
    line, _, pack = packed(repository(tmp_path / "main")).data.partition(b"\n")
    data = json.dumps(json.loads(line) | {"prefix": "elsewhere"}).encode() + b"\n" + pack
    failed = made(data, tmp_path / "one")
    assert isinstance(failed, ToolError)
    assert failed.message.endswith("does not hold the workspace: pack it anew.")


def test_bytes_that_are_cut_are_refused(tmp_path: Path) -> None:
    for number, path in enumerate((repository(tmp_path / "a"), write(tmp_path / "b", {"x": os.urandom(5_000)}))):
        failed = made(packed(path).data[:-100], tmp_path / str(number))
        assert isinstance(failed, ToolError)
        assert failed.code in {ToolErrorCode.IO_ERROR, ToolErrorCode.INVALID_ARGUMENT}


def test_a_source_that_is_not_there_or_changes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(pack_source(str(tmp_path / "no")), ToolError)
    source = write(tmp_path / "source", {"a": "1234"})
    real = os.fstat

    def grown(handle: int) -> os.stat_result:
        (source / "a").write_bytes(b"12345")
        return real(handle)

    monkeypatch.setattr(os, "fstat", grown)
    message = "'a' was written while the workspace was packed: try again."
    assert pack_source(str(source)) == ToolError(code=ToolErrorCode.CONFLICT, message=message)
    monkeypatch.undo()

    real_open = open_regular

    def shrunk(*arguments: object) -> tuple[int, os.stat_result]:
        found = real_open(*arguments)  # type: ignore[arg-type]  # as it was called
        (source / "a").write_bytes(b"")
        return found

    monkeypatch.setattr(packed_sources, "open_regular", shrunk)
    assert pack_source(str(source)) == ToolError(code=ToolErrorCode.CONFLICT, message=message)


def test_a_disk_or_a_git_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main, source = repository(tmp_path / "main"), write(tmp_path / "source", {"a": "a"})
    data = packed(main).data

    def refused(*_: object) -> int:
        raise PermissionError(13, "no")

    with monkeypatch.context() as patch:
        patch.setattr(packed_sources, "open_regular", refused)
        found = pack_source(str(source))
        assert isinstance(found, ToolError)
        assert found.code is ToolErrorCode.PERMISSION_DENIED
    with monkeypatch.context() as patch:
        patch.setattr(packed_sources, "pipe_git", lambda *_, **__: NO_GIT)
        assert pack_source(str(main)) == NO_GIT
    with monkeypatch.context() as patch:
        patch.setattr(packed_sources, "find_repository", lambda _: NO_GIT)
        assert made(data, tmp_path / "one") == NO_GIT
        patch.setattr(packed_sources, "find_repository", lambda _: None)
        assert isinstance(made(data, tmp_path / "two"), ToolError)
    blob = git(main, "rev-parse", "HEAD:a.txt").strip()
    (main / ".git/objects" / blob[:2] / blob[2:]).unlink()
    found = pack_source(str(main))
    assert isinstance(found, ToolError)
    assert found.message.startswith(f"Git could not pack '{main}': ")
