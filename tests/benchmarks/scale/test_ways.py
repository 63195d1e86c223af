"""The ways that a crew's own test does not take: the event loop and the batch, two runs each."""

from pathlib import Path

import pytest

from benchmarks.scale.script import changed_files, files
from benchmarks.scale.server import endpoint
from benchmarks.scale.ways import BATCH, LOOP, WAYS, Place
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE


@pytest.mark.parametrize("way", [BATCH, LOOP])
def test_each_run_does_its_work(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(tmp_path / "data"))
    with endpoint(0.0) as url:
        place = Place(url, str(tmp_path))
        for name in ("a", "b"):
            for path, text in files().items():
                file = Path(place.workspace(name), path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        ended = WAYS[way](place, ["a", "b"])
    assert {name: end.kind for name, end in ended.items()} == {"a": "FINISHED", "b": "FINISHED"}
    for end in ended.values():
        assert {path: Path(end.root, path).read_text() for path in files()} == changed_files()
