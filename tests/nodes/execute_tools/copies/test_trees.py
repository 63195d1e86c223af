import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.copies.trees import copy_tree
from mendgraph.nodes.execute_tools.files.handles import closing, open_root
from mendgraph.nodes.execute_tools.store.run_folder import Identity
from tests.nodes.execute_tools.processes.git_places import tree, write


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
