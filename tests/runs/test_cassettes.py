"""Every scenario on its cassettes, in both protocols. `make record` records them from the scripted server."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.run import arun_task
from mendgraph.nodes.records import Protocol
from tests import network
from tests.cassettes import cassette, scripted
from tests.runs.playing import Played, changed_files, play, prompts, write_files
from tests.runs.scenario import Ends, Scenario
from tests.runs.scenarios import SCENARIOS
from tests.runs.scenarios_of_work import CALC, MENDED, TASK

PROTOCOLS = (Protocol.TEXT, Protocol.NATIVE)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_ends_as_it_should(
    name: str, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same end in both protocols: node path, verdicts, results and files. Source: DESIGN section 2, invariant 6."""
    scenario = SCENARIOS[name]
    with cassette(scenario.cassettes[PROTOCOLS.index(protocol)], scripted(*scenario.script(protocol))) as tape:
        played = play(scenario, protocol, tmp_path, tape.base_url, monkeypatch)
        assert ended(scenario, played, tmp_path) == scenario.ends
        assert played.problems == []
        assert [len(written) for written in played.outcomes] == [1] * len(scenario.turns)
        assert played.outcome.usage["total_calls"] == len(tape.exchanges)
        assert missing(scenario.ends.told, prompts(tape)) == []


@pytest.mark.skipif(network.is_recording(), reason="these cassettes are recorded by the test above")
@pytest.mark.parametrize("name", ["bug_repaired/text", "bug_repaired/native"])
def test_an_async_run_asks_for_the_same(name: str, tmp_path: Path) -> None:
    write_files(tmp_path, CALC)
    with cassette(name) as tape:
        protocol: Any = name.partition("/")[2]
        settings: Any = {"model": "scripted", "protocol": protocol, "evidence": False, "read_ahead": False}
        context = AgentContext(workspace=str(tmp_path), base_url=tape.base_url, **settings)
        result = asyncio.run(arun_task(TASK, context))
    assert (result.outcome.answer, changed_files(tmp_path, CALC)) == ("add now adds.", {"calc.py": MENDED})


def ended(scenario: Scenario, played: Played, folder: Path) -> Ends:
    """What happened, in the words of the scenario; texts that are only looked for count as found if they are."""
    wanted, outcome = scenario.ends, played.outcome
    said = "\n".join([outcome.message, outcome.answer, *outcome.diagnostics])
    return Ends(
        kind=outcome.kind,
        reason=outcome.reason,
        path=tuple(played.path),
        verdicts=tuple(played.verdicts),
        results=tuple(played.results),
        files=changed_files(folder, scenario.files),
        message=wanted.message if wanted.message in said else said,
        told=wanted.told,
    )


def missing(texts: Iterable[str], places: Iterable[str]) -> list[str]:
    """The texts that stand in none of the places."""
    found = list(places)
    return [text for text in texts if not any(text in place for place in found)]


def test_every_scenario_has_cassettes_of_its_own() -> None:
    names = [name for scenario in SCENARIOS.values() for name in scenario.cassettes]
    assert len(names) == len(set(names)) == 2 * len(SCENARIOS)
    assert {name: scenario.cassettes for name, scenario in SCENARIOS.items()} == {
        name: (f"{name}/text", f"{name}/native") for name in SCENARIOS
    }
