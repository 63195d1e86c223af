"""Layouts x spellings x operations, each with what has to come of it."""

import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from mendgraph.nodes.records import ToolErrorCode
from tests.nodes.execute_tools.attacks.controls import always_fails, opens_inside
from tests.nodes.execute_tools.attacks.layouts import INSIDE, SECRET, build, picture
from tests.nodes.execute_tools.attacks.outcomes import DENIED, LOOKING, NEW, Answer, Door, create, replaced
from tests.nodes.execute_tools.attacks.path_rows import ROWS, Row

SECONDS = 20
"""For one row; what waits for a pipe waits for ever."""
CONTROLLED = {name: row for name, row in ROWS.items() if row.control is not None}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the rows have /proc, and names that macOS refuses")


@pytest.fixture(autouse=True)
def usual_mask() -> Iterator[None]:
    """The permissions of new files do not depend on who runs the tests."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@contextmanager
def in_time() -> Iterator[None]:
    """What hangs is an error."""

    def late(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"not done after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def holding(base: Path) -> Iterator[int]:
    """A handle of a secret outside the workspace, for what is spelled by it."""
    (base / "held.txt").write_bytes(SECRET)
    descriptor = os.open(base / "held.txt", os.O_RDONLY)
    before = len(os.listdir("/dev/fd"))
    try:
        yield descriptor
        assert len(os.listdir("/dev/fd")) == before, "a handle was left open"
    finally:
        os.close(descriptor)


def after(before: dict[str, tuple[str, int, object]], row: Row, answer: Answer) -> dict[str, tuple[str, int, object]]:
    """The picture that this answer of a writing operation promises: nothing else may have changed."""
    if isinstance(answer, ToolErrorCode) or not isinstance(answer, str):
        return before
    name = f"root/{answer}"
    mode = before[name][1] if name in before else stat.S_IFREG | 0o644
    made = {f"root/{folder}": ("d", stat.S_IFDIR | 0o755, None) for folder in row.made}
    return {**before, **(made if name not in before else {}), name: ("-", mode, NEW)}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_every_operation_gives_what_the_layout_promises(tmp_path: Path, row: Row) -> None:
    answers: dict[str, Answer] = {}
    with in_time(), holding(tmp_path.resolve()) as held:
        for operation in ("look", "create", "replace"):
            base = tmp_path.resolve() / operation
            root = build(base, row.lines, fd=held)
            door, path = Door.of(root), row.path.format(root=root, outside=base / "outside", fd=held)
            before = picture(base)
            if operation == "look":
                answers |= {name: look(door, path) for name, look in LOOKING.items()}
            else:
                answers[operation] = (
                    create(door, path) if operation == "create" else replaced(door, path, row.outcome.data)
                )
            assert picture(base) == after(before, row, answers.get(operation))
    assert answers == row.outcome.answers


@pytest.mark.parametrize("row", CONTROLLED.values(), ids=CONTROLLED.keys())
def test_the_losing_control_what_is_refused_goes_wrong_with_the_plain_call(tmp_path: Path, row: Row) -> None:
    with in_time(), holding(tmp_path.resolve()) as held:
        root = build(tmp_path.resolve() / "control", row.lines, fd=held)
        path = row.path.format(root=root, outside=root.parent / "outside", fd=held)
        assert row.control is not None
        assert row.control(root, path)


def test_what_is_refused_has_a_control() -> None:
    denied = {name for name, row in ROWS.items() if row.outcome.answers["read_file"] == DENIED}
    assert denied - CONTROLLED.keys() == {
        "git",
        "harmless file, denied name",
    }  # a directory, and a name that alone is denied
    losing = {name for name, row in CONTROLLED.items() if row.control not in {always_fails, opens_inside}}
    assert len(denied & losing) > 100


def test_the_table_is_as_large_as_it_should_be() -> None:
    assert len(ROWS) * (len(LOOKING) + 2) >= 150 * 13


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every directory")
@pytest.mark.parametrize(("mode", "listed"), [(0o000, False), (0o111, False), (0o444, True)])
def test_a_directory_without_permissions_is_a_typed_denial(tmp_path: Path, mode: int, listed: bool) -> None:
    root = build(tmp_path.resolve(), ("d/f",))
    (root / "d").chmod(mode)
    door = Door.of(root)
    answers = LOOKING["read_file"](door, "d/f"), LOOKING["list_directory"](door, "d"), create(door, "d/new")
    (root / "d").chmod(0o755)
    read = ("d/f", INSIDE) if mode == 0o111 else DENIED
    assert answers == (read, ("d/f",) if listed else DENIED, DENIED)
