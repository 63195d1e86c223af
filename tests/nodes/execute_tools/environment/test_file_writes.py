import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodes.execute_tools.environment.file_reads import FileContent
from nodes.execute_tools.environment.workspace import Workspace
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.layout import SECRET, code_of, content, sha, tree_of


def test_a_new_file_and_the_directories_above_it_are_made(root: Path, workspace: Workspace) -> None:
    assert workspace.write_file("x/y/z.py", b"z", expected_sha256="") == content("x/y/z.py", b"z")
    assert (root / "x" / "y" / "z.py").read_bytes() == b"z"


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o200 | 0o444])
def test_an_existing_file_is_replaced_and_keeps_its_mode(root: Path, workspace: Workspace, mode: int) -> None:
    (root / "a.py").chmod(mode)
    data = b"\xef\xbb\xbfnew\r\n\xff\x00"
    assert workspace.write_file("a.py", data, expected_sha256=sha(b"a = 1\r\n")) == content("a.py", data)
    assert ((root / "a.py").read_bytes(), stat.S_IMODE((root / "a.py").stat().st_mode)) == (data, mode)


def test_a_hard_link_keeps_the_old_bytes(root: Path, workspace: Workspace) -> None:
    os.link(root / "a.py", root / "other.py")
    workspace.write_file("a.py", b"new", expected_sha256=sha(b"a = 1\r\n"))
    assert ((root / "a.py").read_bytes(), (root / "other.py").read_bytes()) == (b"new", b"a = 1\r\n")


CALLS = ("mkdir", "write", "link", "rename", "unlink", "fsync")


@pytest.mark.parametrize(
    ("path", "expected", "calls"),
    [
        ("a.py", sha(b"a = 1\r\n"), ["write", "fsync", "rename", "fsync"]),
        ("new.py", "", ["write", "fsync", "link", "unlink", "fsync", "unlink"]),
    ],
    ids=["replaced", "made"],
)
def test_few_calls_change_the_disk(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, path: str, expected: str, calls: list[str]
) -> None:
    seen: list[str] = []

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            seen.append(name)
            return real(*args, **named)

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    assert isinstance(workspace.write_file(path, b"new", expected_sha256=expected), FileContent)
    monkeypatch.undo()
    assert seen == calls


def test_writing_through_a_link_writes_the_real_file(root: Path, workspace: Workspace) -> None:
    assert workspace.write_file("link.py", b"n", expected_sha256=sha(b"b = 2\n")) == content("src/b.py", b"n")
    assert ((root / "link.py").is_symlink(), (root / "src" / "b.py").read_bytes()) == (True, b"n")


REFUSED_WRITES: list[tuple[str, str, ToolErrorCode]] = [
    ("a.py", "", ToolErrorCode.CONFLICT),
    ("link.py", "", ToolErrorCode.CONFLICT),
    ("a.py", sha(b"something else"), ToolErrorCode.CONFLICT),
    ("nope.py", sha(b""), ToolErrorCode.CONFLICT),
    ("new/nope.py", sha(b""), ToolErrorCode.CONFLICT),
    ("src", "", ToolErrorCode.INVALID_ARGUMENT),
    ("src", sha(b""), ToolErrorCode.INVALID_ARGUMENT),
    (".", "", ToolErrorCode.INVALID_ARGUMENT),
    ("new/", "", ToolErrorCode.INVALID_ARGUMENT),
    ("a.py/b", "", ToolErrorCode.INVALID_ARGUMENT),
    ("x" * 256, "", ToolErrorCode.INVALID_ARGUMENT),
    (".env", "", ToolErrorCode.PERMISSION_DENIED),
    (".env", sha(SECRET), ToolErrorCode.PERMISSION_DENIED),
    ("new/.env", "", ToolErrorCode.PERMISSION_DENIED),
    ("innocent.txt", sha(SECRET), ToolErrorCode.PERMISSION_DENIED),
    (".git/hooks/pre-commit", "", ToolErrorCode.PERMISSION_DENIED),
    ("../new.txt", "", ToolErrorCode.PERMISSION_DENIED),
    ("out/new.txt", "", ToolErrorCode.PERMISSION_DENIED),
    ("out/new/new.txt", "", ToolErrorCode.PERMISSION_DENIED),
    ("out.txt", sha(SECRET), ToolErrorCode.PERMISSION_DENIED),
]


@pytest.mark.parametrize(("path", "expected", "code"), REFUSED_WRITES)
def test_what_may_not_be_written_changes_nothing(
    root: Path, workspace: Workspace, path: str, expected: str, code: ToolErrorCode
) -> None:
    before = tree_of(root)
    assert code_of(workspace.write_file(path, b"x", expected_sha256=expected)) is code
    assert (tree_of(root), sorted(os.listdir(root))) == (before, sorted(os.listdir(root)))
    assert not (root / "new").exists()


def test_a_file_without_a_write_bit_is_refused_also_for_root(root: Path, workspace: Workspace) -> None:
    (root / "a.py").chmod(0o444)
    assert workspace.write_file("a.py", b"x", expected_sha256=sha(b"a = 1\r\n")) == ToolError(
        code=ToolErrorCode.PERMISSION_DENIED, message="Cannot write 'a.py': the file permissions do not allow it."
    )
    assert (root / "a.py").read_bytes() == b"a = 1\r\n"


def test_the_two_conflicts_say_what_to_do(workspace: Workspace) -> None:
    changed = workspace.write_file("a.py", b"x", expected_sha256=sha(b"old"))
    assert changed == ToolError(
        code=ToolErrorCode.CONFLICT,
        message="Cannot write 'a.py': it has changed since it was read; read it again.",
    )
    exists = workspace.write_file("a.py", b"x", expected_sha256="")
    assert exists == ToolError(
        code=ToolErrorCode.CONFLICT,
        message="Cannot write 'a.py': it exists already; read it first, then replace it.",
    )


def test_a_file_that_appears_at_the_last_moment_is_not_overwritten(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def late(*args: Any, **named: Any) -> None:
        (root / "new.py").write_bytes(b"somebody else's")
        link(*args, **named)

    monkeypatch.setattr(os, "link", late)
    assert code_of(workspace.write_file("new.py", b"x", expected_sha256="")) is ToolErrorCode.CONFLICT
    assert (root / "new.py").read_bytes() == b"somebody else's"


FAULTS = [
    (errno.ENOSPC, ToolErrorCode.IO_ERROR, "the disk is full"),
    (errno.EIO, ToolErrorCode.IO_ERROR, "the disk reports an error"),
    (errno.EROFS, ToolErrorCode.PERMISSION_DENIED, "the file system is read-only"),
    (errno.EACCES, ToolErrorCode.PERMISSION_DENIED, "the file permissions do not allow it"),
]


@pytest.mark.parametrize(("path", "expected"), [("a.py", sha(b"a = 1\r\n")), ("new/deep/file.py", "")])
@pytest.mark.parametrize("function", ["write", "fsync", "rename", "link", "mkdir"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_disk_leaves_everything_as_it_was_and_is_named(
    root: Path,
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    expected: str,
    function: str,
    fault: tuple[int, ToolErrorCode, str],
) -> None:
    number, code, reason = fault

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    before = (tree_of(root), sorted(os.listdir(root)))
    monkeypatch.setattr(os, function, fail)
    written = workspace.write_file(path, b"new", expected_sha256=expected)
    monkeypatch.undo()
    unused = {"rename"} if expected == "" else {"link", "mkdir"}
    if function in unused:
        assert isinstance(written, FileContent)
        return
    fatal = number != errno.EACCES
    assert written == ToolError(code=code, message=f"Cannot write '{path}': {reason}.", fatal=fatal)
    assert (tree_of(root), sorted(os.listdir(root))) == before
