import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes.execute_tools.environment import current_files
from nodes.execute_tools.environment.current_files import (
    CurrentFile,
    Expected,
    conflict,
    current_file,
    in_the_way,
    new_name,
)
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.execute_tools.environment.open_folders import OpenFolders
from nodes.execute_tools.environment.sandbox import Place
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.file_trees import A, B
from tests.nodes.execute_tools.environment.layout import DENIAL, SECRET, no_env, sha


@pytest.fixture
def paths(root: Path) -> JudgedPaths:
    return JudgedPaths(str(root), no_env)


@pytest.fixture
def folders(root: Path) -> Iterator[OpenFolders]:
    with OpenFolders(str(root)) as opened:
        yield opened


def at(name: str) -> Place:
    return Place(name, name)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("writable", [False, True])
def test_a_file_that_is_as_expected(
    root: Path, paths: JudgedPaths, folders: OpenFolders, whole: bool, writable: bool
) -> None:
    found = current_file(paths, folders, at("src/b.py"), Expected("write", B, writable=writable, whole=whole))
    assert found == CurrentFile("src/b.py", (root / "src" / "b.py").stat(), b"b = 2\n" if whole else None)


@pytest.mark.parametrize("whole", [False, True])
def test_a_file_that_is_not_as_expected(paths: JudgedPaths, folders: OpenFolders, whole: bool) -> None:
    found = current_file(paths, folders, at("a.py"), Expected("move", B, writable=False, whole=whole))
    assert found == ToolError(
        code=ToolErrorCode.CONFLICT,
        message="Cannot move 'a.py': it has changed since it was read; read it again.",
    )


def test_a_file_that_vanished_is_a_conflict(paths: JudgedPaths, folders: OpenFolders) -> None:
    found = current_file(paths, folders, at("gone.py"), Expected("write", A, writable=True, whole=False))
    assert found == ToolError(code=ToolErrorCode.CONFLICT, message="Cannot write 'gone.py': it is gone.")


def test_the_real_name_of_the_opened_file_is_judged(paths: JudgedPaths, folders: OpenFolders) -> None:
    expected = Expected("write", sha(SECRET), writable=True, whole=True)
    assert current_file(paths, folders, at(".env"), expected) == DENIAL


@pytest.mark.parametrize(("writable", "refused"), [(True, True), (False, False)])
def test_a_read_only_file_is_refused_where_it_has_to_be_writable(
    root: Path, paths: JudgedPaths, folders: OpenFolders, writable: bool, refused: bool
) -> None:
    (root / "a.py").chmod(0o444)
    expected = Expected("delete", A, writable=writable, whole=False)
    if not refused:
        assert isinstance(current_file(paths, folders, at("a.py"), expected), CurrentFile)
        return
    with pytest.raises(PermissionError) as caught:
        current_file(paths, folders, at("a.py"), expected)
    assert caught.value.errno == errno.EACCES


@pytest.mark.parametrize(("name", "number"), [("src", errno.EISDIR), ("link.py", errno.ESTALE), ("pipe", errno.ENXIO)])
def test_what_is_no_file_is_refused(
    root: Path, paths: JudgedPaths, folders: OpenFolders, name: str, number: int
) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(OSError, match=os.strerror(number)):
        current_file(paths, folders, at(name), Expected("write", A, writable=True, whole=False))


def test_a_file_that_is_too_large_for_a_backup_is_refused_where_one_is_wanted(
    root: Path, paths: JudgedPaths, folders: OpenFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_files, "LARGEST_BACKUP", 6)
    for name, sha256, fits in (("src/b.py", B, True), ("a.py", A, False)):
        found = current_file(paths, folders, at(name), Expected("delete", sha256, writable=True, whole=True))
        assert isinstance(found, CurrentFile) is fits
        assert isinstance(current_file(paths, folders, at(name), Expected("move", sha256, False, False)), CurrentFile)
    assert found == ToolError(
        code=ToolErrorCode.IO_ERROR,
        message="Cannot delete 'a.py': it has 7 bytes, and what a file of more than 6 held cannot be kept, so it could"
        " not be restored. Go on without it.",
    )
    assert (root / "a.py").exists()


def test_a_new_name_is_judged_as_what_it_really_is(
    root: Path, paths: JudgedPaths, folders: OpenFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders.open(("src",))
    assert new_name(paths, folders, folder, ("x", "y.py"), at("src/x/y.py")) == "src/x/y.py"
    os.rename(root / "src", root / ".git" / "hooks")
    assert new_name(paths, folders, folder, ("pre-commit",), at("src/pre-commit")) == DENIAL
    monkeypatch.setattr("nodes.execute_tools.environment.open_folders.handle_name", lambda _: None)
    assert new_name(paths, folders, folder, ("y.py",), at("src/y.py")) == "src/y.py"


def test_what_is_in_the_way_is_said(paths: JudgedPaths) -> None:
    assert in_the_way(paths, at("a.py")) == conflict(
        at("a.py"), "write", "it exists already; read it first, then replace it"
    )
    with pytest.raises(IsADirectoryError):
        in_the_way(paths, at("src"))
