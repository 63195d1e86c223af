import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from mendgraph.nodes.workspace.files.atomic_write import OpenFolders, name_exclusively, sync_folder, write_temporary
from mendgraph.nodes.workspace.files.handles import closing
from tests.doubles.system_calls import failing, replaced
from tests.workspace.files.layout import build


@pytest.fixture
def folder_fd(tmp_path: Path) -> Iterator[int]:
    with closing(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)) as descriptor:
        before = len(os.listdir("/dev/fd"))
        yield descriptor
        assert len(os.listdir("/dev/fd")) == before, "a handle was left open"


def test_bytes_mode_and_owner_are_exact(tmp_path: Path, folder_fd: int) -> None:
    data = b"\xef\xbb\xbfa\r\nb\x00\xff no newline"
    (tmp_path / "f").write_bytes(b"old")
    owner = ((tmp_path / "f").stat().st_uid, (tmp_path / "f").stat().st_gid)
    for mode, expected in ((0o600, 0o600), (0o755, 0o755), (0o444, 0o444), (0o7751, 0o1751)):
        for like in (None, (folder_fd, "f")):
            given_to: list[tuple[int, int]] = []
            with replaced(fchown=lambda _, user, group, given_to=given_to: given_to.append((user, group))):
                status = write_temporary(folder_fd, "t", data, mode=mode, like=like)
            assert status == (tmp_path / "t").stat()
            assert ((tmp_path / "t").read_bytes(), stat.S_IMODE(status.st_mode)) == (data, expected)
            assert given_to == ([] if like is None else [owner])
            assert ((tmp_path / "f").read_bytes(), sorted(os.listdir(tmp_path))) == (b"old", ["f", "t"])
            (tmp_path / "t").unlink()


def test_file_is_never_overwritten_without_hard_links(tmp_path: Path, folder_fd: int) -> None:
    (tmp_path / "t").write_text("new")
    with failing("link", number=errno.EPERM):
        name_exclusively(folder_fd, "t", "f")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"f": "new"}

    (tmp_path / "t").write_text("newer")
    with failing("link", number=errno.EMLINK), pytest.raises(FileExistsError):
        name_exclusively(folder_fd, "t", "f")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"f": "new", "t": "newer"}


def test_failed_fsync_is_reported_if_supported(folder_fd: int) -> None:
    for number in (errno.EIO, errno.ENOSPC):
        with failing("fsync", number=number), pytest.raises(OSError, match=os.strerror(number)):
            sync_folder(folder_fd)
    with failing("fsync", number=errno.EINVAL):
        sync_folder(folder_fd)


def test_link_in_place_of_a_created_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    root = build(tmp_path / "tree")
    (tmp_path / "tree" / "outside" / "empty").mkdir()
    with OpenFolders(str(root)) as folders:
        folders.remove_created(["out", "out/empty"])
    assert ((tmp_path / "tree" / "outside" / "empty").is_dir(), (root / "out").is_symlink()) == (True, True)
