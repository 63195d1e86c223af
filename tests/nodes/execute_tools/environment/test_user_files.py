import os
import stat
from pathlib import Path

import pytest

from nodes.execute_tools.environment.user_files import (
    MOST_BYTES,
    absolute_name,
    configuration_file,
    read_user_file,
    spending_file,
)
from nodes.records import ToolError, ToolErrorCode


@pytest.fixture(autouse=True)
def no_handle_is_left_open() -> object:
    before = len(os.listdir("/dev/fd"))
    yield
    assert len(os.listdir("/dev/fd")) == before


def test_a_spending_file_is_made_in_the_data_folder_and_is_its_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "new" / "data"
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(folder))
    assert spending_file("a.sqlite") == str(folder / "spending" / "a.sqlite")
    assert stat.S_IMODE((folder / "spending" / "a.sqlite").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "spending").stat().st_mode) == 0o700
    assert (folder / "spending" / "a.sqlite").read_bytes() == b""


def test_a_spending_file_that_is_there_keeps_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "spending").mkdir()
    (tmp_path / "spending" / "a.sqlite").write_bytes(b"kept")
    assert spending_file("a.sqlite", str(tmp_path)) == str(tmp_path / "spending" / "a.sqlite")
    assert (tmp_path / "spending" / "a.sqlite").read_bytes() == b"kept"


def test_a_spending_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "spending" / "a.sqlite").mkdir(parents=True)
    path = str(tmp_path / "spending" / "a.sqlite")
    message = f"Cannot open {path!r}: it is a directory, and a file is needed."
    assert spending_file("a.sqlite", str(tmp_path)) == ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def test_without_a_home_there_is_no_spending_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(name: str, appauthor: bool) -> str:
        raise RuntimeError(name, appauthor)

    monkeypatch.delenv("MENDGRAPH_DATA_DIR", raising=False)
    monkeypatch.setattr("platformdirs.user_data_dir", homeless)
    monkeypatch.setattr("platformdirs.user_config_dir", homeless)
    message = "There is no home folder to keep runs in: set MENDGRAPH_DATA_DIR to a folder of your own."
    assert spending_file("a.sqlite") == ToolError(code=ToolErrorCode.NOT_FOUND, message=message)
    message = "There is no home folder in which prices.toml could be."
    assert configuration_file("prices.toml") == ToolError(code=ToolErrorCode.NOT_FOUND, message=message)


def test_a_configuration_file_is_where_the_platform_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_config_dir", lambda name, appauthor: f"/config/{name}-{appauthor}")
    assert configuration_file("prices.toml") == "/config/mendgraph-False/prices.toml"


# --- Reading


def test_a_users_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfa = 1 # \xc3\xa4")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_user_file(str(tmp_path / "a.toml")) == "a = 1 # ä"
    assert read_user_file("~/a.toml") == "a = 1 # ä"


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("none", ToolErrorCode.NOT_FOUND, "there is no such file or directory"),
        ("folder", ToolErrorCode.INVALID_ARGUMENT, "it is a directory, and a file is needed"),
        ("pipe", ToolErrorCode.INVALID_ARGUMENT, "it is not a regular file (a pipe, socket or device)"),
        ("large", ToolErrorCode.INVALID_ARGUMENT, "it has more than 1,000,000 bytes"),
        ("latin", ToolErrorCode.INVALID_ARGUMENT, "it is no UTF-8 text (byte 1)"),
    ],
)
def test_what_cannot_be_read_is_an_error(tmp_path: Path, name: str, code: ToolErrorCode, reason: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * (MOST_BYTES + 1))
    (tmp_path / "latin").write_bytes(b"a\xe4b")
    path = str(tmp_path / name)
    assert read_user_file(path) == ToolError(code=code, message=f"Cannot read {path!r}: {reason}.")


def test_what_the_user_names_has_an_absolute_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert [absolute_name(each) for each in ("~/a", "b", "/c/../d")] == [
        *(str(tmp_path / name) for name in ("a", "b")),
        "/d",
    ]
