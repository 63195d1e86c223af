"""Each scenario ends as expected, alike in all ways of playing it, and as in its transcript."""

import difflib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from mendgraph.graph.machine.routes import LOOP_ENDS, TRANSITIONS
from tests.extent import LEVEL, sampled
from tests.sandboxes import AUTO, sandbox_problem
from tests.scenarios.narrator import FIRST_REQUEST, Entry
from tests.scenarios.player import Recording, play, usual_request
from tests.scenarios.scenario import Scenario, Style, Way
from tests.scenarios.table import SCENARIOS
from tests.scenarios.transcript import FOLDER, first_request_transcript, path_in, scenario_transcript, transcript_path
from tests.snapshots import Snapshots
from tests.vocabulary import Protocol


@sampled
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario_has_the_same_result_in_every_way_of_playing(
    scenario: Scenario, tmp_path: Path, snapshots: Snapshots
) -> None:
    if scenario.sandboxed and (problem := sandbox_problem(scenario.settings.get("sandbox", AUTO))) is not None:
        pytest.skip(problem)

    ways = scenario.ways if LEVEL else scenario.sampled_ways
    recordings = {way: play(scenario, way, tmp_path) for way in ways}
    for way, recording in recordings.items():
        assert_expected(scenario, way, recording)
        assert_same(way, recordings[Way(way.protocol, Style.SYNC)], recording)

    paths = {way: recordings[way].path for way in ways if way.style is Style.ASYNC}
    path = next(iter(paths.values()))
    assert paths == dict.fromkeys(paths, path), "the protocols visit different nodes"

    entries = {protocol: recordings[Way(protocol, Style.SYNC)].entries for protocol in scenario.protocols}
    snapshots.check(transcript_path(scenario.name), scenario_transcript(scenario, entries, path))


def test_first_request_matches_its_transcript(snapshots: Snapshots) -> None:
    requests = {protocol: usual_request(protocol) for protocol in Protocol}
    snapshots.check(transcript_path(FIRST_REQUEST), first_request_transcript(requests))


def test_transcript_belongs_to_a_scenario() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(names) == len(set(names))
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted([*names, FIRST_REQUEST])


def test_every_edge_of_the_machine_is_taken_by_a_scenario() -> None:
    """The transcripts name the nodes that each run visited; the test above keeps them true."""
    covered = {edge for scenario in SCENARIOS for edge in edges_in(path_in(transcript_path(scenario.name)))}
    assert [edge for edge in TRANSITIONS if edge not in covered] == []


def assert_expected(scenario: Scenario, way: Way, recording: Recording) -> None:
    """Check what the table says of the scenario's end, and what holds for every run."""
    expected, outcome = scenario.expected, recording.outcomes[-1]
    assert (outcome.kind.value, outcome.reason.value) == (expected.kind, expected.reason), f"{way}: {outcome}"

    output = "\n".join([outcome.message, outcome.answer, *outcome.diagnostics])
    assert expected.message in output, f"{way}: {output}"
    assert recording.files == files_after(scenario), str(way)

    request_texts = [text for request in recording.requests for text in texts_of(request["messages"])]
    assert [
        text for text in expected.in_requests if not any(text in request_text for request_text in request_texts)
    ] == [], str(way)

    assert recording.unused == 0, f"{way}: {recording.unused} replies were not asked for"
    assert outcome.usage["total_calls"] == len(recording.requests) == len(scenario.replies), str(way)
    assert recording.problems == [], str(way)


def files_after(scenario: Scenario) -> dict[str, str]:
    """The workspace at the end of a scenario."""
    files = {**scenario.files, **scenario.expected.files}
    return {name: text for name, text in files.items() if text or name not in scenario.expected.files}


def texts_of(messages: Sequence[dict[str, object]]) -> list[str]:
    """The contents of messages."""
    return [str(message.get("content") or "") for message in messages]


def assert_same(way: Way, sync: Recording, recording: Recording) -> None:
    """Check that a run is the same as the sync run of its protocol."""
    assert recording.outcomes == sync.outcomes, str(way)
    assert recording.requests == sync.requests, str(way)
    assert recording.messages == sync.messages, str(way)
    if recording.entries and recording.entries != sync.entries:
        before, after = ([line for entry in played.entries for line in lines_of(entry)] for played in (sync, recording))
        difference = "\n".join(difflib.unified_diff(before, after, "sync", str(way), lineterm=""))
        pytest.fail(f"The story differs by the way in which it is played:\n{difference}", pytrace=False)


def lines_of(entry: Entry) -> list[str]:
    return [entry.words, *(f"    {line}" for line in entry.text.splitlines())]


def edges_in(path: Sequence[str]) -> list[tuple[str, str, str]]:
    """The edges of the transition table between the nodes of a path, where some have the word that chose their edge."""
    words: dict[str, str] = {label: verdict.value for verdict, label in LOOP_ENDS.items()}
    words |= {edge.label: edge.label for edge in TRANSITIONS if edge.source == edge.target}
    edges: list[tuple[str, str, str]] = []
    for node, following in pairwise(path):
        source, _, word = node.partition(" ")
        target = following.partition(" ")[0]
        edges += [
            edge
            for edge in TRANSITIONS
            if (edge.source, edge.target) == (source, target)
            and words.get(edge.label, word.strip("()")) == word.strip("()")
        ]
    return edges
