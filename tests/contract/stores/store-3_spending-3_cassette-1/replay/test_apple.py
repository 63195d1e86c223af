"""The run aeaebdd5 once more, on what its model said."""

import shutil
from pathlib import Path

import pytest

from mendgraph import Session


@pytest.mark.mendgraph_cassette("apple")
def test_apple(mendgraph_cassette, tmp_path):
    files = Path(mendgraph_cassette.path).parent / "files"
    shutil.copytree(files / "before", tmp_path, dirs_exist_ok=True)
    with Session(mendgraph_cassette.context(tmp_path)) as session:
        session.work("An apple costs 5.")
        outcome = session.result().outcome
    assert (outcome.kind, outcome.reason) == ("FINISHED", "answered")
    for path in ["prices.toml"]:
        assert (tmp_path / path).read_bytes() == (files / "after" / path).read_bytes()
