import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes.execute_tools.environment.handles import closing
from nodes.execute_tools.environment.name_steps import NameStep, commit, identity, identity_at, undo


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "new.tmp").write_bytes(b"new")
    return tmp_path


@pytest.fixture
def folder_fd(folder: Path) -> Iterator[int]:
    with closing(os.open(folder, os.O_RDONLY | os.O_DIRECTORY)) as descriptor:
        yield descriptor


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def step_of(kind: str, folder: Path, descriptor: int) -> NameStep:
    """A file that comes, one that is replaced, one that goes."""
    if kind == "arrival":
        return NameStep(descriptor, "name", None, identity_at(descriptor, "new.tmp"), "new.tmp")
    old = identity_at(descriptor, "old")
    if kind == "departure":
        return NameStep(descriptor, "old", old, None, kept="old.tmp")
    os.link(folder / "old", folder / "old.tmp")
    return NameStep(descriptor, "old", old, identity_at(descriptor, "new.tmp"), "new.tmp", "old.tmp")


AFTER = {
    "arrival": {"old": b"old", "name": b"new"},
    "replacement": {"old": b"new", "old.tmp": b"old"},
    "departure": {"old.tmp": b"old", "new.tmp": b"new"},
}
KINDS = tuple(AFTER)


def without_temporaries(found: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in found.items() if not name.endswith(".tmp")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_taken_and_taken_back(folder: Path, folder_fd: int, kind: str) -> None:
    step = step_of(kind, folder, folder_fd)
    inode = (folder / "old").stat().st_ino
    commit(step)
    assert files(folder) == AFTER[kind]
    undo(step)
    assert without_temporaries(files(folder)) == {"old": b"old"}
    assert (folder / "old").stat().st_ino == inode


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_was_not_taken_is_nothing_to_take_back(folder: Path, folder_fd: int, kind: str) -> None:
    step = step_of(kind, folder, folder_fd)
    before = files(folder)
    undo(step)
    assert files(folder) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_means_another_file_by_now_is_left_alone(folder: Path, folder_fd: int, kind: str) -> None:
    step = step_of(kind, folder, folder_fd)
    (folder / "theirs").write_bytes(b"theirs")
    os.rename(folder / "theirs", folder / step.name)
    before = files(folder)
    with pytest.raises(OSError, match=f"{os.strerror(errno.ESTALE)}|{os.strerror(errno.EEXIST)}") as caught:
        commit(step)
    assert caught.value.errno == (errno.EEXIST if kind == "arrival" else errno.ESTALE)
    undo(step)
    assert files(folder) == before


def test_a_file_that_vanished_is_not_replaced(folder: Path, folder_fd: int) -> None:
    step = step_of("replacement", folder, folder_fd)
    (folder / "old").unlink()
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        commit(step)
    assert files(folder) == {"new.tmp": b"new", "old.tmp": b"old"}


@pytest.mark.parametrize("kind", ["arrival", "replacement"])
def test_what_another_program_put_there_afterwards_is_not_taken_back(folder: Path, folder_fd: int, kind: str) -> None:
    step = step_of(kind, folder, folder_fd)
    commit(step)
    (folder / "theirs").write_bytes(b"theirs")
    os.rename(folder / "theirs", folder / step.name)
    undo(step)
    assert files(folder)[step.name] == b"theirs"


def test_a_file_that_went_away_does_not_overwrite_what_came_in_its_place(folder: Path, folder_fd: int) -> None:
    step = step_of("departure", folder, folder_fd)
    commit(step)
    (folder / "old").write_bytes(b"theirs")
    with pytest.raises(FileExistsError):
        undo(step)
    assert files(folder) == {"old": b"theirs", "old.tmp": b"old", "new.tmp": b"new"}


def test_a_file_that_is_swapped_while_it_goes_comes_back(
    folder: Path, folder_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, rename = step_of("departure", folder, folder_fd), os.rename

    def swap(*args: object, **named: object) -> None:
        monkeypatch.undo()
        (folder / "theirs").write_bytes(b"theirs")
        rename(folder / "theirs", folder / "old")
        rename(*args, **named)  # type: ignore[arg-type] # whatever the code gives

    monkeypatch.setattr(os, "rename", swap)
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        commit(step)
    undo(step)
    assert without_temporaries(files(folder)) == {"old": b"theirs"}


def test_a_link_is_a_file_of_its_own(folder: Path, folder_fd: int) -> None:
    (folder / "link").symlink_to("old")
    assert identity_at(folder_fd, "link") == identity((folder / "link").lstat())
    assert identity_at(folder_fd, "link") != identity_at(folder_fd, "old")
    assert identity_at(folder_fd, "nothing") is None
