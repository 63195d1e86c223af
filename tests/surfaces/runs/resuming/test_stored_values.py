"""A run stores the values that it uses: a resumed run sees the same texts and numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from mendgraph import AgentContext, build_graph
from mendgraph.graph.persistence.store import Store
from mendgraph.nodes.workspace.store.database import StoreError
from tests.doubles.replies import Calls, Message, Say
from tests.doubles.scripted_model import ScriptedModel
from tests.extent import slow

BIG = "1" + "0" * 30


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.txt").write_text("hello")
    opened = Store(str(tmp_path / "project"))
    yield opened
    opened.close()


def run_turn(store: Store, root: Path, script: list[Message], request: Any = "Hi.", **settings: Any) -> Any:
    """The state after a turn of a new thread as it was returned; what is stored is the same."""
    machine = build_graph(store.saver, model=ScriptedModel(script))
    config: Any = {"configurable": {"thread_id": repr((script, request))[:100]}}
    context = AgentContext(workspace=str(root / "project"), audit=False, **{"protocol": "native"} | settings)
    returned = machine.invoke({"messages": [HumanMessage(request)]}, config, context=context)
    stored = machine.get_state(config).values
    assert {name: stored[name] for name in returned} == returned
    return stored


@pytest.mark.parametrize(
    ("message", "stored"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("two \ud83d\ude00 halves", "two 😀 halves"),
        ([{"type": "text", "text": "a\ud800"}], "a\ufffd"),
    ],
    ids=["half a character", "two halves", "a part of a message"],
)
def test_lone_surrogates_are_replaced_before_they_are_used(
    store: Store, tmp_path: Path, message: Any, stored: str
) -> None:
    """Those of a person and of a model."""
    assert run_turn(store, tmp_path, [], message)["messages"][0].text == stored
    if isinstance(message, str):
        values = run_turn(store, tmp_path, [Say(message)])
        assert (values["messages"][-1].content, values["outcome"].answer) == (stored, stored)


ARGUMENTS = (
    '{"path": "\\ud800"}',
    '{"pa\\udfff": "a.txt"}',
    f'{{"path": "a.txt", "limit": {BIG}}}',
    f'{{"path": "a.txt", "limit": -{BIG}}}',
    f'{{"path": {{"a": [{BIG}]}}}}',
)


@slow
@pytest.mark.parametrize("protocol", ["native", "text"])
def test_arguments_that_cannot_be_stored_are_a_malformed_call(store: Store, tmp_path: Path, protocol: str) -> None:
    for arguments in ARGUMENTS:
        reply = Calls([("read_file", arguments)]) if protocol == "native" else Say(f"tool: read_file({arguments})")
        values = run_turn(store, tmp_path, [reply], protocol=protocol)
        [correction] = values["healing_attempts"]
        assert "INVALID_JSON_SYNTAX" in correction.corrective_prompt, arguments
        assert values["outcome"].kind == "FINISHED"


@pytest.mark.parametrize(
    "settings",
    [{"response_format": {"const": 10**30}}, {"tool_quotas": {"read_file": 10**30}}, {"tool_quotas": {"\ud800": 1}}],
    ids=["schema", "quota", "name"],
)
def test_settings_that_cannot_be_stored_are_refused_before_the_run(store: Store, tmp_path: Path, settings: Any) -> None:
    with pytest.raises(StoreError, match="A value cannot be stored with the run"):
        run_turn(store, tmp_path, [], **settings)
