"""The history of requests in chats: private, of limited size, and never an obstacle."""

import stat
from pathlib import Path

import pytest

from mendgraph.nodes.workspace.store.run_folder import workspace_folder_path
from mendgraph.nodes.workspace.store.user_files import (
    LONGEST_REQUEST,
    MOST_BYTES,
    MOST_REQUESTS,
    REQUESTS_FILE,
    RequestHistory,
)


def history_path(root: Path, base: Path) -> Path:
    return Path(workspace_folder_path(str(root), str(base))) / REQUESTS_FILE


@pytest.fixture
def history(tmp_path: Path) -> RequestHistory:
    return RequestHistory(str(tmp_path), str(tmp_path / "data"))


def test_next_chat_has_the_requests_of_the_previous_one(tmp_path: Path, history: RequestHistory) -> None:
    assert history.load() == []
    for request in ("one", "two\nlines", "ümläut \ud83d"):
        history.add(request)
    assert RequestHistory(str(tmp_path), str(tmp_path / "data")).load() == ["one", "two\nlines", "ümläut \ufffd"]
    assert RequestHistory(str(tmp_path / "data"), str(tmp_path / "data")).load() == []
    assert history.problem == ""


def test_history_file_has_a_maximum_size(tmp_path: Path, history: RequestHistory) -> None:
    history.add("first")
    path = history_path(tmp_path, tmp_path / "data")
    path.write_bytes(b'"' + b"x" * 999_995 + b'"\n')
    history.add("last")
    assert history.load() == ["last"]
    assert path.stat().st_size <= MOST_BYTES
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b'"x"\n' * (MOST_REQUESTS + 5))
    assert len(history.load()) == MOST_REQUESTS


def test_newest_requests_are_kept_in_a_private_file(tmp_path: Path, history: RequestHistory) -> None:
    history.add("x" * 20_000)
    history.add("y" * 20_001)
    assert history.load() == ["x" * 20_000]

    path = history_path(tmp_path, tmp_path / "data")
    path.write_bytes(b"".join(b'"%d"\n' % number for number in range(1_005)))
    path.chmod(0o644)
    assert history.load() == [str(number) for number in range(5, 1_005)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_line_that_is_not_a_request_is_skipped(tmp_path: Path, history: RequestHistory) -> None:
    history.add("one")
    with history_path(tmp_path, tmp_path / "data").open("ab") as file:
        file.write(b'{"not": "a request"}\n"cut off\n\xff\n\n"two"\n')
    history.add("x" * (LONGEST_REQUEST + 1))
    assert history.load() == ["one", "two"]


def test_history_that_cannot_be_stored_is_reported_with_the_reason(tmp_path: Path, history: RequestHistory) -> None:
    history.add("one")
    path = history_path(tmp_path, tmp_path / "data")
    path.unlink()
    path.mkdir()
    assert history.load() == []
    history.add("two")
    assert history.problem == f"Cannot read {str(path)!r}: it is a directory, and a file is needed."
    path.rmdir()
    path.symlink_to(tmp_path / "elsewhere")
    other = RequestHistory(str(tmp_path), str(tmp_path / "data"))
    other.add("two")
    assert (other.problem, other.load(), (tmp_path / "elsewhere").exists()) == ("", ["two"], False)
    (tmp_path / "file").touch()
    nowhere = RequestHistory(str(tmp_path), str(tmp_path / "file"))
    assert (nowhere.load(), nowhere.problem != "") == ([], True)
