import os
import socket
import stat
from pathlib import Path

from mendgraph.nodes.execute_tools.copies.copy_sources import FolderSource, GitSource, Source, copy_tree, find_source
from mendgraph.nodes.execute_tools.copies.workspace_copies import Copy, compare_copy, make_copy
from mendgraph.nodes.execute_tools.files.handles import closing, open_root
from mendgraph.nodes.execute_tools.store.run_folder import Identity
from mendgraph.nodes.records import ToolError
from tests.nodes.execute_tools.processes.git_places import committed, git, head, repository, tree, write


def source(path: Path, revision: str = "") -> Source:
    found = find_source(str(path), revision)
    assert not isinstance(found, ToolError), found
    return found


def made(path: Path, folder: Path, revision: str = "") -> Copy:
    copy = make_copy(str(path), revision, str(folder))
    assert isinstance(copy, Copy), copy
    return copy


def test_workspace_is_a_repository_or_a_folder(tmp_path: Path) -> None:
    main, folder = repository(tmp_path / "main"), write(tmp_path / "folder", {"a": "a", "in/b": "b"})
    (tmp_path / "link").symlink_to(folder)
    found = source(main)
    assert isinstance(found, GitSource)
    assert (found.commit, found.notes, found.repository.path) == (head(main), (), str(main))
    assert source(tmp_path / "link") == source(folder) == FolderSource(str(folder))
    inner = (folder / "in").stat()
    without = [str(folder / "in"), str(folder / "missing")]
    assert find_source(str(folder), "", without) == FolderSource(str(folder), ((inner.st_dev, inner.st_ino),))


def test_folder_without_commits_around_it(tmp_path: Path) -> None:
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
