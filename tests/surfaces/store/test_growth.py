"""The database of a workspace grows in proportion to the work, not to its square.

Few turns show it: quadratic growth would bend the line. `make bench` measures 200.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mendgraph.graph.persistence.store import Store
from tests.extent import slow
from tests.surfaces.store.growth import edit, size_of, talk


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
    grown = talk(store, root, turns=30)
    assert grown.r_squared > 0.99
    assert grown.after(200) < 6_000_000
    store.shrink()
    assert Path(store.folder, "store.sqlite").stat().st_size == size_of(store)


@slow
def test_database_grows_linearly_with_the_edits_of_a_turn(store: Store, root: Path) -> None:
    grown = edit(store, root, edits=30)
    steps = [after - before for before, after in zip(grown.sizes, grown.sizes[1:], strict=False)]
    assert grown.r_squared > 0.99
    assert sum(steps[-10:]) < 1.5 * sum(steps[:10])
