"""A planted secret is in no byte that a full run writes: on the terminal, in logs, traces, databases and cassettes.

Each test has its losing control beside it: the same run without redaction is caught by the same search, in each of
these places.
"""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver

from mendgraph.graph.cassettes.player import recorded
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.state import serializer
from mendgraph.nodes.records import Protocol
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import ScriptedServer
from tests.nodes.execute_tools.attacks.canaries import PLANTED, everything_below
from tests.nodes.execute_tools.attacks.canary_scene import (
    REQUEST,
    Scene,
    new_scene,
    note_requests,
    note_result,
    over_a_database,
    script,
    without_redaction,
)

NOT_BY_REDACTION = {"denied_file", "key_block"}
"""What guard keeps from a run, whatever redaction does; and what only a test of its own brings in."""


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """All that a run writes goes below one folder."""
    return new_scene(tmp_path, monkeypatch)


def session_run(scene: Scene, protocol: Protocol) -> None:
    """A session over a database on the disk."""
    with ScriptedServer(script(protocol)) as server:
        events, result = over_a_database(scene, protocol, server.base_url)
        note_requests(scene, server)
    note_result(scene, events, result)
    assert {"app.py", "settings.json"} <= set(result.outcome.changed_files)


def cassette_run(scene: Scene, protocol: Protocol) -> None:
    """The same while its endpoint is recorded."""
    with ScriptedServer(script(protocol)) as server, recorded(server.base_url) as tape:
        over_a_database(scene, protocol, tape.base_url)
    # What an endpoint says is recorded as it was said, so only what we sent is looked for.
    requests = [json.dumps(json.loads(each.request), ensure_ascii=False) for each in tape.exchanges]
    scene.places["cassette"] = "\n".join(requests)


def raw_run(scene: Scene, protocol: Protocol) -> None:
    """The graph's own `invoke`: what a person typed is in the input, and so in the first checkpoint."""
    spellings: list[Any] = [[HumanMessage(REQUEST)], [{"role": "user", "content": REQUEST}], REQUEST]
    for number, messages in enumerate(spellings):
        model = ScriptedModel([Say(f"I was told {PLANTED.reply}.")])
        with closing(sqlite3.connect(scene.folder / f"raw{number}.db", check_same_thread=False)) as database:
            machine = build_graph(SqliteSaver(database, serde=serializer()), model=model)
            context = AgentContext(workspace=str(scene.root), protocol=protocol.value)
            config: Any = {"configurable": {"thread_id": "t"}}
            given: Any = {"messages": messages}
            values = machine.invoke(given, config, context=context)
            scene.places[f"raw {number}: database"] = everything_below(scene.folder, but=scene.root)
        scene.places[f"raw {number}: values"] = repr(values)
        scene.places[f"raw {number}: prompts"] = repr(model.calls)


# --- What each shows


Run = Callable[[Scene, Protocol], None]


def found_by(run: Run, scene: Scene, protocol: Protocol) -> dict[str, set[str]]:
    run(scene, protocol)
    return scene.leaks()


@pytest.mark.parametrize(
    ("run", "protocol"), [(session_run, Protocol.NATIVE), (cassette_run, Protocol.NATIVE), (raw_run, Protocol.TEXT)]
)
def test_run_writes_no_secret(scene: Scene, run: Run, protocol: Protocol) -> None:
    assert found_by(run, scene, protocol) == {}


def test_control_without_redaction_a_session_leaks_everywhere(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    without_redaction(monkeypatch)
    found = found_by(session_run, scene, Protocol.TEXT)
    everywhere = {
        "requests",
        "events",
        "outcome",
        "messages",
        "changes and plan",
        "kept results",
        "database",
        "all files",
    }
    assert everywhere - set(found) == set()
    assert {name for name, _ in PLANTED.items()} - found["events"] - found["database"] == NOT_BY_REDACTION


def test_control_without_redaction_a_cassette_and_the_input_leak(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    without_redaction(monkeypatch)
    monkeypatch.setattr("mendgraph.graph.cassettes.player.cassette_file.scrubbed", lambda body, _keys=(): body)
    assert found_by(cassette_run, scene, Protocol.NATIVE)["cassette"] >= {"request", "source_file", "json_file"}
    raw = found_by(raw_run, scene, Protocol.NATIVE)
    assert {name for name in raw if name.startswith("raw")} == {
        f"raw {number}: {place}" for number in range(3) for place in ("database", "values", "prompts")
    }
