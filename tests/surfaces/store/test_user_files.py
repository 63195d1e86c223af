"""Files of the user: settings of a workspace, and the hash by which they are trusted."""

import os
import stat
from io import BytesIO
from pathlib import Path

import pytest

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.store.run_folder import spending_folder, workspace_folder_path
from mendgraph.nodes.workspace.store.user_files import (
    LONGEST_LINE,
    MOST_BYTES,
    MOST_SETTINGS_BYTES,
    SETTINGS_FILE,
    configuration_file,
    exchange,
    hash_of,
    lines_of,
    read_settings_file,
    read_user_file,
    trust,
    trusted_hash,
    write_whole,
)
from tests.doubles.system_calls import failing, noted
from tests.extent import slow

pytestmark = pytest.mark.usefixtures("no_open_handles")


def test_spending_folder_is_private_and_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new" / "data"
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(folder))
    assert spending_folder() == str(folder / "spending")
    assert stat.S_IMODE((folder / "spending").stat().st_mode) == 0o700


# --- Reading


UNREADABLE = {
    "none": (ToolErrorCode.NOT_FOUND, "there is no such file or directory"),
    "folder": (ToolErrorCode.INVALID_ARGUMENT, "it is a directory, and a file is needed"),
    "pipe": (ToolErrorCode.INVALID_ARGUMENT, "it is not a regular file (a pipe, socket or device)"),
    "large": (ToolErrorCode.INVALID_ARGUMENT, "it has more than 1,000,000 bytes"),
    "latin": (ToolErrorCode.INVALID_ARGUMENT, "it is not UTF-8 text (byte 1)"),
}


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * (MOST_BYTES + 1))
    (tmp_path / "latin").write_bytes(b"a\xe4b")
    for name, (code, reason) in UNREADABLE.items():
        path = str(tmp_path / name)
        assert read_user_file(path) == ToolError(code=code, message=f"Cannot read {path!r}: {reason}.")


def test_byte_order_mark_is_not_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert read_user_file(str(tmp_path / "file")) == "a = 1\n"


def test_file_is_replaced_atomically_and_synced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with noted("fsync", "replace") as calls:
        write_whole(str(path), b"new")

    assert path.read_bytes() == b"new"
    assert [name for name, _ in calls] == ["fsync", "replace", "fsync"]
    assert calls[-1] == ("fsync", str(tmp_path))
    assert os.listdir(tmp_path) == ["file"]


@slow
def test_line_that_is_too_long_is_an_error() -> None:
    lines = lines_of(BytesIO(b"12\n" + b"x" * LONGEST_LINE + b"\n"), "tasks")
    assert next(lines) == b"12\n"
    with pytest.raises(OSError, match=f"a line of tasks has more than {LONGEST_LINE:,} bytes"):
        next(lines)


HASH, OTHER = hash_of(b"a"), hash_of(b"b")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "root").mkdir()
    return str(tmp_path / "root")


def test_file_is_read_completely_up_to_its_maximum_size(root: str) -> None:
    path = Path(root, SETTINGS_FILE)
    assert read_settings_file(root) is None
    path.write_bytes(b"a" * MOST_SETTINGS_BYTES)
    assert read_settings_file(root) == b"a" * MOST_SETTINGS_BYTES
    path.write_bytes(b"a" * (MOST_SETTINGS_BYTES + 1))
    error = read_settings_file(root)
    assert isinstance(error, ToolError)
    assert error.code is ToolErrorCode.INVALID_ARGUMENT


def test_file_that_cannot_be_changed_or_written_is_unchanged(tmp_path: Path) -> None:
    path, refusal = tmp_path / "notes", ToolError(code=ToolErrorCode.CONFLICT, message="It is full.")
    assert exchange(str(path), lambda old: old + b"a") is None
    assert exchange(str(path), lambda _: refusal) == refusal
    with failing("replace"):
        assert isinstance(exchange(str(path), lambda _: b"b"), ToolError)
    assert (path.read_bytes(), sorted(os.listdir(tmp_path))) == (b"a", ["notes", "notes.lock"])
    (tmp_path / "folder").mkdir()
    assert isinstance(exchange(str(tmp_path / "folder"), lambda _: b"b"), ToolError)


def test_settings_are_not_read_through_a_link(root: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("a = 1\n")
    Path(root, SETTINGS_FILE).symlink_to(tmp_path / "other")
    message = "Cannot read '.mendgraph.toml': it is a symbolic link, and none is followed."
    assert read_settings_file(root) == ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def test_trust_file_is_private(root: str) -> None:
    old = os.umask(0)
    try:
        trust(root, HASH)
    finally:
        os.umask(old)
    mark = Path(workspace_folder_path(root), "trusted-settings")
    assert stat.S_IMODE(mark.stat().st_mode) == 0o600


def test_only_the_last_trusted_hash_is_known_until_it_is_removed(root: str) -> None:
    assert trusted_hash(root) == ""
    for sha256 in (HASH, OTHER, ""):
        assert trust(root, sha256) is None
        assert trusted_hash(root) == sha256
    assert trust(root, "") is None


def test_damaged_trust_file_trusts_nothing(root: str) -> None:
    trust(root, HASH)
    for text in ("", "x", HASH[:-1], f"{HASH}\n{OTHER}"):
        Path(workspace_folder_path(root), "trusted-settings").write_text(text)
        assert trusted_hash(root) == ""


def test_link_in_place_of_the_trust_file_is_not_written_through(root: str, tmp_path: Path) -> None:
    trust(root, HASH)
    mark, victim = Path(workspace_folder_path(root), "trusted-settings"), tmp_path / "victim"
    victim.write_text("mine")
    mark.unlink()
    mark.symlink_to(victim)
    assert isinstance(trust(root, HASH), ToolError)
    assert victim.read_text() == "mine"


def test_missing_home_directory_is_reported_and_nothing_is_trusted(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(name: str, appauthor: bool) -> str:
        raise RuntimeError(name, appauthor)

    monkeypatch.delenv("MENDGRAPH_DATA_DIR")
    for name in ("user_data_dir", "user_config_dir"):
        monkeypatch.setattr(f"platformdirs.{name}", homeless)
    message = "There is no home folder to keep runs in: set MENDGRAPH_DATA_DIR to one of your folders."
    assert spending_folder() == ToolError(code=ToolErrorCode.NOT_FOUND, message=message)
    message = "There is no home folder in which prices.toml could be."
    assert configuration_file("prices.toml") == ToolError(code=ToolErrorCode.NOT_FOUND, message=message)
    assert trusted_hash(root) == ""


def test_without_a_data_folder_nothing_is_trusted(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", "/dev/null/x")
    assert isinstance(trust(root, HASH), ToolError)
    assert trusted_hash(root) == ""
