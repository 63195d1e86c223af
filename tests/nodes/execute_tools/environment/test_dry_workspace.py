"""Changes that are taken and not made."""

from hashlib import sha256
from pathlib import Path

import pytest

from nodes.execute_tools.environment.change_plan import ChangedFile
from nodes.execute_tools.environment.dry_workspace import DryChange, DryWorkspace
from nodes.execute_tools.environment.file_reads import FileContent
from nodes.execute_tools.environment.workspace import DeleteFile, MoveFile, Workspace, WriteFile
from nodes.records import ToolError, ToolErrorCode

DENIED = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="Denied.")


def hash_of(data: bytes) -> str:
    return sha256(data).hexdigest()


@pytest.fixture
def dry(tmp_path: Path) -> DryWorkspace:
    (tmp_path / "a.txt").write_bytes(b"one\n")
    (tmp_path / "link.txt").symlink_to("a.txt")
    workspace = Workspace(str(tmp_path), lambda path, for_write: DENIED if for_write and path == "no.txt" else None)
    return DryWorkspace.of(workspace)


def code_of(result: object) -> ToolErrorCode | None:
    return result.code if isinstance(result, ToolError) else None


def test_a_write_is_seen_by_the_next_read_and_by_nobody_else(dry: DryWorkspace, tmp_path: Path) -> None:
    written = dry.write_file("link.txt", b"two\n", expected_sha256=hash_of(b"one\n"))
    assert written == FileContent.of("a.txt", b"two\n")
    assert dry.read_file("a.txt") == written
    assert dry.made == [DryChange("link.txt", "a.txt", "", b"one\n", b"two\n", hash_of(b"one\n"))]
    assert (tmp_path / "a.txt").read_bytes() == b"one\n"


def test_the_disk_is_told_apart_from_what_was_taken(dry: DryWorkspace) -> None:
    dry.write_file("a.txt", b"two\n", expected_sha256=hash_of(b"one\n"))
    dry.write_file("a.txt", b"three\n", expected_sha256=hash_of(b"two\n"))
    assert [(each.before, each.sha256) for each in dry.made] == [
        (b"one\n", hash_of(b"one\n")),
        (b"two\n", hash_of(b"one\n")),
    ]


def test_files_come_go_and_move(dry: DryWorkspace, tmp_path: Path) -> None:
    done = dry.change_files([WriteFile("new/b.txt", b"b"), MoveFile("a.txt", "c.txt", hash_of(b"one\n"))])
    assert done == (ChangedFile("new/b.txt", "", hash_of(b"b")), ChangedFile("a.txt", "c.txt", hash_of(b"one\n")))
    assert [dry.exists(name) for name in ("a.txt", "c.txt", "new/b.txt", "d.txt")] == [False, True, True, False]
    assert code_of(dry.read_file("a.txt")) is ToolErrorCode.NOT_FOUND
    assert dry.change_files([DeleteFile("new/b.txt", hash_of(b"b"))]) == (ChangedFile("new/b.txt"),)
    assert not dry.exists("new/b.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "link.txt"]


def test_what_would_be_refused_is_refused(dry: DryWorkspace) -> None:
    assert code_of(dry.write_file("no.txt", b"", expected_sha256="")) is ToolErrorCode.PERMISSION_DENIED
    assert code_of(dry.write_file("../x", b"", expected_sha256="")) is ToolErrorCode.PERMISSION_DENIED
    assert code_of(dry.write_file("a.txt", b"", expected_sha256="")) is ToolErrorCode.CONFLICT
    assert code_of(dry.change_files([DeleteFile("link.txt", hash_of(b"one\n"))])) is ToolErrorCode.INVALID_ARGUMENT
    taken = WriteFile("b.txt", b"b")
    assert code_of(dry.change_files([taken, MoveFile("a.txt", "no.txt", hash_of(b"one\n"))])) is not None
    assert (dry.made, dry.exists("b.txt")) == ([], False)


def test_a_move_of_what_an_earlier_call_made_is_judged_too(dry: DryWorkspace) -> None:
    dry.write_file("b.txt", b"b", expected_sha256="")
    assert code_of(dry.change_files([MoveFile("b.txt", "no.txt", hash_of(b"b"))])) is ToolErrorCode.PERMISSION_DENIED
    assert code_of(dry.write_file("b.txt", b"c", expected_sha256="0")) is ToolErrorCode.CONFLICT


def test_names_and_hashes_are_those_that_may_be_known(dry: DryWorkspace) -> None:
    assert [dry.real_name(path) for path in ("link.txt", "x/../n.txt", "../x")] == ["a.txt", "n.txt", ""]
    assert [dry.on_disk(name) for name in ("a.txt", "n.txt")] == [hash_of(b"one\n"), ""]
