import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from nodes.execute_tools.environment import rebuilding
from nodes.execute_tools.environment.change_records import (
    UNKNOWN_SHA256,
    ChangeState,
    FileEffect,
    FileState,
    RecordedChange,
)
from nodes.execute_tools.environment.found_files import Found, FoundAbove, FoundDirectory, Unusable
from nodes.execute_tools.environment.journal import Journal
from nodes.execute_tools.environment.rebuilding import (
    PathHistory,
    RebuildPlan,
    Rebuilt,
    WriteStep,
    path_histories,
    rebuild,
    rebuild_plan,
)
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
        rebuilding.rebuild(Kept(tmp_path, CHANGES, b"a", b"new", b"file"), str(root))


ONE, TWO = FileState("1", 0o644), FileState("2", 0o644)
UNKNOWN = FileState(UNKNOWN_SHA256, 0o644)
DONE = ChangeState.DONE


def change(
    *effects: tuple[str, FileState, FileState], state: ChangeState = DONE, made: tuple[str, ...] = ()
) -> RecordedChange:
    return RecordedChange("token", 1, 1, tuple(FileEffect(*each) for each in effects), made, state)


def planned(changes: list[RecordedChange], found: dict[str, Found]) -> RebuildPlan | str:
    """The plan, or why there is none."""
    histories = path_histories(changes)
    plan = histories if isinstance(histories, ToolError) else rebuild_plan(changes, histories, found)
    return plan.message.partition("anew: ")[2] if isinstance(plan, ToolError) else plan


def test_all_that_was_done_to_a_path_counts_as_one() -> None:
    undone = change(("a", TWO, NONE), state=ChangeState.UNDONE)
    reverted = change(("b", ONE, NONE), state=ChangeState.REVERTED)
    changes = [change(("a", NONE, ONE), ("b", NONE, ONE)), undone, reverted, change(("a", ONE, TWO), ("b", NONE, TWO))]
    assert path_histories(changes) == (PathHistory("a", NONE, TWO), PathHistory("b", NONE, TWO))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([change(("a", ONE, TWO), state=ChangeState.FOREIGN)], "'a': somebody else has changed it"),
        ([change(("a", NONE, ONE)), change(("a", TWO, NONE))], "'a': it was changed also between two"),
        ([change(("a", NONE, FileState("1", 0o755))), change(("a", ONE, TWO))], "'a': it was changed also between two"),
        ([change(("a", ONE, UNKNOWN))], "'a': a command has changed it, and what it held then was not recorded"),
    ],
)
def test_what_cannot_be_told_is_not_made_again(changes: list[RecordedChange], why: str) -> None:
    assert str(planned(changes, {"a": ONE})).startswith(why)


def test_what_was_unknown_for_a_while_does_not_matter() -> None:
    changes = [change(("a", NONE, UNKNOWN)), change(("a", UNKNOWN, NONE)), change(("b", UNKNOWN, ONE))]
    assert planned(changes, {"a": NONE, "b": TWO}) == RebuildPlan((), (), (WriteStep("b", "1", None),))


@pytest.mark.parametrize(
    ("effect", "now", "plan"),
    [
        (("a", NONE, ONE), NONE, RebuildPlan((), (), (WriteStep("a", "1", 0o644),))),
        (("a", NONE, ONE), ONE, RebuildPlan((), (), ())),
        (("a", NONE, ONE), TWO, "'a': the copy does not hold what the run began with."),
        (("a", NONE, FileState("1")), NONE, RebuildPlan((), (), (WriteStep("a", "1", None),))),
        (("a", ONE, TWO), ONE, RebuildPlan((), (), (WriteStep("a", "2", None),))),
        (("a", ONE, TWO), FileState("1", 0o664), RebuildPlan((), (), (WriteStep("a", "2", None),))),
        (("a", ONE, TWO), FileState("1", 0o755), "'a': the copy does not hold what the run began with."),
        (("a", ONE, FileState("1", 0o755)), ONE, RebuildPlan((), (), (WriteStep("a", "1", 0o755),))),
        (("a", ONE, NONE), ONE, RebuildPlan(("a",), (), ())),
        (("a", ONE, NONE), NONE, RebuildPlan((), (), ())),
        (("a", NONE, ONE), Unusable("a link"), "'a': something else is in its place."),
        (("d/e/a", NONE, ONE), NONE, RebuildPlan((), ("d", "d/e"), (WriteStep("d/e/a", "1", 0o644),))),
    ],
)
def test_each_path_goes_from_its_beginning_to_its_end(
    effect: tuple[str, FileState, FileState], now: Found, plan: RebuildPlan | str
) -> None:
    assert planned([change(effect)], {effect[0]: now}) == plan


def test_directories_that_were_made_are_made_again() -> None:
    changes = [change(("d/a", NONE, ONE), made=("d", "x", "x/y")), change(("x/y", NONE, ONE))]
    found: dict[str, Found] = {"d/a": NONE, "x/y": NONE}
    assert planned(changes, found) == RebuildPlan(
        (), ("d", "x"), (WriteStep("d/a", "1", 0o644), WriteStep("x/y", "1", 0o644))
    )
    assert planned([change(made=("new",))], {}) == RebuildPlan((), ("new",), ())


def test_files_and_directories_change_places() -> None:
    changes = [change(("a", ONE, NONE), ("a/b", NONE, ONE)), change(("d/x", ONE, NONE), ("d", NONE, TWO))]
    found: dict[str, Found] = {
        "a": ONE,
        "a/b": FoundAbove("a"),
        "d/x": ONE,
        "d": FoundDirectory(frozenset({"d/x"}), frozenset()),
    }
    written = (WriteStep("a/b", "1", 0o644), WriteStep("d", "2", 0o644))
    assert planned(changes, found) == RebuildPlan(("a", "d/x"), ("a",), written)
    found["d"] = FoundDirectory(frozenset({"d/x", "d/other"}), frozenset())
    assert planned(changes, found) == "'d': something else is in its place."


def test_what_was_being_done_is_left_to_the_recovery() -> None:
    changes = [change(("a", NONE, ONE)), change(("a", ONE, TWO), ("b", NONE, TWO), state=ChangeState.INTENDED)]
    assert planned(changes, {"a": TWO}) == RebuildPlan((), (), ())
    assert planned(changes, {"a": NONE}) == RebuildPlan((), (), (WriteStep("a", "1", 0o644),))
