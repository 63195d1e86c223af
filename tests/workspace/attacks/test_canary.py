"""A planted secret is in no byte that a full run writes: terminal, logs, traces, databases and cassettes.

Each test has a failing control: the same search finds the secrets of the same run without redaction in each of these
places.
"""

import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver

from mendgraph.graph.cassettes.recorder import recorded
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.serializer import serializer
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import ScriptedServer
from tests.extent import slow
from tests.vocabulary import Protocol
from tests.workspace.attacks.canary_scene import PLANTED, REQUEST, Scene, no_redaction, scene, script

__all__ = ("no_redaction", "scene")

NOT_BY_REDACTION = {"denied_file", "key_block"}
"""Secrets that do not appear without redaction either: guard denies the one, and only another test uses the other."""


def session_run(scene: Scene, protocol: Protocol) -> None:
    with ScriptedServer(script(protocol)) as server:
        result = scene.run(REQUEST, base_url=server.base_url, model="m", protocol=protocol.value)
        scene.note_requests(server)
    assert {"app.py", "settings.json"} <= set(result.outcome.changed_files)


def cassette_run(scene: Scene, protocol: Protocol) -> None:
    """The same while its endpoint is recorded."""
    with ScriptedServer(script(protocol)) as server, recorded(server.base_url) as tape:
        scene.run(REQUEST, base_url=tape.base_url, model="m", protocol=protocol.value)
    # Replies of an endpoint are recorded unchanged, so only what we sent is searched.
    requests = [json.dumps(json.loads(exchange.request), ensure_ascii=False) for exchange in tape.exchanges]
    scene.places = {"cassette": "\n".join(requests)}


def raw_run(scene: Scene, protocol: Protocol) -> None:
    """The graph's own `invoke`: what a person typed is in the input, and so in the first checkpoint."""
    spellings: list[Any] = [[HumanMessage(REQUEST)], [{"role": "user", "content": REQUEST}], REQUEST]
    for number, messages in enumerate(spellings):
        model = ScriptedModel([Say(f"I was told {PLANTED.reply}.")])
        with closing(sqlite3.connect(scene.folder / f"raw{number}.db", check_same_thread=False)) as database:
            machine = build_graph(SqliteSaver(database, serde=serializer()), model=model)
            context = AgentContext(workspace=str(scene.root), protocol=protocol.value)
            config: Any = {"configurable": {"thread_id": "t"}}
            state: Any = {"messages": messages}
            values = machine.invoke(state, config, context=context)
            scene.note_files(f"raw {number}: database")
        scene.places[f"raw {number}: values"] = repr(values)
        scene.places[f"raw {number}: prompts"] = repr(model.calls)


@pytest.mark.parametrize(
    ("run", "protocol"), [(session_run, Protocol.NATIVE), (cassette_run, Protocol.NATIVE), (raw_run, Protocol.TEXT)]
)
def test_run_writes_no_secret(scene: Scene, run: Any, protocol: Protocol) -> None:
    run(scene, protocol)
    assert scene.leaks() == {}


@slow
@pytest.mark.usefixtures("no_redaction")
def test_without_redaction_secrets_are_found_everywhere(scene: Scene) -> None:
    session_run(scene, Protocol.TEXT)
    leaks = scene.leaks()
    places = {"requests", "events", "outcome", "messages", "changes and plan", "kept results", "database", "all files"}
    assert places - set(leaks) == set()
    assert {name for name, _ in PLANTED.items()} - leaks["events"] - leaks["database"] == NOT_BY_REDACTION

    cassette_run(scene, Protocol.NATIVE)
    assert scene.leaks()["cassette"] >= {"request", "source_file", "json_file"}

    raw_run(scene, Protocol.NATIVE)
    raw = {f"raw {number}: {place}" for number in range(3) for place in ("database", "values", "prompts")}
    assert raw - set(scene.leaks()) == set()
