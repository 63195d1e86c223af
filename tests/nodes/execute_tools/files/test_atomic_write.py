import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.files.atomic_write import (
    TEMPORARY_SUFFIX,
    OpenFolders,
    Role,
    name_exclusively,
    sync_folder,
    temporary_name,
    write_temporary,
    write_through,
)
from mendgraph.nodes.execute_tools.files.handles import closing
from tests.nodes.execute_tools.files.layout import build


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def folder_fd(folder: Path) -> Iterator[int]:
    with closing(os.open(folder, os.O_RDONLY | os.O_DIRECTORY)) as descriptor:
        before = len(os.listdir("/dev/fd"))
        yield descriptor
        assert len(os.listdir("/dev/fd")) == before, "a handle was left open"


def make(folder_fd: int, data: bytes, mode: int | None = 0o644) -> os.stat_result:
    """The new file is `t`, and the one that it is like is `f`."""
    return write_temporary(folder_fd, "t", data, mode=mode, like=(folder_fd, "f"))


@pytest.mark.parametrize("mode", [0o600, 0o755, 0o444])
@pytest.mark.parametrize("like", [False, True])
def test_bytes_and_mode_are_exact(folder: Path, folder_fd: int, mode: int, like: bool) -> None:
    data = b"\xef\xbb\xbfa\r\nb\x00\xff no newline"
    (folder / "f").write_bytes(b"old")
    found = write_temporary(folder_fd, "t", data, mode=mode, like=(folder_fd, "f") if like else None)
    assert found == (folder / "t").stat()
    assert ((folder / "t").read_bytes(), stat.S_IMODE(found.st_mode)) == (data, mode)
    assert ((folder / "f").read_bytes(), sorted(os.listdir(folder))) == (b"old", ["f", "t"])


def test_new_file_keeps_the_sticky_bit_and_never_runs_as_its_owner_or_group(folder_fd: int) -> None:
    status = write_temporary(folder_fd, "t", b"new", mode=0o7751)
    assert stat.S_IMODE(status.st_mode) == 0o1751


@pytest.mark.parametrize("like", [False, True])
def test_owner_is_that_of_the_other_file(
    folder: Path, folder_fd: int, monkeypatch: pytest.MonkeyPatch, like: bool
) -> None:
    (folder / "f").write_text("old")
    before, given_to = (folder / "f").stat(), []
    monkeypatch.setattr(os, "fchown", lambda _, user, group: given_to.append((user, group)))
    write_temporary(folder_fd, "t", b"new", mode=0o644, like=(folder_fd, "f") if like else None)
    assert given_to == ([(before.st_uid, before.st_gid)] if like else [])


# --- Names


@pytest.mark.parametrize("name", ["ä" * 127, "x" * 255])
def test_temporary_name_is_hidden_recognisable_and_not_too_long(name: str) -> None:
    found = temporary_name(f"d/{name}", "0123456789abcdef", 199, Role.KEPT)
    stem = found.removeprefix(".").removesuffix(f".0123456789abcdef0199k{TEMPORARY_SUFFIX}")
    assert (name.startswith(stem), len(stem) > 0, len(os.fsencode(found)) <= 255) == (True, True, True)


@pytest.mark.parametrize("occupied", [False, True])
@pytest.mark.parametrize("number", [errno.EPERM, errno.EMLINK])
def test_file_is_named_also_on_a_file_system_without_hard_links(
    folder: Path, folder_fd: int, monkeypatch: pytest.MonkeyPatch, occupied: bool, number: int
) -> None:
    (folder / "t").write_text("new")
    if occupied:
        (folder / "f").write_text("old")
    monkeypatch.setattr(os, "link", _failing(os.link, number, 1))
    if occupied:
        with pytest.raises(FileExistsError):
            name_exclusively(folder_fd, "t", "f")
    else:
        name_exclusively(folder_fd, "t", "f")
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert found == ({"f": "old", "t": "new"} if occupied else {"f": "new"})


# --- What fails


def _failing(real: Callable[..., Any], number: int, nth: int) -> Callable[..., Any]:
    """The system call, which fails the n-th time and ever after."""
    calls = 0

    def call(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= nth:
            raise OSError(number, os.strerror(number))
        return real(*args, **named)

    return call


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(("function", "nth"), [("open", 1), ("write", 1), ("write", 2), ("fchmod", 1), ("fsync", 1)])
def test_failure_anywhere_leaves_no_new_file(
    folder: Path, folder_fd: int, monkeypatch: pytest.MonkeyPatch, function: str, nth: int, number: int
) -> None:
    (folder / "f").write_text("old")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))  # writes come in pieces
    monkeypatch.setattr(os, function, _failing(getattr(os, function), number, nth))
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        make(folder_fd, b"new bytes")
    monkeypatch.undo()
    assert caught.value.errno == number
    assert ((folder / "f").read_text(), os.listdir(folder)) == ("old", ["f"])


@pytest.mark.parametrize("able", [True, False])
def test_on_macos_the_disk_itself_is_asked(folder_fd: int, monkeypatch: pytest.MonkeyPatch, able: bool) -> None:
    asked: list[object] = []

    def control(descriptor: int, request: int) -> None:
        asked.append((descriptor, request))
        if not able:
            raise OSError(errno.ENOTSUP, "")

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(os, "fsync", asked.append)
    write_through(folder_fd)
    assert asked == [(folder_fd, 51), *([] if able else [folder_fd])]


@pytest.fixture
def folders(root: Path) -> Iterator[OpenFolders]:
    with OpenFolders(str(root)) as opened:
        yield opened


def test_real_name_follows_a_folder_that_is_moved(root: Path, folders: OpenFolders) -> None:
    folder = folders.open(("src",))
    assert (folders.real_name(folder, "b.py"), folders.real_name(folders.root, "a.py")) == ("src/b.py", "a.py")
    (root / "deep").mkdir()
    os.rename(root / "src", root / "deep" / "er")
    assert folders.real_name(folder, "x", "y") == "deep/er/x/y"
    os.rename(root / "deep" / "er", root.parent / "away")
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        folders.real_name(folder, "b.py")


@pytest.mark.parametrize(("number", "told"), [(errno.EIO, True), (errno.ENOSPC, True), (errno.EINVAL, False)])
def test_sync_that_fails_is_told_where_the_system_knows_it(
    folders: OpenFolders, monkeypatch: pytest.MonkeyPatch, number: int, told: bool
) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    if not told:
        sync_folder(folders.root)
        return
    with pytest.raises(OSError, match=os.strerror(number)):
        sync_folder(folders.root)


def test_link_in_place_of_a_folder_is_not_followed_when_it_is_removed(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    root = build(tmp_path / "tree")
    (tmp_path / "tree" / "outside" / "empty").mkdir()
    with OpenFolders(str(root)) as folders:
        folders.remove_made(["out", "out/empty"])
    assert ((tmp_path / "tree" / "outside" / "empty").is_dir(), (root / "out").is_symlink()) == (True, True)
