"""The name of a workspace in a shared store: given once, kept with its records."""

import os
import stat
import threading
from pathlib import Path

import pytest

from nodes.execute_tools.environment.database import StoreError
from nodes.execute_tools.environment.shared_name import give_shared_name, known_shared_name, shared_name
from nodes.records import ToolError, ToolErrorCode


def refusal(found: ToolError | None) -> ToolError:
    assert found is not None
    return found


def test_a_workspace_gets_a_random_name_and_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert known_shared_name(str(tmp_path)) is None
    name = shared_name(str(tmp_path))
    assert (len(name), shared_name(str(tmp_path)), known_shared_name(str(tmp_path))) == (32, name, name)
    assert shared_name(str(tmp_path / "other")) != name
    assert {path.name for path in tmp_path.iterdir()} == {"shared_name", "other"}
    assert stat.S_IMODE((tmp_path / "shared_name").stat().st_mode) == 0o600


def test_a_name_may_be_given_once_and_said_again(tmp_path: Path) -> None:
    assert give_shared_name(str(tmp_path), "batch/b1/task-1") is None
    assert give_shared_name(str(tmp_path), "batch/b1/task-1") is None
    assert shared_name(str(tmp_path)) == "batch/b1/task-1"
    assert refusal(give_shared_name(str(tmp_path), "batch/b2")).code is ToolErrorCode.CONFLICT
    assert known_shared_name(str(tmp_path)) == "batch/b1/task-1"


@pytest.mark.parametrize("name", ["", "/a", "a b", "a:b", "a\n", "é", "a'b", "x" * 201, "-a", "a\0"])
def test_a_name_is_made_of_harmless_signs(tmp_path: Path, name: str) -> None:
    assert refusal(give_shared_name(str(tmp_path), name)).code is ToolErrorCode.INVALID_ARGUMENT
    assert os.listdir(tmp_path) == []


def test_all_who_ask_at_once_get_one_name(tmp_path: Path) -> None:
    barrier, names = threading.Barrier(8), list[str]()

    def ask() -> None:
        barrier.wait()
        names.append(shared_name(str(tmp_path)))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(names), len(set(names)), os.listdir(tmp_path)) == (8, 1, ["shared_name"])


def test_a_file_that_holds_no_name_is_told_and_stays(tmp_path: Path) -> None:
    (tmp_path / "shared_name").write_bytes(b"two\nlines\xff")
    with pytest.raises(StoreError, match="holds no name of a workspace"):
        shared_name(str(tmp_path))
    assert known_shared_name(str(tmp_path)) is None
    assert refusal(give_shared_name(str(tmp_path), "a")).code is ToolErrorCode.IO_ERROR
    assert (tmp_path / "shared_name").read_bytes() == b"two\nlines\xff"


@pytest.mark.parametrize("link", ["/etc/hostname", "."])
def test_a_link_in_its_place_is_not_followed(tmp_path: Path, link: str) -> None:
    (tmp_path / "shared_name").symlink_to(link)
    with pytest.raises(StoreError, match="Cannot read"):
        shared_name(str(tmp_path))


def test_a_disk_that_is_full_is_told_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="the disk is full"):
        shared_name(str(tmp_path))
    assert os.listdir(tmp_path) == []
