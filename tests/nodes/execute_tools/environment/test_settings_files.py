"""The settings of a workspace as bytes, and the mark by which they are trusted."""

import os
from pathlib import Path

import pytest

from nodes.execute_tools.environment import settings_files
from nodes.execute_tools.environment.run_folder import workspace_folder_path
from nodes.execute_tools.environment.settings_files import (
    MOST_BYTES,
    SETTINGS_FILE,
    hash_of,
    is_one_of,
    read_settings_file,
    trust,
    trusted_hash,
)
from nodes.records import ToolError, ToolErrorCode

HASH, OTHER = hash_of(b"a"), hash_of(b"b")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "root").mkdir()
    return str(tmp_path / "root")


def test_the_file_is_read_whole_up_to_its_bound(root: str) -> None:
    path = Path(root, SETTINGS_FILE)
    assert read_settings_file(root) is None
    path.write_bytes(b"a" * MOST_BYTES)
    assert read_settings_file(root) == b"a" * MOST_BYTES
    path.write_bytes(b"a" * (MOST_BYTES + 1))
    found = read_settings_file(root)
    assert isinstance(found, ToolError)
    assert found.code is ToolErrorCode.INVALID_ARGUMENT


def test_a_workspace_that_is_not_there_has_no_settings(root: str) -> None:
    assert read_settings_file(f"{root}/none") is None


def test_only_the_last_trusted_hash_is_known_until_it_is_forgotten(root: str) -> None:
    assert trusted_hash(root) == ""
    for sha256 in (HASH, OTHER, ""):
        assert trust(root, sha256) is None
        assert trusted_hash(root) == sha256
    assert trust(root, "") is None


def test_the_mark_is_the_users_alone_and_belongs_to_one_workspace(root: str) -> None:
    trust(root, HASH)
    [mark] = Path(workspace_folder_path(root)).iterdir()
    assert mark.stat().st_mode & 0o777 == 0o600
    assert trusted_hash(f"{root}/..") == ""


@pytest.mark.parametrize("text", ["", "x", HASH[:-1], f"{HASH}\n{OTHER}"])
def test_a_damaged_mark_trusts_nothing(root: str, text: str) -> None:
    trust(root, HASH)
    Path(workspace_folder_path(root), "trusted-settings").write_text(text)
    assert trusted_hash(root) == ""


def test_a_link_in_place_of_the_mark_is_not_written_through(root: str, tmp_path: Path) -> None:
    trust(root, HASH)
    mark, victim = Path(workspace_folder_path(root), "trusted-settings"), tmp_path / "victim"
    victim.write_text("mine")
    mark.unlink()
    mark.symlink_to(victim)
    assert isinstance(trust(root, HASH), ToolError)
    assert victim.read_text() == "mine"


def test_without_a_place_for_records_nothing_is_trusted(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", "/dev/null/x")
    assert isinstance(trust(root, HASH), ToolError)
    monkeypatch.delenv("MENDGRAPH_DATA_DIR")
    monkeypatch.setattr(settings_files, "workspace_folder_path", _no_home)
    assert trusted_hash(root) == ""


def _no_home(root: str) -> str:
    raise RuntimeError(root)


def test_a_folder_is_one_of_those_that_lead_to_it(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "link").symlink_to(root)
    for folders, found in (((root,), True), (("~/root",), True), (("/nowhere", "~/link/"), True), (("~",), False)):
        assert is_one_of(root, folders) is found
        assert is_one_of(os.path.join(root, "sub"), folders) is False
