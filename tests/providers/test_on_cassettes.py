"""A run on a chat model of any provider is recorded once and replayed when the provider is gone."""

from pathlib import Path

import pytest

from mendgraph.graph.cassettes.cassette_file import CassetteFile, parse, render
from mendgraph.graph.cassettes.player import Player, recorded, replayed
from mendgraph.graph.runs.run import run_task
from tests.providers.clients import client
from tests.providers.servers import FAMILIES
from tests.providers.test_runs import MENDED, SCRIPTS, TASK, context, project


@pytest.mark.parametrize("family", ["anthropic", "gemini"])
def test_run_is_recorded_and_replayed_without_its_provider(family: str, tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    for folder in (first, again):
        folder.mkdir()
        project(folder)
    with FAMILIES[family](SCRIPTS["native"]) as server, recorded() as tape:
        spoken = run_task(TASK, context(first, "native"), model=client(server)).outcome
    text = render(CassetteFile(recorded_from=family, exchanges=tape.exchanges))
    cassette = parse(text)
    assert isinstance(cassette, CassetteFile), cassette
    # The server has ended: nobody listens at its address any more.
    with replayed(Player(cassette, "c")):
        heard = run_task(TASK, context(again, "native"), model=client(server)).outcome
    assert (spoken.kind, heard.kind, heard.answer) == ("FINISHED", "FINISHED", spoken.answer), heard.message
    assert (first / "calc.py").read_text() == (again / "calc.py").read_text() == MENDED
    assert server.key == "" or server.key not in text
