import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes.execute_tools.environment.open_folders import OpenFolders, sync_folder
from tests.nodes.execute_tools.environment.back_ends import BACK_ENDS, use
from tests.nodes.execute_tools.environment.layout import build


@pytest.fixture(params=BACK_ENDS)
def folders(root: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenFolders]:
    use(request.param, monkeypatch)
    with OpenFolders(str(root)) as opened:
        yield opened


def inode(descriptor: int) -> int:
    return os.fstat(descriptor).st_ino


def test_a_folder_is_opened_once_and_closed_at_the_end(root: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    with OpenFolders(str(root)) as folders:
        first = folders.open(("src",))
        assert (folders.open(("src",)), inode(first)) == (first, (root / "src").stat().st_ino)
        assert (folders.open(()), inode(folders.root)) == (folders.root, root.stat().st_ino)
        assert len(os.listdir("/dev/fd")) == before + 2
    assert len(os.listdir("/dev/fd")) == before


def test_a_root_that_is_not_there_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OpenFolders(str(tmp_path / "nothing"))


def test_missing_folders_are_made_and_told(root: Path, folders: OpenFolders) -> None:
    made: list[str] = []
    assert inode(folders.open(("src", "x", "y"), made=made)) == (root / "src" / "x" / "y").stat().st_ino
    assert made == ["src/x", "src/x/y"]
    folders.open(("src", "x"), made=made)
    assert made == ["src/x", "src/x/y"]


@pytest.mark.parametrize(
    ("parts", "number"), [(("no",), errno.ENOENT), (("a.py",), errno.ENOTDIR), (("out",), errno.ESTALE)]
)
def test_what_is_no_folder_is_not_opened(folders: OpenFolders, parts: tuple[str, ...], number: int) -> None:
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        folders.open(parts)
    assert caught.value.errno == number


@pytest.mark.parametrize(
    ("parts", "name", "length"),
    [((), "", 0), (("src",), "src", 1), (("src", "x", "y"), "src", 1), (("x", "y"), "", 0)],
)
def test_the_innermost_folder_that_is_there(
    root: Path, folders: OpenFolders, parts: tuple[str, ...], name: str, length: int
) -> None:
    folder, found = folders.deepest(parts)
    assert (inode(folder), found) == ((root / name).stat().st_ino, length)


@pytest.mark.parametrize(("parts", "number"), [(("a.py", "x"), errno.ENOTDIR), (("out", "x"), errno.ESTALE)])
def test_no_folder_is_looked_for_beyond_what_is_none(folders: OpenFolders, parts: tuple[str, ...], number: int) -> None:
    with pytest.raises(OSError, match=os.strerror(number)):
        folders.deepest(parts)


def test_the_real_name_follows_a_folder_that_is_moved(root: Path, folders: OpenFolders) -> None:
    folder = folders.open(("src",))
    assert (folders.real_name(folder, "b.py"), folders.real_name(folders.root, "a.py")) == ("src/b.py", "a.py")
    (root / "deep").mkdir()
    os.rename(root / "src", root / "deep" / "er")
    assert folders.real_name(folder, "x", "y") == "deep/er/x/y"
    os.rename(root / "deep" / "er", root.parent / "away")
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        folders.real_name(folder, "b.py")


def test_where_the_kernel_tells_no_names_there_is_none(folders: OpenFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.execute_tools.environment.open_folders.handle_name", lambda _: None)
    assert folders.real_name(folders.root, "a.py") is None


def test_all_opened_folders_and_those_above_new_ones_are_synced(
    root: Path, folders: OpenFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    made: list[str] = []
    folders.open(("x", "y"), made=made)
    folders.open(("src",))
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(inode(descriptor)))
    folders.sync(made)
    assert sorted(synced) == sorted((root / name).stat().st_ino for name in ("", "x", "x/y", "src"))


def test_a_folder_that_is_something_else_by_now_is_not_synced(folders: OpenFolders) -> None:
    folders.sync(["gone/x", "a.py/x", "out/x"])
    before = len(os.listdir("/dev/fd"))
    folders.sync([f"{name}/x" for name in ("src", ".git")])
    assert len(os.listdir("/dev/fd")) == before


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


def test_folders_made_for_nothing_go_unless_they_are_in_use(root: Path, folders: OpenFolders) -> None:
    made: list[str] = []
    folders.open(("x", "y", "z"), made=made)
    (root / "x" / "theirs").write_bytes(b"")
    folders.remove_made([*made, "src", "gone/too"])
    assert sorted(os.listdir(root / "x")) == ["theirs"]
    assert (root / "src" / "b.py").exists()


def test_a_link_in_place_of_a_folder_is_not_followed_when_it_is_removed(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    root = build(tmp_path / "tree")
    (tmp_path / "tree" / "outside" / "empty").mkdir()
    with OpenFolders(str(root)) as folders:
        folders.remove_made(["out", "out/empty"])
    assert ((tmp_path / "tree" / "outside" / "empty").is_dir(), (root / "out").is_symlink()) == (True, True)
