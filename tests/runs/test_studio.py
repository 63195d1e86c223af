"""What LangGraph Studio sees: the server that `make studio` starts, without a key, a browser or the network."""

import json
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.routes import NODES, TRANSITIONS
from mendgraph.nodes.records import JsonMap
from tests.doubles.replies import Say
from tests.runs.playing import changed_files, write_files
from tests.runs.scenario import use
from tests.runs.scenarios_of_work import CALC, DONE, EDIT, MENDED, READ, TASK
from tests.runs.studio import Studio, told

pytestmark = pytest.mark.studio


def test_the_graph_is_drawn_whole(studio: Studio) -> None:
    [assistant] = studio.client.assistants.search(graph_id="mendgraph")
    drawn: Any = studio.client.assistants.get_graph(assistant["assistant_id"])
    assert {node["id"] for node in drawn["nodes"]} == {"__start__", "__end__", *NODES}
    assert {(edge["source"], edge["target"]) for edge in drawn["edges"]} == {(t.source, t.target) for t in TRANSITIONS}
    targets = {source: [t.target for t in TRANSITIONS if t.source == source] for source in NODES}
    branching = {edge["source"] for edge in drawn["edges"] if edge.get("conditional")}
    assert branching == {source for source, ways in targets.items() if len(ways) > 1}
    labels = {label for edge in drawn["edges"] for label in edge.get("data", "").split(", ")}
    assert labels == {t.label for t in TRANSITIONS}


def test_the_form_describes_and_bounds_its_fields(studio: Studio) -> None:
    [assistant] = studio.client.assistants.search(graph_id="mendgraph")
    schemas: Any = studio.client.assistants.get_schemas(assistant["assistant_id"])
    fields = schemas["context_schema"]["properties"]
    assert set(fields) == set(AgentContext.model_fields)
    assert [name for name, field in fields.items() if not field.get("description")] == []
    assert (fields["max_calls_per_turn"]["minimum"], fields["max_calls_per_turn"]["maximum"]) == (1, 1_000)
    assert fields["mode"]["enum"] == ["read-only", "ask", "auto"]
    assert set(schemas["input_schema"]["properties"]) == {"messages"}
    assert set(schemas["output_schema"]["properties"]) == {"messages", "outcome", "changes", "plan", "spending"}
    assert set(schemas["state_schema"]["properties"]) > {"messages", "outcome", "verdicts", "loop"}


def test_a_thread_is_run_and_goes_on(studio: Studio, tmp_path: Path) -> None:
    write_files(tmp_path, CALC)
    thread: Any = studio.client.threads.create()
    with told(use(READ), use(EDIT), DONE, Say("You are welcome.")) as model:
        first = studio.run(thread, tmp_path, model, input=studio.request(TASK))
        second = studio.run(thread, tmp_path, model, input=studio.request("Thank you."))
        assert model.remaining == 0
    assert (first["outcome"]["kind"], first["outcome"]["changed_files"]) == ("FINISHED", ["calc.py"])
    assert (second["outcome"]["answer"], second["outcome"]["usage"]["total_calls"]) == ("You are welcome.", 4)
    assert changed_files(tmp_path, CALC) == {"calc.py": MENDED}
    state: Any = studio.client.threads.get_state(thread["thread_id"])
    assert state["values"]["outcome"] == second["outcome"]
    assert [message["type"] for message in state["values"]["messages"]] == [
        *("human", "ai", "tool", "ai", "tool", "ai"),
        *("human", "ai"),
    ]
    assert studio.complaints() == []


def test_a_person_is_asked_and_answers(studio: Studio, tmp_path: Path) -> None:
    """Without the context: what the turn began with is in its state, whatever the server fills in for a resume."""
    write_files(tmp_path, CALC)
    thread: Any = studio.client.threads.create()
    with told(use(EDIT), DONE) as model:
        studio.run(thread, tmp_path, model, input=studio.request(TASK), context={"mode": "ask"})
        asked: Any = studio.client.threads.get_state(thread["thread_id"])
        [question] = [each["value"] for task in asked["tasks"] for each in task["interrupts"]]
        assert (asked["next"], question["calls"][0]["path"], changed_files(tmp_path, CALC)) == (
            ["guard"],
            "calc.py",
            {},
        )
        resumed: Any = studio.client.runs.wait(thread["thread_id"], "mendgraph", command={"resume": "approve"})
    assert (resumed["outcome"]["kind"], changed_files(tmp_path, CALC)) == ("FINISHED", {"calc.py": MENDED})
    assert studio.complaints() == []


def test_a_run_is_watched_step_by_step(studio: Studio, tmp_path: Path) -> None:
    write_files(tmp_path, CALC)
    thread: Any = studio.client.threads.create()
    path: list[str] = []
    custom: list[JsonMap] = []
    with told(use(READ), Say("It subtracts.")) as model:
        context: Any = studio.context(tmp_path, model)
        parts = studio.client.runs.stream(
            thread["thread_id"],
            "mendgraph",
            input=studio.request("What does calc.py do?"),
            context=context,
            stream_mode=["updates", "custom", "messages-tuple"],
        )
        for part in parts:
            data: Any = part.data
            if part.event == "updates":
                path += data
            elif part.event == "custom":
                custom.append(data)
    step = ["guard", "execute_tools", "loop_check"]
    assert path == ["begin_turn", "call_model", "parse", *step, "call_model", "parse", "FINISHED"]
    assert "".join(part["text"] for part in custom if part["type"] == "text") == "It subtracts."
    assert "tool.invoke.ok" in [part["name"] for part in custom if part["type"] == "trace"]
    assert studio.complaints() == []


def test_a_context_that_does_not_fit_is_refused_by_name(studio: Studio, tmp_path: Path) -> None:
    thread: Any = studio.client.threads.create()
    context: Any = {"workspace": str(tmp_path), "max_calls_per_turn": 0}
    ended: Any = studio.client.runs.wait(
        thread["thread_id"], "mendgraph", input=studio.request("Hi."), context=context, raise_error=False
    )
    assert "max_calls_per_turn" in json.dumps(ended)
