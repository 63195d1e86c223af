"""The database of a workspace grows in proportion to the work, not to its square.

Few turns show it: whatever grows with the square of the turns bends the line. `make bench` measures 200.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mendgraph.graph.persistence.store import Store
from tests.runs.growth import Growth, edit, size_of, talk, with_add_messages

TURNS, EDITS = 40, 30
MEASURED = 200


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def store(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    opened = Store(str(root))
    yield opened
    opened.close()


def test_two_hundred_turns_of_two_messages_of_one_kb_take_less_than_6_mb(store: Store, root: Path) -> None:
    grown = talk(store, root, TURNS)
    assert grown.r_squared > 0.99
    assert grown.after(MEASURED) < 6_000_000
    store.shrink()
    assert Path(store.folder, "store.sqlite").stat().st_size == size_of(store)


def test_turn_of_many_edits_grows_with_each_edit_alike(store: Store, root: Path) -> None:
    grown = edit(store, root, EDITS)
    steps = [after - before for before, after in zip(grown.sizes, grown.sizes[1:], strict=False)]
    assert grown.r_squared > 0.99
    assert sum(steps[-10:]) < 1.5 * sum(steps[:10])


def test_with_add_messages_it_would_bend(store: Store, root: Path) -> None:
    """So the tests above can fail."""
    grown = talk(store, root, TURNS, with_add_messages)
    assert grown.after(TURNS) - grown.sizes[-1] < -0.1 * grown.sizes[-1]
    assert grown.sizes[-1] > 3 * 6_000_000 * TURNS / MEASURED


def test_line_and_a_parabola_are_told_apart() -> None:
    line, parabola = Growth(tuple(range(10, 610, 10))), Growth(tuple(x * x for x in range(60)))
    assert (round(line.r_squared, 9), line.after(200)) == (1.0, 2_000)
    assert parabola.r_squared < 0.95
