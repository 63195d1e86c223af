"""A call makes the changes that a person saw, and no others."""

from pathlib import Path

import pytest

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.file_changes import ChangedFile
from mendgraph.nodes.workspace.files.workspace import (
    ApprovedWorkspace,
    DeleteFile,
    DryChange,
    DryWorkspace,
    FileContent,
    MoveFile,
    Pin,
    Workspace,
    WriteFile,
    change_mark,
)
from tests.workspace.files.layout import allow, sha as hash_of

OLD, NEW = b"one\ntwo\nthree\n", b"one\n2\nthree\n"


PIN: Pin = ("a.txt", hash_of(OLD), change_mark(OLD, NEW))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "a.txt").write_bytes(OLD)
    return Workspace(str(tmp_path), allow)


def refused(result: object) -> str:
    assert isinstance(result, ToolError)
    assert result.code is ToolErrorCode.CONFLICT
    return result.message


def test_change_other_than_the_approved_one_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    approved = ApprovedWorkspace.of(workspace, [PIN], {})
    other = approved.write_file("a.txt", b"one\nII\nthree\n", expected_sha256=hash_of(OLD))
    assert refused(other).startswith(
        "This call would change 'a.txt' in another way than a person was shown, so nothing"
    )
    assert "did not see a change of 'b.txt'" in refused(approved.write_file("b.txt", b"", expected_sha256=""))
    assert "in another way" in refused(approved.change_files([DeleteFile("a.txt", hash_of(OLD))]))
    assert "in another way" in refused(approved.change_files([MoveFile("a.txt", "b.txt", hash_of(OLD))]))
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_bytes() == OLD


def test_file_changed_since_approval_is_refused_even_for_the_same_edit(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(OLD + b"four\n")
    approved = ApprovedWorkspace.of(workspace, [PIN], {})
    again = approved.write_file("a.txt", NEW + b"four\n", expected_sha256=hash_of(OLD + b"four\n"))
    assert refused(again).startswith("'a.txt' has changed since a person was shown this call")


def test_change_of_the_same_step_does_not_invalidate_an_approval(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(OLD + b"four\n")
    approved = ApprovedWorkspace.of(workspace, [PIN], {"a.txt": hash_of(OLD + b"four\n")})
    written = approved.write_file("a.txt", NEW + b"four\n", expected_sha256=hash_of(OLD + b"four\n"))
    assert isinstance(written, FileContent)


def test_moves_and_new_files_are_pinned_like_edits(workspace: Workspace, tmp_path: Path) -> None:
    pins = [("a.txt", hash_of(OLD), change_mark(OLD, OLD, "c.txt")), ("n.txt", "", change_mark(None, b"n"))]
    approved = ApprovedWorkspace.of(workspace, pins, {})
    done = approved.change_files([MoveFile("a.txt", "c.txt", hash_of(OLD)), WriteFile("n.txt", b"n")])
    assert not isinstance(done, ToolError)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.txt", "n.txt"]


def test_custom_tool_is_pinned_only_to_the_files_that_it_names(workspace: Workspace, tmp_path: Path) -> None:
    approved = ApprovedWorkspace.of(workspace, [("a.txt", hash_of(OLD), "")], {})
    assert not isinstance(approved.write_file("b.txt", b"b", expected_sha256=""), ToolError)
    assert not isinstance(approved.write_file("./a.txt", NEW, expected_sha256=hash_of(OLD)), ToolError)
    (tmp_path / "a.txt").write_bytes(OLD)
    late = ApprovedWorkspace.of(workspace, [("a.txt", hash_of(NEW), "")], {})
    assert "has changed since" in refused(late.write_file("a.txt", b"x", expected_sha256=hash_of(OLD)))


def test_path_rules_apply_before_the_pin(tmp_path: Path) -> None:
    denied = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="Denied.")
    approved = ApprovedWorkspace.of(Workspace(str(tmp_path), lambda _path, _for_write: denied), [PIN], {})
    assert approved.write_file("a.txt", NEW, expected_sha256=hash_of(OLD)) == denied
    outside = ApprovedWorkspace.of(Workspace(str(tmp_path), allow), [PIN], {})
    assert isinstance(outside.change_files([MoveFile("a.txt", "../b", hash_of(OLD))]), ToolError)


DENIED = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="Denied.")


@pytest.fixture
def dry(tmp_path: Path) -> DryWorkspace:
    (tmp_path / "a.txt").write_bytes(b"one\n")
    (tmp_path / "link.txt").symlink_to("a.txt")
    workspace = Workspace(str(tmp_path), lambda path, for_write: DENIED if for_write and path == "no.txt" else None)
    return DryWorkspace.of(workspace)


def code_of(result: object) -> ToolErrorCode | None:
    return result.code if isinstance(result, ToolError) else None


def test_dry_write_is_seen_by_the_next_read_but_not_on_disk(dry: DryWorkspace, tmp_path: Path) -> None:
    written = dry.write_file("link.txt", b"two\n", expected_sha256=hash_of(b"one\n"))
    assert written == FileContent.of("a.txt", b"two\n")
    assert dry.read_file("a.txt") == written
    assert dry.planned == [DryChange("link.txt", "a.txt", "", b"one\n", b"two\n", hash_of(b"one\n"))]
    assert (tmp_path / "a.txt").read_bytes() == b"one\n"


def test_files_are_created_deleted_and_moved_in_a_dry_run(dry: DryWorkspace, tmp_path: Path) -> None:
    done = dry.change_files([WriteFile("new/b.txt", b"b"), MoveFile("a.txt", "c.txt", hash_of(b"one\n"))])
    assert done == (ChangedFile("new/b.txt", "", hash_of(b"b")), ChangedFile("a.txt", "c.txt", hash_of(b"one\n")))
    assert [dry.exists(name) for name in ("a.txt", "c.txt", "new/b.txt", "d.txt")] == [False, True, True, False]
    assert code_of(dry.read_file("a.txt")) is ToolErrorCode.NOT_FOUND
    assert dry.change_files([DeleteFile("new/b.txt", hash_of(b"b"))]) == (ChangedFile("new/b.txt"),)
    assert not dry.exists("new/b.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "link.txt"]


def test_dry_change_is_refused_like_a_real_one(dry: DryWorkspace) -> None:
    assert code_of(dry.write_file("no.txt", b"", expected_sha256="")) is ToolErrorCode.PERMISSION_DENIED
    assert code_of(dry.write_file("../x", b"", expected_sha256="")) is ToolErrorCode.PERMISSION_DENIED
    assert code_of(dry.write_file("a.txt", b"", expected_sha256="")) is ToolErrorCode.CONFLICT
    assert code_of(dry.change_files([DeleteFile("link.txt", hash_of(b"one\n"))])) is ToolErrorCode.INVALID_ARGUMENT
    new_file = WriteFile("b.txt", b"b")
    assert code_of(dry.change_files([new_file, MoveFile("a.txt", "no.txt", hash_of(b"one\n"))])) is not None
    assert (dry.planned, dry.exists("b.txt")) == ([], False)

    dry.write_file("b.txt", b"b", expected_sha256="")
    assert code_of(dry.change_files([MoveFile("b.txt", "no.txt", hash_of(b"b"))])) is ToolErrorCode.PERMISSION_DENIED
    assert code_of(dry.write_file("b.txt", b"c", expected_sha256="0")) is ToolErrorCode.CONFLICT
