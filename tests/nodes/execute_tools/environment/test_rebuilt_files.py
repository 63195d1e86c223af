import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from nodes.execute_tools.environment import rebuilt_files
from nodes.execute_tools.environment.journal import Journal
from nodes.execute_tools.environment.journal_records import (
    ChangeState,
    FileEffect,
    FileState,
    RecordedChange,
)
from nodes.execute_tools.environment.rebuilt_files import Rebuilt, rebuild
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.layout import sha


class Kept(Journal):
    """A journal that says this, and has kept these bytes."""

    def __init__(self, folder: Path, changes: list[RecordedChange], *kept: bytes) -> None:
        super().__init__(str(folder))
        self._said, self._kept = changes, {sha(data): data for data in kept}

    def _changes_where(self, where: str, *values: object) -> list[RecordedChange]:
        assert (where, values) == ("ORDER BY 1", ())
        return self._said

    def backup(self, sha256: str) -> bytes | None:
        return self._kept.get(sha256)


def state(data: bytes, mode: int | None = 0o644) -> FileState:
    return FileState(sha(data), mode)


NONE = FileState()
CHANGES = [
    RecordedChange(
        "one",
        1,
        1,
        (
            FileEffect("new/a", NONE, state(b"a", 0o755)),
            FileEffect("edited", state(b"old"), state(b"new")),
            FileEffect("gone", state(b"gone"), NONE),
            FileEffect("mode", state(b"mode"), state(b"mode", 0o755)),
            FileEffect("d/x", state(b"x"), NONE),
            FileEffect("d", NONE, state(b"file")),
        ),
        ("new", "empty", "empty/inner"),
        ChangeState.DONE,
    ),
    RecordedChange("two", 2, 2, (FileEffect("edited", state(b"new"), NONE),), (), ChangeState.INTENDED),
]


def beginning(root: Path) -> Path:
    (root / "d/inner").mkdir(parents=True)
    for name, data in (("edited", b"old"), ("gone", b"gone"), ("mode", b"mode"), ("d/x", b"x"), ("other", b"other")):
        (root / name).write_bytes(data)
        (root / name).chmod(0o640)
    return root


def test_a_fresh_copy_becomes_what_the_run_has_left(tmp_path: Path) -> None:
    root = beginning(tmp_path / "root")
    journal = Kept(tmp_path, CHANGES, b"a", b"new", b"file")
    assert rebuild(journal, str(root)) == Rebuilt(("d", "edited", "mode", "new/a"), ("d/x", "gone"), 1)
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    assert {name: (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) for name, path in files.items()} == {
        "new/a": (b"a", 0o755),
        "edited": (b"new", 0o640),
        "mode": (b"mode", 0o755),
        "d": (b"file", 0o644),
        "other": (b"other", 0o640),
    }
    assert (root / "empty/inner").is_dir()
    assert rebuild(journal, str(root)) == Rebuilt(unfinished=1)


def test_after_a_kill_the_same_call_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = beginning(tmp_path / "root")
    journal = Kept(tmp_path, CHANGES, b"a", b"new", b"file")
    real = os.rename
    for nth in range(1, 5):
        left = [None] * nth

        def rename(*arguments: str, left: list[None] = left, **named: Any) -> None:
            left.pop()
            if not left:
                raise KeyboardInterrupt
            real(*arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", rename)
            with pytest.raises(KeyboardInterrupt):
                rebuild(journal, str(root))
        assert list(root.rglob("*.mendgraph-tmp"))
        assert isinstance(rebuild(journal, str(root)), Rebuilt)
        assert list(root.rglob("*.mendgraph-tmp")) == []
        shutil.rmtree(root)
        beginning(root)


def test_nothing_is_touched_where_bytes_are_missing_or_damaged(tmp_path: Path) -> None:
    root = beginning(tmp_path / "root")
    before = sorted(root.rglob("*"))
    for kept in ((b"a", b"new"), (b"new", b"file")):
        found = rebuild(Kept(tmp_path, CHANGES, *kept), str(root))
        assert isinstance(found, ToolError)
        assert found.code is ToolErrorCode.CONFLICT
        assert found.message.endswith("what it held was not kept, or is damaged.")
    damaged = Kept(tmp_path, CHANGES, b"a", b"new", b"file")
    damaged._kept[sha(b"a")] = b"other"
    assert isinstance(rebuild(damaged, str(root)), ToolError)
    assert sorted(root.rglob("*")) == before


def test_a_link_is_never_followed(tmp_path: Path) -> None:
    root, outside = beginning(tmp_path / "root"), tmp_path / "outside"
    outside.mkdir()
    (root / "new").symlink_to(outside)
    found = rebuild(Kept(tmp_path, CHANGES, b"a", b"new", b"file"), str(root))
    assert isinstance(found, ToolError)
    assert os.listdir(outside) == []


def test_what_cannot_be_cleared_away_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = beginning(tmp_path / "root")

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "no")

    monkeypatch.setattr(os, "unlink", refused)
    with pytest.raises(PermissionError):
        rebuilt_files.rebuild(Kept(tmp_path, CHANGES, b"a", b"new", b"file"), str(root))
