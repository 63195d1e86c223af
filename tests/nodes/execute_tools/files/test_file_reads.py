import errno
import os
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.files.handles import closing, open_directory, open_regular, open_root
from mendgraph.nodes.execute_tools.files.sandbox import JudgedPaths
from mendgraph.nodes.execute_tools.files.workspace import BeneathReader, OpenedFile, Workspace
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.files.layout import allow, code_of, content, no_env


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (".env", ToolErrorCode.PERMISSION_DENIED),
        ("innocent.txt", ToolErrorCode.PERMISSION_DENIED),
        (".git/config", ToolErrorCode.PERMISSION_DENIED),
        ("out.txt", ToolErrorCode.PERMISSION_DENIED),
        ("nope.py", ToolErrorCode.NOT_FOUND),
        ("src", ToolErrorCode.INVALID_ARGUMENT),
        ("", ToolErrorCode.INVALID_ARGUMENT),
    ],
)
def test_what_may_not_be_read(workspace: Workspace, path: str, code: ToolErrorCode) -> None:
    assert code_of(workspace.read_file(path)) is code
    assert code_of(workspace.open_file(path)) is code


def test_file_that_is_too_large_is_refused_with_its_size(workspace: Workspace) -> None:
    assert workspace.read_file("a.py", max_bytes=7) == content("a.py", b"a = 1\r\n")
    assert workspace.read_file("a.py", max_bytes=6) == ToolError(
        code=ToolErrorCode.IO_ERROR, message="'a.py' is too large to read at once: 7 bytes, and 6 are allowed."
    )


def test_file_is_read_piece_by_piece(workspace: Workspace) -> None:
    opened = workspace.open_file("link.py")
    assert isinstance(opened, OpenedFile)
    with opened as file:
        assert (file.path, file.size, file.stream.read(3), file.stream.read()) == ("src/b.py", 6, b"b =", b" 2\n")
    assert opened.stream.closed


def test_read_error_of_the_disk_is_an_error_of_the_tool(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def read(self, _: int) -> bytes:
            raise OSError(errno.EIO, "")

        def close(self) -> None:
            pass

    broken: Any = Broken()
    monkeypatch.setattr(Workspace, "open_file", lambda *_: OpenedFile("a.py", 1, broken))
    assert workspace.read_file("a.py") == ToolError(
        code=ToolErrorCode.IO_ERROR, message="Cannot read 'a.py': the disk reports an error."
    )


MODULE = "mendgraph.nodes.execute_tools.files.workspace"


def read(root: Path, *names: str, most: int = 100) -> list[bytes | None]:
    paths = JudgedPaths(str(root), no_env)
    with closing(open_root(str(root))) as handle, BeneathReader(paths, handle) as reader:
        return [reader.read(name, most) for name in names]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.py", b"a = 1\r\n"),
        ("src/b.py", b"b = 2\n"),
        ("linked.py", b"b = 2\n"),
        ("link.py", None),
        ("out.txt", None),
        (".env", None),
        ("other.txt", None),
        ("missing", None),
        ("pipe", None),
    ],
)
def test_only_regular_files_that_are_allowed_under_all_their_names_are_read(
    root: Path, name: str, data: bytes | None
) -> None:
    os.link(root / ".env", root / "other.txt")
    os.link(root / "src" / "b.py", root / "linked.py")
    os.mkfifo(root / "pipe")
    assert read(root, name) == [data]


def test_directory_that_is_another_one_when_it_is_open_gives_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / ".git" / "b.py").write_bytes(b"secret")
    monkeypatch.setattr(f"{MODULE}.open_directory", lambda top, _: open_directory(top, [".git"]))
    assert read(root, "src/b.py", "src/b.py") == [None, None]


def test_file_with_several_names_that_is_another_one_when_it_is_open_is_not_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("src/b.py", "a.py"):
        os.link(root / name, root / f"{name}.linked")
    with closing(open_root(str(root))) as handle:
        monkeypatch.setattr(f"{MODULE}.open_regular", lambda _, __, flags: open_regular(handle, ("a.py",), flags))
        with BeneathReader(JudgedPaths(str(root), allow), handle) as reader:
            assert (reader.read("src/b.py", 100), reader.read("a.py", 100)) == (None, b"a = 1\r\n")
