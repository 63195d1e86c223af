import errno
import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.environment.atomic_write import TEMPORARY_SUFFIX, replace_by_handle
from nodes.execute_tools.environment.handles import closing


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def folder_fd(folder: Path) -> Iterator[int]:
    with closing(os.open(folder, os.O_RDONLY | os.O_DIRECTORY)) as descriptor:
        before = len(os.listdir("/dev/fd"))
        yield descriptor
        assert len(os.listdir("/dev/fd")) == before, "a handle was left open"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o755, 0o777])
def test_bytes_and_mode_are_exact(folder: Path, folder_fd: int, mode: int) -> None:
    data = b"\xef\xbb\xbfa\r\nb\x00\xff no newline"
    (folder / "f").write_bytes(b"old")
    replace_by_handle(folder_fd, "f", data, mode=mode)
    assert (folder / "f").read_bytes() == data
    assert stat.S_IMODE((folder / "f").stat().st_mode) == mode
    assert os.listdir(folder) == ["f"]


def test_a_new_file_gets_the_mode_of_a_new_file(folder: Path, folder_fd: int) -> None:
    old = os.umask(0o027)
    try:
        replace_by_handle(folder_fd, "f", b"x", mode=None)
    finally:
        os.umask(old)
    assert stat.S_IMODE((folder / "f").stat().st_mode) == 0o640


def test_set_user_id_does_not_survive_a_change(folder: Path, folder_fd: int) -> None:
    replace_by_handle(folder_fd, "f", b"x", mode=0o4755)
    assert stat.S_IMODE((folder / "f").stat().st_mode) == 0o755


def test_a_link_is_replaced_and_its_target_stays(folder: Path, folder_fd: int) -> None:
    (folder / "target").write_text("kept")
    (folder / "f").symlink_to("target")
    replace_by_handle(folder_fd, "f", b"new", mode=0o644)
    assert ((folder / "target").read_text(), (folder / "f").is_symlink()) == ("kept", False)


def test_a_hard_link_keeps_the_old_bytes(folder: Path, folder_fd: int) -> None:
    (folder / "f").write_text("old")
    os.link(folder / "f", folder / "other")
    replace_by_handle(folder_fd, "f", b"new", mode=0o644)
    assert ((folder / "other").read_text(), (folder / "f").read_text()) == ("old", "new")


def test_the_owner_stays(folder: Path, folder_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "f").write_text("old")
    before, given_to = (folder / "f").stat(), []
    monkeypatch.setattr(os, "fchown", lambda _, user, group: given_to.append((user, group)))
    replace_by_handle(folder_fd, "f", b"new", mode=0o644)
    assert given_to == [(before.st_uid, before.st_gid)]


@pytest.mark.parametrize("name", ["ä" * 127, "x" * 255])
def test_the_longest_names_work(folder: Path, folder_fd: int, name: str) -> None:
    replace_by_handle(folder_fd, name, b"x", mode=None)
    assert os.listdir(folder) == [name]


def test_exclusive_does_not_touch_what_is_there(folder: Path, folder_fd: int) -> None:
    (folder / "f").write_text("old")
    with pytest.raises(FileExistsError):
        replace_by_handle(folder_fd, "f", b"new", mode=None, exclusive=True)
    assert ((folder / "f").read_text(), os.listdir(folder)) == ("old", ["f"])


@pytest.mark.parametrize("occupied", [False, True])
def test_exclusive_works_on_a_file_system_without_hard_links(
    folder: Path, folder_fd: int, monkeypatch: pytest.MonkeyPatch, occupied: bool
) -> None:
    if occupied:
        (folder / "f").write_text("old")
    monkeypatch.setattr(os, "link", _failing(os.link, errno.EPERM, 1))
    if occupied:
        with pytest.raises(FileExistsError):
            replace_by_handle(folder_fd, "f", b"new", mode=None, exclusive=True)
    else:
        replace_by_handle(folder_fd, "f", b"new", mode=None, exclusive=True)
    assert ((folder / "f").read_text(), os.listdir(folder)) == ("old" if occupied else "new", ["f"])


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


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize(
    ("function", "nth"), [("open", 1), ("write", 1), ("write", 2), ("fchmod", 1), ("fsync", 1), ("rename", 1)]
)
def test_a_failure_anywhere_leaves_the_old_file_and_nothing_else(
    folder: Path, folder_fd: int, monkeypatch: pytest.MonkeyPatch, function: str, nth: int, number: int
) -> None:
    (folder / "f").write_text("old")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))  # writes come in pieces
    monkeypatch.setattr(os, function, _failing(getattr(os, function), number, nth))
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        replace_by_handle(folder_fd, "f", b"new bytes", mode=0o644)
    monkeypatch.undo()
    assert caught.value.errno == number
    assert ((folder / "f").read_text(), os.listdir(folder)) == ("old", ["f"])


def test_an_interrupt_leaves_the_old_file_and_nothing_else(
    folder: Path, folder_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    (folder / "f").write_text("old")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        replace_by_handle(folder_fd, "f", b"new", mode=0o644)
    assert ((folder / "f").read_text(), os.listdir(folder)) == ("old", ["f"])


def test_once_renamed_a_failing_directory_sync_is_no_failure(
    folder: Path, folder_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", _failing(os.fsync, errno.EIO, 2))
    replace_by_handle(folder_fd, "f", b"new", mode=None)
    assert (folder / "f").read_text() == "new"


def test_the_temporary_name_is_hidden_and_recognisable(
    folder: Path, folder_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(os.listdir(folder)))
    replace_by_handle(folder_fd, "f", b"new", mode=None)
    (name,) = seen[0]
    assert (name.startswith(".f."), name.endswith(TEMPORARY_SUFFIX)) == (True, True)


@given(data=st.binary(max_size=5_000), old=st.none() | st.binary(max_size=100))
def test_any_bytes_come_back(tmp_path_factory: pytest.TempPathFactory, data: bytes, old: bytes | None) -> None:
    folder = tmp_path_factory.mktemp("f")
    if old is not None:
        (folder / "f").write_bytes(old)
    with closing(os.open(folder, os.O_RDONLY | os.O_DIRECTORY)) as descriptor:
        replace_by_handle(descriptor, "f", data, mode=None if old is None else 0o644)
    assert ((folder / "f").read_bytes(), os.listdir(folder)) == (data, ["f"])


def _attributes(path: Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path)}


@pytest.fixture
def labelled(folder: Path) -> Path:
    """A file with an attribute of the user's own."""
    path = folder / "f"
    path.write_text("old")
    try:
        os.setxattr(path, "user.label", b"mine")
    except (AttributeError, OSError):
        pytest.skip("no extended attributes here")
    return path


def _access_list(user: int) -> bytes:
    """rw for the owner and for `user`, nothing for others. Source: linux/posix_acl_xattr.h."""
    entries = [(0x01, 6, -1), (0x02, 6, user), (0x04, 0, -1), (0x10, 6, -1), (0x20, 0, -1)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


def test_extended_attributes_stay(labelled: Path, folder_fd: int) -> None:
    replace_by_handle(folder_fd, "f", b"new", mode=0o640)
    assert (_attributes(labelled), labelled.read_bytes()) == ({"user.label": b"mine"}, b"new")
    assert stat.S_IMODE(labelled.stat().st_mode) == 0o640


def test_an_access_list_stays_and_one_of_the_directory_does_not_come_instead(
    labelled: Path, folder: Path, folder_fd: int
) -> None:
    try:
        os.setxattr(labelled, "system.posix_acl_access", _access_list(4321))
    except OSError:
        pytest.skip("no access lists here")
    before = (_attributes(labelled), labelled.stat().st_mode)
    replace_by_handle(folder_fd, "f", b"new", mode=stat.S_IMODE(labelled.stat().st_mode))
    assert (_attributes(labelled), labelled.stat().st_mode) == before
    os.removexattr(labelled, "system.posix_acl_access")
    labelled.chmod(0o600)
    os.setxattr(folder, "system.posix_acl_default", _access_list(4321))
    replace_by_handle(folder_fd, "f", b"newer", mode=0o600)
    assert (_attributes(labelled), stat.S_IMODE(labelled.stat().st_mode)) == ({"user.label": b"mine"}, 0o600)


@pytest.mark.usefixtures("labelled")
def test_capabilities_of_the_old_program_are_not_given_to_the_new_one(
    folder_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_names: list[str] = []
    names = ["security.capability", "security.ima", "security.selinux", "user.label"]
    monkeypatch.setattr(os, "listxattr", lambda _: names)
    monkeypatch.setattr(os, "getxattr", lambda _, name: name.encode())
    monkeypatch.setattr(os, "setxattr", lambda _, name, __: given_names.append(name))
    replace_by_handle(folder_fd, "f", b"new", mode=0o755)
    assert given_names == ["security.selinux", "user.label"]


@pytest.mark.parametrize("function", ["listxattr", "getxattr", "setxattr"])
def test_attributes_that_cannot_be_kept_are_no_failure(
    labelled: Path, folder_fd: int, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    monkeypatch.setattr(os, function, _failing(getattr(os, function), errno.EOPNOTSUPP, 1))
    replace_by_handle(folder_fd, "f", b"new", mode=0o644)
    monkeypatch.undo()
    assert (labelled.read_bytes(), _attributes(labelled)) == (b"new", {})
