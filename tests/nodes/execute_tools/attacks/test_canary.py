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

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.state import serializer
from mendgraph.graph.runs.run import Session
from mendgraph.nodes.records import OutcomeKind, Protocol
from tests import cassettes
from tests.cassettes import cassette
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import ScriptedServer
from tests.nodes.execute_tools.attacks.canaries import PLANTED, everything_below, leaks
from tests.nodes.execute_tools.attacks.canary_scene import (
    PROTOCOLS,
    REQUEST,
    Scene,
    new_scene,
    note_requests,
    note_result,
    over_a_database,
    script,
    without_redaction,
)
from tests.runs.scenario import message_of, use

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


def cassette_run(scene: Scene, protocol: Protocol) -> None:
    """The same while its endpoint is recorded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MENDGRAPH_RECORD", "1")
        live = cassettes.scripted(*script(protocol))
        with cassette("canary/run", live, library=scene.folder / "cassettes") as tape:
            over_a_database(scene, protocol, tape.base_url)
    # What an endpoint says is recorded as it was said, so only what we sent is looked for.
    requests = [json.dumps(each, ensure_ascii=False) for each in tape.requests]
    scene.places["cassette"] = "\n".join(requests)


def raw_run(scene: Scene, protocol: Protocol) -> None:
    """The graph's own `invoke`: what a person typed is in the input, and so in the first checkpoint."""
    spellings: list[Any] = [
        [HumanMessage(REQUEST)],
        [HumanMessage([{"type": "text", "text": REQUEST}])],
        [{"role": "user", "content": REQUEST}],
        [("user", REQUEST)],
        REQUEST,
    ]
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
    ("run", "protocol"),
    [
        (session_run, Protocol.TEXT),
        (session_run, Protocol.NATIVE),
        (cassette_run, Protocol.NATIVE),
        (raw_run, Protocol.TEXT),
    ],
)
def test_a_run_writes_no_secret(scene: Scene, run: Run, protocol: Protocol) -> None:
    assert found_by(run, scene, protocol) == {}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_work_is_done_and_the_files_keep_their_secrets(scene: Scene, protocol: Protocol) -> None:
    with ScriptedServer(script(protocol)) as server:
        _, result = over_a_database(scene, protocol, server.base_url)
        assert server.remaining == 0
    assert result.outcome.kind is OutcomeKind.FINISHED
    assert {"app.py", "settings.json"} <= set(result.outcome.changed_files)
    before = PLANTED.files()
    now = {name: (scene.root / name).read_text(encoding="utf-8") for name in before}
    assert now == {
        **before,
        "app.py": before["app.py"].replace("10", "20").replace("= 3", "= 4"),
        "settings.json": before["settings.json"].replace('"limit": 10', '"limit": 20'),
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_control_without_redaction_a_session_leaks_everywhere(
    scene: Scene, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_redaction(monkeypatch)
    found = found_by(session_run, scene, protocol)
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
    monkeypatch.setattr(cassettes, "scrubbed", lambda body: body)
    monkeypatch.setattr("mendgraph.graph.cassettes.player.scrubbed", lambda body, _keys=(): body)
    assert found_by(cassette_run, scene, Protocol.NATIVE)["cassette"] >= {"request", "source_file", "json_file"}
    raw = found_by(raw_run, scene, Protocol.NATIVE)
    assert {name for name in raw if name.startswith("raw")} == {
        f"raw {number}: {place}" for number in range(5) for place in ("database", "values", "prompts")
    }


def test_control_without_guard_the_denied_file_would_be_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    without_redaction(monkeypatch)
    model = ScriptedModel([message_of(use(("read_file", {"path": ".env"})), Protocol.NATIVE), Say("Done.")])
    with Session(AgentContext(workspace=str(scene.root)), model=model, rules=()) as session:
        list(session.stream("Look."))
    assert leaks({"prompts": repr(model.calls)}) == {"prompts": {"denied_file"}}


# --- The search itself


def test_no_secret_stands_as_a_whole_in_a_source_file() -> None:
    here = Path(__file__).parent
    assert leaks({path.name: path.read_bytes() for path in here.glob("*.py")}) == {}


def test_each_secret_is_one_of_its_own() -> None:
    for name, secret in PLANTED.items():
        assert leaks({"a": f"x{secret}y", "b": json.dumps(secret), "c": f"x{secret[:14]}y"}) == {
            key: {name} for key in "abc"
        }
