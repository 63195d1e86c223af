"""What a run stores is what it works with: a resumed run sees neither other words nor other numbers."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.persistence.store import Store
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.records import Correction, OutcomeKind
from tests.doubles.replies import Calls, Message, Say
from tests.doubles.scripted_model import ScriptedModel

BIG = "1" + "0" * 30
CONFIG: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.txt").write_text("hello")
    opened = Store(str(tmp_path / "project"))
    yield opened
    opened.close()


def played(store: Store, root: Path, script: list[Message], request: Any = "Hi.", **settings: Any) -> Any:
    """The state after a turn as it was returned; what is stored is the same."""
    machine = build_graph(store.saver, model=ScriptedModel(script))
    context = AgentContext(workspace=str(root / "project"), audit=False, **{"protocol": "native"} | settings)
    returned = machine.invoke({"messages": [HumanMessage(request)]}, CONFIG, context=context)
    stored = machine.get_state(CONFIG).values
    assert {name: stored[name] for name in returned} == returned
    return stored


WORDS: dict[str, tuple[Any, str]] = {
    "half a character": ("a\ud800b", "a\ufffdb"),
    "two halves": ("a\ud83d\ude00b", "a😀b"),
    "a part of a message": ([{"type": "text", "text": "a\ud800"}], "a\ufffd"),
}


@pytest.mark.parametrize(("said", "stored"), WORDS.values(), ids=WORDS)
def test_half_characters_of_a_person_are_replaced_before_anybody_works_with_them(
    store: Store, tmp_path: Path, said: Any, stored: str
) -> None:
    assert played(store, tmp_path, [], said)["messages"][0].text == stored


def test_half_characters_of_a_model_are_replaced(store: Store, tmp_path: Path) -> None:
    """Those that stand there as they are, in calls as well; how they may be written in JSON is told below."""
    values = played(store, tmp_path, [Say("a\ud800b")])
    assert (values["messages"][-1].content, values["outcome"].answer) == ("a\ufffdb", "a\ufffdb")


ARGUMENTS = {
    "half a character": '{"path": "\\ud800"}',
    "half a character in a name": '{"pa\\udfff": "a.txt"}',
    "an integer beyond 64 bits": f'{{"path": "a.txt", "limit": {BIG}}}',
    "a negative one": f'{{"path": "a.txt", "limit": -{BIG}}}',
    "one deep inside": f'{{"path": {{"a": [{BIG}]}}}}',
}


WAYS = [(protocol, arguments) for protocol in ("native", "text") for arguments in ARGUMENTS.values()]


@pytest.mark.parametrize(("protocol", "arguments"), WAYS)
def test_arguments_that_cannot_be_stored_are_a_malformed_call(
    store: Store, tmp_path: Path, protocol: Any, arguments: str
) -> None:
    reply = Calls([("read_file", arguments)]) if protocol == "native" else Say(f"tool: read_file({arguments})")
    model_saw: list[Correction] = []
    machine = build_graph(store.saver, model=ScriptedModel([reply]))
    context = AgentContext(workspace=str(tmp_path / "project"), audit=False, protocol=protocol)
    request: Any = {"messages": [HumanMessage("Hi.")]}
    for part in machine.stream(request, CONFIG, context=context, stream_mode="updates"):
        model_saw += part.get("heal", {}).get("corrections", ())
    assert [type(each) for each in model_saw] == [Correction]
    assert "INVALID_JSON_SYNTAX" in model_saw[0].prompt
    assert machine.get_state(CONFIG).values["outcome"].kind is OutcomeKind.FINISHED


@pytest.mark.parametrize(
    "settings",
    [{"response_format": {"const": 10**30}}, {"tool_quotas": {"read_file": 10**30}}, {"tool_quotas": {"\ud800": 1}}],
    ids=["schema", "quota", "name"],
)
def test_settings_that_cannot_be_stored_are_refused_before_anything_runs(
    store: Store, tmp_path: Path, settings: Any
) -> None:
    with pytest.raises(StoreError, match="A value cannot be stored with the run"):
        played(store, tmp_path, [], **settings)
    with suppress(StoreError):  # a step that had begun meanwhile may have written them as well
        store.saver.flush()
