"""Texts that are compared with files."""

from pathlib import Path

import pytest

from tests.architecture.product import ROOT
from tests.snapshots import Snapshots


def failure(snapshots: Snapshots, path: Path, text: str) -> str:
    with pytest.raises(pytest.fail.Exception) as caught:
        snapshots.check(path, text)
    return str(caught.value)


def test_equal_text_passes_and_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n", encoding="utf-8")
    path.chmod(0o400)
    Snapshots().check(path, "one\n")
    Snapshots(update=True).check(path, "one\n")


def test_different_text_fails_with_diff_and_command(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n", encoding="utf-8")
    message = failure(Snapshots(), path, "one\nthree\n")
    assert "\n one\n-two\n+three\n" in message
    assert message.endswith(f'run: make test ARGS="{tmp_path} --update-snapshots"')
    assert path.read_text(encoding="utf-8") == "one\ntwo\n"


def test_missing_file_fails_and_is_not_made() -> None:
    path = ROOT / "tests" / "no_such_folder" / "a.txt"
    message = failure(Snapshots(), path, "one\n")
    assert "+one\n" in message
    assert message.endswith('run: make test ARGS="tests/no_such_folder --update-snapshots"')
    assert not path.parent.exists()


def test_update_writes_different_text_and_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.txt"
    for text in ("one\n", "two\n"):
        Snapshots(update=True).check(path, text)
        assert path.read_text(encoding="utf-8") == text
