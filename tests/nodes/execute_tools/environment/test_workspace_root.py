import os
from pathlib import Path

import pytest

from nodes.execute_tools.environment.workspace_root import check_workspace, is_system_directory
from nodes.records import ToolError, ToolErrorCode

DENIED, INVALID, MISSING = (
    ToolErrorCode.PERMISSION_DENIED,
    ToolErrorCode.INVALID_ARGUMENT,
    ToolErrorCode.NOT_FOUND,
)


@pytest.mark.parametrize(
    "path", ["/", "/etc", "/usr", "/usr/bin", "/bin", "/sbin", "/var", "/dev", "/proc", "/proc/self", "/sys", "/boot"]
)
def test_system_directories_are_no_workspace(path: str) -> None:
    found = check_workspace(path)
    assert isinstance(found, ToolError)
    assert found.code in {DENIED, MISSING}


@pytest.mark.parametrize(
    ("real", "refused"),
    [
        ("/", True),
        ("/etc/nginx", True),
        ("/usr/lib/python3", True),
        ("/private/etc", True),
        ("/private/var/log", True),
        ("/Library/x", True),
        ("/System", True),
        ("/var/tmp/x", False),
        ("/var/folders/ab/T/x", False),
        ("/private/var/folders/ab/T/x", False),
        ("/private/tmp/x", False),
        ("/usr/src/app", False),
        ("/root", False),
        ("/root/project", False),
        ("/home/me", False),
        ("/tmp", False),
        ("/usr2", False),
        ("/etcetera", False),
        ("/Users/me/Library/x", False),
    ],
)
def test_which_directories_belong_to_the_system(real: str, refused: bool) -> None:
    assert is_system_directory(real) is refused


def test_a_link_to_a_system_directory_is_no_workspace(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    assert check_workspace(str(tmp_path / "link")) == ToolError(
        code=DENIED, message=f"The workspace '{tmp_path}/link' is a system directory: choose a project folder."
    )


def test_a_project_folder_is_a_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert check_workspace(".") == os.path.realpath(tmp_path)


def test_a_missing_workspace_is_told_with_a_remedy(tmp_path: Path) -> None:
    assert check_workspace(f"{tmp_path}/no") == ToolError(
        code=MISSING, message=f"The workspace '{tmp_path}/no' does not exist: make the folder, or name another one."
    )


@pytest.mark.parametrize("path", ["", " ", "a\0b", "\ud800"])
def test_no_name_is_no_workspace(path: str) -> None:
    found = check_workspace(path)
    assert isinstance(found, ToolError)
    assert found.code is INVALID


def test_a_file_is_no_workspace(root: Path) -> None:
    assert check_workspace(str(root / "a.py")) == ToolError(
        code=INVALID,
        message=f"Cannot use as workspace '{root}/a.py': a part of it is a file where a directory is needed.",
    )


def test_an_unreadable_folder_is_no_workspace(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "")

    monkeypatch.setattr(os, "open", refuse)
    found = check_workspace(str(root))
    assert isinstance(found, ToolError)
    assert found.code is DENIED
