import errno
import fcntl
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from nodes.execute_tools.environment import tree_copy
from nodes.execute_tools.environment.handles import closing, open_root
from nodes.execute_tools.environment.run_folder import Identity
from nodes.execute_tools.environment.tree_copy import TreeCopied, copy_bytes, copy_tree
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.git_places import tree, write


def copied(source: Path, target: Path, *without: Identity) -> TreeCopied | ToolError:
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
    assert copied(source, tmp_path / "target") == TreeCopied(3, 100_002)
    assert tree(tmp_path / "target") == tree(source)
    assert modes(tmp_path / "target") == modes(source)


def test_special_files_are_left_out_and_told(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"a": "a"})
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(source / "sock"))
        assert copied(source, tmp_path / "target") == TreeCopied(1, 1, ("pipe", "sock"))
    assert os.listdir(tmp_path / "target") == ["a"]


def test_bits_that_give_rights_are_dropped(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"a": "a"})
    (source / "a").chmod(0o6755)
    copied(source, tmp_path / "target")
    assert stat.S_IMODE((tmp_path / "target/a").stat().st_mode) == 0o755


def test_named_folders_are_left_out_and_the_copy_is_not_copied_into_itself(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"a": "a", "out/b": "b"})
    status = (source / "out").stat()
    assert copied(source, source / "out/copy", (status.st_dev, status.st_ino)) == TreeCopied(1, 1)
    assert tree(source / "out/copy") == {"a": (False, b"a")}


def test_a_file_that_is_written_meanwhile_is_copied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "source", {"a": "one"})
    real, writes = copy_bytes, [b"two!", b"three"]

    def copying(here: int, there: int) -> None:
        real(here, there)
        if writes:
            (source / "a").write_bytes(writes.pop(0))

    monkeypatch.setattr(tree_copy, "copy_bytes", copying)
    assert copied(source, tmp_path / "target") == TreeCopied(1, 5)
    assert (tmp_path / "target/a").read_bytes() == b"three"
    writes[:] = [b"1", b"22", b"333"]
    message = "'a' is being written all the time, so it cannot be copied: try again later."
    assert copied(source, tmp_path / "second") == ToolError(code=ToolErrorCode.CONFLICT, message=message)


def test_what_goes_away_meanwhile_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "source", {"a": "a", "b": "b", "d/x": "x"})
    real = os.stat

    def looking(name: str, **named: Any) -> os.stat_result:
        found = real(name, **named)
        if name == "b":
            os.unlink(source / "b")
        if name == "d":
            os.unlink(source / "d/x")
            os.rmdir(source / "d")
        assert isinstance(found, os.stat_result)
        return found

    monkeypatch.setattr(os, "stat", looking)
    found = copied(source, tmp_path / "target")
    monkeypatch.undo()
    assert found == TreeCopied(1, 1)
    assert tree(tmp_path / "target") == {"a": (False, b"a")}


def test_what_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "source", {"d/a": "a"})

    def refused(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(tree_copy, "open_regular", refused)
    message = "Cannot copy 'd/a': the file permissions do not allow it."
    assert copied(source, tmp_path / "target") == ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)
    monkeypatch.setattr(tree_copy, "open_directory", refused)
    message = "Cannot copy '.': the file permissions do not allow it."
    assert copied(source, tmp_path / "second") == ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


@pytest.mark.parametrize("way", ["cloned", "in the kernel", "by hand", "an old system"])
def test_bytes_are_copied_in_the_cheapest_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    data = os.urandom(200_000)
    (tmp_path / "a").write_bytes(data)

    def clone(target: int, _: int, source: int) -> int:
        os.write(target, os.pread(source, len(data), 0))
        return 0

    def refused(*_: object) -> int:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    if way == "cloned":
        monkeypatch.setattr(fcntl, "ioctl", clone)
        monkeypatch.setattr(os, "copy_file_range", None)
    if way == "by hand":
        monkeypatch.setattr(os, "copy_file_range", refused)
    if way == "an old system":
        monkeypatch.delattr(os, "copy_file_range")
    with (tmp_path / "a").open("rb") as source, (tmp_path / "b").open("wb") as target:
        copy_bytes(source.fileno(), target.fileno())
    assert (tmp_path / "b").read_bytes() == data


def test_a_disk_that_is_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "copy_file_range", full)
    found = copied(write(tmp_path / "source", {"a": "a"}), tmp_path / "target")
    assert found == ToolError(code=ToolErrorCode.IO_ERROR, message="Cannot copy 'a': the disk is full.")
