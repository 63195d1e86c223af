import os
from pathlib import Path

import pytest

from graph.cassettes import library
from graph.cassettes.cassette_file import CassetteFile
from nodes.records import ToolError, ToolErrorCode

ONE = CassetteFile(recorded_from="one")
TWO = CassetteFile(recorded_from="two")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "b.yaml")
    assert [library.write(path, ONE), library.write(path, TWO), library.read(path)] == [None, None, TWO]
    assert os.listdir(tmp_path / "a") == ["b.yaml"]


def test_a_cassette_that_is_missing_or_cannot_be_read_is_told(tmp_path: Path) -> None:
    missing, folder = library.read(str(tmp_path / "a.yaml"), "a.yaml"), library.read(str(tmp_path), "the folder")
    assert missing == ToolError(code=ToolErrorCode.NOT_FOUND, message="there is no cassette a.yaml")
    assert folder == ToolError(
        code=ToolErrorCode.INVALID_ARGUMENT,
        message="Cannot read 'the folder': it is a directory, and a file is needed.",
    )


def test_bad_bytes_are_told_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff")
    found = library.read(str(tmp_path / "a.yaml"))
    assert isinstance(found, ToolError)
    assert found.message.startswith(f"{tmp_path}/a.yaml is not UTF-8 text (line 1)")


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "a.yaml")
    library.write(path, ONE)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    failed = library.write(path, TWO)
    message = f"{path} cannot be written: No space left on device"
    assert failed == ToolError(code=ToolErrorCode.IO_ERROR, message=message)
    assert (library.read(path), os.listdir(tmp_path)) == (ONE, ["a.yaml"])


def test_cassettes_are_listed_without_drafts(tmp_path: Path) -> None:
    for name in ("b.yaml", "a/c.yaml", "a/.c.yaml.12.recording", "a/.hidden.yaml", "a/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert library.cassettes_below(str(tmp_path)) == ["a/c.yaml", "b.yaml"]
    assert library.cassettes_below(str(tmp_path / "nowhere")) == []


def test_files_of_other_tools_are_told_apart(tmp_path: Path) -> None:
    library.write(str(tmp_path / "ours.yaml"), ONE)
    (tmp_path / "theirs.yaml").write_text("interactions: []\n", encoding="utf-8")
    found = [library.is_ours(str(tmp_path / name)) for name in ("ours.yaml", "theirs.yaml", "none.yaml")]
    assert found == [True, False, False]
