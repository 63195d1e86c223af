import errno
import json
import os
import socket
import stat
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.copies.copy_sources import (
    FolderSource,
    GitSource,
    Source,
    copy_tree,
    find_source,
    pack_source,
)
from mendgraph.nodes.execute_tools.copies.workspace_copies import Copy, compare_copy, make_copy
from mendgraph.nodes.execute_tools.files.handles import closing, open_root
from mendgraph.nodes.execute_tools.store.run_folder import Identity
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.processes.git_places import FILES, committed, git, head, repository, tree, write


def source(path: Path, revision: str = "") -> Source:
    found = find_source(str(path), revision)
    assert not isinstance(found, ToolError), found
    return found


def made(path: Path, folder: Path, revision: str = "") -> Copy:
    copy = make_copy(str(path), revision, str(folder))
    assert isinstance(copy, Copy), copy
    return copy


def packed(path: Path, revision: str = "") -> bytes:
    found = pack_source(str(path), revision)
    assert isinstance(found, bytes), found
    return found


def unpacked(data: bytes, folder: Path) -> Copy | ToolError:
    return make_copy("elsewhere", "", str(folder), packed=data)


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
    main = tmp_path / "main"
    main.mkdir()
    git(main, "init", "--quiet", "--object-format=sha256")
    committed(write(main, {"a.txt": "1\n2\n", "b.py": "b\n", ".gitattributes": "*.txt text eol=crlf\n"}))
    converted = made(main, tmp_path / "one")
    assert (converted.base, len(converted.base)) == (head(main), 64)
    assert tree(Path(converted.root))["a.txt"] == (False, b"1\r\n2\r\n")
    assert compare_copy(converted.folder) == b""


def test_one_commit_is_packed_without_those_before_it(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", FILES | {"big": os.urandom(50_000)})
    committed(write(main, {"a.txt": "later"}))
    assert isinstance(unpacked(packed(main), tmp_path / "one"), Copy)
    workspace = tmp_path / "one/workspace"
    assert git(workspace, "log", "--format=%H %s") == f"{head(main)} more\n"
    assert git(workspace, "status", "--short", "--branch") == "## HEAD (no branch)\n"
    assert (workspace / "big").stat().st_size == 50_000


def test_a_folder_is_packed_and_made_the_same(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"b": "b", "a/x": "x", "odd \n\udcff": "o"})
    (source / "b").chmod(0o750)
    (source / "empty").mkdir(0o700)
    (source / "link").symlink_to("/etc/passwd")
    os.mkfifo(source / "pipe")
    assert isinstance(unpacked(packed(source), tmp_path / "one"), Copy)
    workspace = tmp_path / "one/workspace"
    assert tree(workspace) == tree(source)
    assert [stat.S_IMODE((workspace / name).stat().st_mode) for name in ("b", "empty")] == [0o750, 0o700]
    assert int((workspace / "a/x").stat().st_mtime) == int((source / "a/x").stat().st_mtime)
    without = pack_source(str(source), "", [str(source / "a")])
    assert isinstance(without, bytes)
    assert isinstance(unpacked(without, tmp_path / "two"), Copy)
    assert "a/x" not in tree(tmp_path / "two/workspace")


@pytest.mark.parametrize("kind", ["repository", "folder"])
def test_what_is_too_large_is_refused(tmp_path: Path, kind: str) -> None:
    files = {"a": os.urandom(20_000)}
    path = repository(tmp_path / "x", files) if kind == "repository" else write(tmp_path / "x", files)
    found = pack_source(str(path), most_bytes=10_000)
    assert found == ToolError(
        code=ToolErrorCode.INVALID_ARGUMENT,
        message=f"The workspace '{path}' has more than 10,000 bytes when it is packed for other machines: take what is"
        " not needed out of it, or keep it where all machines see it.",
    )


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"{}\n", b"[]\n", json.dumps({"mendgraph_source": 1, "kind": "git", "name": ""}).encode() + b"\n"]
    + [json.dumps({"mendgraph_source": 2, "kind": kind, "name": ""}).encode() for kind in ("git", "other")],
)
def test_bytes_that_are_no_source_are_refused(tmp_path: Path, data: bytes) -> None:
    message = "These bytes are no packed workspace, or one of another version of mendgraph: pack it anew."
    assert unpacked(data, tmp_path / "one") == ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def test_a_packed_folder_that_is_damaged_is_told(tmp_path: Path) -> None:
    data = packed(write(tmp_path / "source", {"a": "a" * 5_000}))
    for number, cut in enumerate((data[:-20], data.partition(b"\n")[0] + b"\nnothing")):
        failed = unpacked(cut, tmp_path / str(number))
        assert isinstance(failed, ToolError)
        assert failed.message.startswith("The packed workspace is damaged (")


def test_a_commit_without_the_workspace_is_refused(tmp_path: Path) -> None:
    line, _, pack = packed(repository(tmp_path / "main")).partition(b"\n")
    data = json.dumps(json.loads(line) | {"prefix": "elsewhere"}).encode() + b"\n" + pack
    failed = unpacked(data, tmp_path / "one")
    assert isinstance(failed, ToolError)
    assert failed.message.endswith("does not hold the workspace: pack it anew.")


def copied(source: Path, target: Path, *without: Identity) -> tuple[str, ...]:
    target.mkdir(exist_ok=True)
    with closing(open_root(str(source))) as here, closing(open_root(str(target))) as there:
        return copy_tree(here, there, without)


def modes(root: Path) -> dict[str, tuple[int, int]]:
    found = {path.relative_to(root).as_posix(): path.lstat() for path in root.rglob("*") if not path.is_symlink()}
    return {name: (stat.S_IMODE(status.st_mode), status.st_mtime_ns) for name, status in found.items()}


def test_files_folders_links_modes_and_times_are_copied(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"a": "a", "d/e/run": "x" * 100_000, "odd \n\udcff": b"\0"})
    (tmp_path / "outside").write_text("canary")
    (source / "empty").mkdir()
    for name, target in (("in", "a"), ("out", str(tmp_path / "outside")), ("up", "../outside"), ("d/dangling", "no")):
        (source / name).symlink_to(target)
    (source / "folders").symlink_to("d")
    (source / "d/e/run").chmod(0o755)
    (source / "a").chmod(0o600)
    os.utime(source / "d/e", ns=(1, 2_000_000_003))
    (source / "d/e").chmod(0o555)
    assert copied(source, tmp_path / "target") == ()
    assert tree(tmp_path / "target") == tree(source)
    assert modes(tmp_path / "target") == modes(source)


def test_where_the_system_cannot_copy_by_itself_bytes_are_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    source = write(tmp_path / "source", {"a": b"x" * 3_000_000})
    monkeypatch.setattr(os, "copy_file_range", refuse)
    assert copied(source, tmp_path / "target") == ()
    assert tree(tmp_path / "target") == tree(source)


def test_special_files_are_left_out_and_told(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"a": "a"})
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(source / "sock"))
        assert copied(source, tmp_path / "target") == ("pipe", "sock")
    assert os.listdir(tmp_path / "target") == ["a"]


def test_named_folders_are_left_out_and_the_copy_is_not_copied_into_itself(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"a": "a", "out/b": "b"})
    status = (source / "out").stat()
    assert copied(source, source / "out/copy", (status.st_dev, status.st_ino)) == ()
    assert tree(source / "out/copy") == {"a": (False, b"a")}
