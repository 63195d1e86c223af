import errno
import fcntl
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.files.atomic_write import (
    PERMISSION_BITS,
    TEMPORARY_SUFFIX,
    OpenFolders,
    RenameStep,
    Role,
    commit,
    identity_at,
    name_exclusively,
    sync_folder,
    temporary_name,
    undo,
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


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o755, 0o777, 0o444, 0o000])
@pytest.mark.parametrize("like", [False, True])
def test_bytes_and_mode_are_exact(folder: Path, folder_fd: int, mode: int, like: bool) -> None:
    data = b"\xef\xbb\xbfa\r\nb\x00\xff no newline"
    (folder / "f").write_bytes(b"old")
    found = write_temporary(folder_fd, "t", data, mode=mode, like=(folder_fd, "f") if like else None)
    assert found == (folder / "t").stat()
    assert ((folder / "t").read_bytes(), stat.S_IMODE(found.st_mode)) == (data, mode)
    assert ((folder / "f").read_bytes(), sorted(os.listdir(folder))) == (b"old", ["f", "t"])


def test_set_user_id_does_not_survive_a_change(folder_fd: int) -> None:
    assert stat.S_IMODE(make(folder_fd, b"x", 0o6755).st_mode) == 0o755 == 0o6755 & PERMISSION_BITS


def test_nobody_reads_the_new_file_before_it_has_its_mode(
    folder: Path, folder_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    fchmod = os.fchmod

    def look(descriptor: int, mode: int) -> None:
        seen.append(stat.S_IMODE((folder / "t").stat().st_mode))
        fchmod(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", look)
    make(folder_fd, b"x")
    assert seen == [0o600]


@pytest.mark.parametrize("like", [False, True])
def test_the_owner_is_that_of_the_other_file(
    folder: Path, folder_fd: int, monkeypatch: pytest.MonkeyPatch, like: bool
) -> None:
    (folder / "f").write_text("old")
    before, given_to = (folder / "f").stat(), []
    monkeypatch.setattr(os, "fchown", lambda _, user, group: given_to.append((user, group)))
    write_temporary(folder_fd, "t", b"new", mode=0o644, like=(folder_fd, "f") if like else None)
    assert given_to == ([(before.st_uid, before.st_gid)] if like else [])


# --- Names


@pytest.mark.parametrize("name", ["a", "ä" * 127, "x" * 255, ".env", "日本語" * 20])
def test_a_temporary_name_is_hidden_recognisable_and_not_too_long(name: str) -> None:
    found = temporary_name(f"d/{name}", "0123456789abcdef", 199, Role.KEPT)
    stem = found.removeprefix(".").removesuffix(f".0123456789abcdef0199k{TEMPORARY_SUFFIX}")
    assert (name.startswith(stem), len(stem) > 0, len(os.fsencode(found)) <= 255) == (True, True, True)


@pytest.mark.parametrize("occupied", [False, True])
@pytest.mark.parametrize("number", [errno.EPERM, errno.EMLINK])
def test_a_file_is_named_also_on_a_file_system_without_hard_links(
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


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize(("function", "nth"), [("open", 1), ("write", 1), ("write", 2), ("fchmod", 1), ("fsync", 1)])
def test_a_failure_anywhere_leaves_no_new_file(
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


# --- Extended attributes


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


def test_extended_attributes_are_those_of_the_other_file(labelled: Path, folder: Path, folder_fd: int) -> None:
    make(folder_fd, b"new", 0o640)
    assert (_attributes(folder / "t"), (folder / "t").read_bytes()) == ({"user.label": b"mine"}, b"new")
    assert (stat.S_IMODE((folder / "t").stat().st_mode), _attributes(labelled)) == (0o640, {"user.label": b"mine"})


def test_an_access_list_stays_and_one_of_the_directory_does_not_come_instead(
    labelled: Path, folder: Path, folder_fd: int
) -> None:
    try:
        os.setxattr(labelled, "system.posix_acl_access", _access_list(4321))
    except OSError:
        pytest.skip("no access lists here")
    before = labelled.stat().st_mode
    assert make(folder_fd, b"new", stat.S_IMODE(before)).st_mode == before
    assert _attributes(folder / "t") == _attributes(labelled)
    (folder / "t").unlink()
    os.removexattr(labelled, "system.posix_acl_access")
    os.setxattr(folder, "system.posix_acl_default", _access_list(4321))
    assert stat.S_IMODE(make(folder_fd, b"newer", 0o600).st_mode) == 0o600
    assert _attributes(folder / "t") == {"user.label": b"mine"}


@pytest.mark.usefixtures("labelled")
def test_capabilities_of_the_old_program_are_not_given_to_the_new_one(
    folder_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_names: list[str] = []
    names = ["security.capability", "security.ima", "security.selinux", "user.label"]
    monkeypatch.setattr(os, "listxattr", lambda _: names)
    monkeypatch.setattr(os, "getxattr", lambda _, name: name.encode())
    monkeypatch.setattr(os, "setxattr", lambda _, name, __: given_names.append(name))
    make(folder_fd, b"new", 0o755)
    assert given_names == ["security.selinux", "user.label"]


@pytest.mark.usefixtures("labelled")
@pytest.mark.parametrize("function", ["listxattr", "getxattr", "setxattr"])
def test_attributes_that_cannot_be_kept_are_no_failure(
    folder: Path, folder_fd: int, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    monkeypatch.setattr(os, function, _failing(getattr(os, function), errno.EOPNOTSUPP, 1))
    make(folder_fd, b"new")
    monkeypatch.undo()
    assert ((folder / "t").read_bytes(), _attributes(folder / "t")) == (b"new", {})


@pytest.fixture
def step_folder(tmp_path: Path) -> Path:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "new.tmp").write_bytes(b"new")
    return tmp_path


@pytest.fixture
def step_folder_fd(step_folder: Path) -> Iterator[int]:
    with closing(os.open(step_folder, os.O_RDONLY | os.O_DIRECTORY)) as descriptor:
        yield descriptor


def files(step_folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in step_folder.iterdir()}


def step_of(kind: str, step_folder: Path, descriptor: int) -> RenameStep:
    """A file that comes, one that is replaced, one that goes."""
    if kind == "arrival":
        return RenameStep(descriptor, "name", None, identity_at(descriptor, "new.tmp"), "new.tmp")
    old = identity_at(descriptor, "old")
    if kind == "departure":
        return RenameStep(descriptor, "old", old, None, kept="old.tmp")
    os.link(step_folder / "old", step_folder / "old.tmp")
    return RenameStep(descriptor, "old", old, identity_at(descriptor, "new.tmp"), "new.tmp", "old.tmp")


def without_temporaries(found: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in found.items() if not name.endswith(".tmp")}


def test_a_file_that_is_swapped_while_it_goes_comes_back(
    step_folder: Path, step_folder_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, rename = step_of("departure", step_folder, step_folder_fd), os.rename

    def swap(*args: object, **named: object) -> None:
        monkeypatch.undo()
        (step_folder / "theirs").write_bytes(b"theirs")
        rename(step_folder / "theirs", step_folder / "old")
        rename(*args, **named)  # type: ignore[arg-type] # whatever the code gives

    monkeypatch.setattr(os, "rename", swap)
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        commit(step)
    undo(step)
    assert without_temporaries(files(step_folder)) == {"old": b"theirs"}


@pytest.fixture
def folders(root: Path) -> Iterator[OpenFolders]:
    with OpenFolders(str(root)) as opened:
        yield opened


def test_the_real_name_follows_a_folder_that_is_moved(root: Path, folders: OpenFolders) -> None:
    folder = folders.open(("src",))
    assert (folders.real_name(folder, "b.py"), folders.real_name(folders.root, "a.py")) == ("src/b.py", "a.py")
    (root / "deep").mkdir()
    os.rename(root / "src", root / "deep" / "er")
    assert folders.real_name(folder, "x", "y") == "deep/er/x/y"
    os.rename(root / "deep" / "er", root.parent / "away")
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        folders.real_name(folder, "b.py")


@pytest.mark.parametrize(("number", "told"), [(errno.EIO, True), (errno.ENOSPC, True), (errno.EINVAL, False)])
def test_a_sync_that_fails_is_told_where_the_system_knows_it(
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


def test_a_link_in_place_of_a_folder_is_not_followed_when_it_is_removed(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    root = build(tmp_path / "tree")
    (tmp_path / "tree" / "outside" / "empty").mkdir()
    with OpenFolders(str(root)) as folders:
        folders.remove_made(["out", "out/empty"])
    assert ((tmp_path / "tree" / "outside" / "empty").is_dir(), (root / "out").is_symlink()) == (True, True)
