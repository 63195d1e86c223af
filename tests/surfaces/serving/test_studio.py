"""The server of `make studio`, as a person uses it in LangGraph Studio and a client over HTTP."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_core.messages import HumanMessage
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command

from mendgraph import AgentContext
from mendgraph.graph.machine.routes import NODES, TRANSITIONS
from tests.doubles.replies import Say
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tool_use import in_protocol, use
from tests.extent import slow
from tests.langchain.embedding import REPAIR, workspace
from tests.sandboxes import sandbox_problem
from tests.scenarios.sample_repair import CALC, DONE, EDIT, MENDED, READ, TASK
from tests.surfaces.serving.studio import Studio, native_server
from tests.vocabulary import JsonMap, Protocol
from tests.workspace_files import changed_files, write_files

pytestmark = pytest.mark.studio


@slow
def test_graph_is_drawn_completely(studio: Studio) -> None:
    [assistant] = studio.client.assistants.search(graph_id="mendgraph")
    drawn: Any = studio.client.assistants.get_graph(assistant["assistant_id"])
    assert {node["id"] for node in drawn["nodes"]} == {"__start__", "__end__", *NODES}
    assert {(edge["source"], edge["target"]) for edge in drawn["edges"]} == {(t.source, t.target) for t in TRANSITIONS}
    targets = {source: [t.target for t in TRANSITIONS if t.source == source] for source in NODES}
    branching = {edge["source"] for edge in drawn["edges"] if edge.get("conditional")}
    assert branching == {source for source, ways in targets.items() if len(ways) > 1}
    labels = {label for edge in drawn["edges"] for label in edge.get("data", "").split(", ")}
    assert labels == {t.label for t in TRANSITIONS}


def test_thread_is_run_and_continued(studio: Studio, tmp_path: Path) -> None:
    write_files(tmp_path, CALC)
    thread: Any = studio.client.threads.create()
    with native_server(use(READ), use(EDIT), DONE, Say("You are welcome.")) as model:
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


@slow
def test_run_is_streamed_step_by_step(studio: Studio, tmp_path: Path) -> None:
    write_files(tmp_path, CALC)
    thread: Any = studio.client.threads.create()
    path: list[str] = []
    custom: list[JsonMap] = []
    with native_server(use(READ), Say("It subtracts.")) as model:
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


# --- The form


@slow
def test_context_fields_have_help_defaults_and_limits(studio: Studio) -> None:
    [assistant] = studio.client.assistants.search(graph_id="mendgraph")
    schemas: Any = studio.client.assistants.get_schemas(assistant["assistant_id"])
    assert set(schemas["input_schema"]["properties"]) == {"messages"}
    assert set(schemas["state_schema"]["properties"]) > {"messages", "outcome", "verdicts", "loop"}
    fields = schemas["context_schema"]["properties"]
    assert set(fields) == set(AgentContext.model_fields)
    assert [name for name, field in fields.items() if not field.get("description")] == []
    assert [name for name, field in fields.items() if "default" not in field] == []
    unlimited = [
        name
        for name, field in fields.items()
        for kind in field.get("anyOf", [field])
        if kind.get("type") in {"integer", "number"} and not {"minimum", "exclusiveMinimum"} & set(kind)
    ]
    assert unlimited == []
    assert (fields["max_calls_per_turn"]["minimum"], fields["max_calls_per_turn"]["maximum"]) == (1, 1_000)
    assert fields["mode"]["enum"] == ["read-only", "plan", "ask", "auto"]
    AgentContext.model_validate({name: field["default"] for name, field in fields.items()})


CONTEXTS: tuple[tuple[JsonMap, str], ...] = (
    ({"workspace": "/"}, "The workspace '/' is outside "),
    ({"workspace": "no/such"}, "no/such' does not exist: create the folder, or name another one."),
    ({"workspace": "a\0b"}, "embedded null byte."),
    ({"workspce": "elsewhere"}, "workspce: there is no such setting (did you mean workspace?)."),
    ({"max_cost": 1}, "max_cost: there is no such setting"),
    ({"workspace": ""}, "String should have at least 1 character"),
    ({"max_calls_per_turn": 0}, "max_calls_per_turn: must be at least 1."),
    ({"max_cost_usd": "NaN"}, "max_cost_usd: must be a finite number."),
    ({"mode": "root"}, "mode: must be 'read-only', 'plan', 'ask' or 'auto'."),
    ({"base_url": "http://me:secret@host/v1"}, "base_url must not contain a user name or password"),
    ({"response_format": {"$ref": "http://169.254.169.254/x"}}, "response_format cannot be followed"),
    ({"role": "root"}, "does not allow its clients what the request sets: role."),
    ({"tool_quotas": {"no_such_tool": 1}}, "no_such_tool"),
)


@slow
def test_invalid_context_is_refused_by_name(studio: Studio, tmp_path: Path) -> None:
    """None of them causes a model call, and no secret is quoted."""
    with native_server() as model:

        def refused(context: JsonMap) -> str:
            client_context = studio.context(tmp_path, model, context)
            ended: Any = studio.client.runs.wait(
                studio.thread()["thread_id"],
                "mendgraph",
                input=studio.request("Hi."),
                context=client_context,
                raise_error=False,
            )
            return str(ended["outcome"]["message"] if "outcome" in ended else ended["__error__"]["message"])

        with ThreadPoolExecutor(len(CONTEXTS)) as people:
            answers = list(people.map(refused, [context for context, _ in CONTEXTS]))
        assert model.requests == []
    assert [
        (context, answer) for (context, words), answer in zip(CONTEXTS, answers, strict=True) if words not in answer
    ] == []
    assert "secret@" not in json.dumps(answers) + studio.new_log()


@slow
def test_client_cannot_widen_the_context_in_any_other_way(studio: Studio, tmp_path: Path) -> None:
    """Not in assistants, `configurable` or the state: its endpoint is not called, and nothing is written."""
    turn_input, call = studio.request("Hi."), {"tool": "write_file", "arguments": {"path": "forged", "content": ""}}
    with (
        native_server(Say("Hello.")) as ours,
        native_server() as theirs,
        httpx.Client(base_url=studio.url, timeout=60) as client,
    ):
        wide = studio.context(tmp_path, theirs, {"base_url": theirs.base_url})
        thread = studio.thread()["thread_id"]
        studio.run({"thread_id": thread}, tmp_path, ours, input=turn_input)

        def message_of(path: str, body: JsonMap) -> str:
            answer = client.post(path, json={"assistant_id": "mendgraph", **body})
            return str((answer.json().get("outcome") or {}).get("message") or answer.text)

        refused = "does not allow its clients what the request sets: base_url."
        for more in ({"context": wide}, {"config": {"configurable": {**wide, "graph_id": None}}}):
            assistant = client.post("/assistants", json={"graph_id": "mendgraph", **more}).json()["assistant_id"]
            assert refused in message_of("/runs/wait", {"assistant_id": assistant, "input": turn_input})
            client.delete(f"/assistants/{assistant}")
            assert refused in message_of("/runs/wait", {"input": turn_input, **more})
        assert refused in message_of("/runs/wait", {"assistant_id": "own", "input": turn_input, "context": wide})
        written, unwritable = {"values": {"context": wide}, "as_node": "begin_turn"}, "context cannot be written"
        assert unwritable in message_of(f"/threads/{thread}/state", written)
        steps = {"metadata": {"graph_id": "mendgraph"}, "supersteps": [{"updates": [written]}]}
        assert unwritable in message_of("/threads", steps)
        run = f"/threads/{thread}/runs/wait"
        assert "__error__" in message_of(run, {"command": {"update": {"context": wide}, "goto": "call_model"}})
        sent = {"node": "call_model", "input": {"context": wide, **turn_input}}
        assert "__error__" in message_of(run, {"command": {"goto": sent}})
        forged = {"items": [call], "verdicts": [{"kind": "allow"}]}
        assert "__error__" in message_of(run, {"command": {"update": forged, "goto": "execute_tools"}})
    assert (theirs.requests, list(tmp_path.iterdir())) == ([], [])


@slow
def test_unknown_setting_is_never_ignored(studio: Studio) -> None:
    """Nor in `configurable`, where the keys that servers and clients add are no settings."""
    turn_input = studio.request("Hi.")
    with native_server(Say("Hello.")) as model:
        fits = {**studio.context(studio.log.parent, model), "user_id": "ann", "x-tag": "1", "__seen": True}
        ended: list[Any] = [
            studio.client.runs.wait(None, "mendgraph", input=turn_input, config={"configurable": configurable})
            for configurable in ({**fits, "workspce": "elsewhere"}, fits)
        ]
    assert "workspce: there is no such setting (did you mean workspace?)." in ended[0]["outcome"]["message"]
    assert ended[1]["outcome"]["answer"] == "Hello."


@slow
def test_relative_workspace_is_in_the_servers_folder(studio: Studio) -> None:
    thread = studio.thread()
    (studio.log.parent / "inside").mkdir()
    with native_server(Say("Hello.")) as model:
        studio.run(thread, Path("inside"), model, input=studio.request("Hi."))
    assert studio.state(thread)["values"]["context"]["workspace"] == str(studio.log.parent / "inside")


# --- Answers to questions

NEW: tuple[str, JsonMap] = ("write_file", {"path": "new.txt", "content": "one\n"})
OTHER = {"path": "new.txt", "content": "two\n"}
BOTH = {"calc.py": MENDED, "new.txt": "one\n"}
STOPPED = ("BUDGET_STOP", "cancelled")
ASKED_AGAIN = ("", "")
FINISHED = ("FINISHED", "answered")


ANSWERS: tuple[tuple[Any, dict[str, str], tuple[str, str]], ...] = (
    ("approve", BOTH, FINISHED),
    ("approve_for_run", BOTH, FINISHED),
    ("reject", {}, FINISHED),
    ("stop", {}, STOPPED),
    ("no such word", {}, ASKED_AGAIN),
    ({"decisions": {"0": {"action": "approve"}, "1": {"action": "reject"}}}, {"calc.py": MENDED}, FINISHED),
    ({"decisions": {"1": {"action": "edit", "arguments": OTHER}}}, {"new.txt": "two\n"}, FINISHED),
    ({"decisions": [{"type": "approve"}, {"type": "approve"}]}, BOTH, FINISHED),
    ([{"type": "accept", "args": None}], BOTH, FINISHED),
    ([{"type": "ignore", "args": None}], {}, FINISHED),
)
"""What a person answers to `edit_file` and `write_file`, the files that are changed by then, and how the run ends."""


@slow
def test_each_answer_to_an_approval_request_has_its_effect(studio: Studio, tmp_path: Path) -> None:
    """In parallel, as several people at one server; nothing is changed before the answer."""

    def play(number: int) -> tuple[Any, Any, tuple[str, str]]:
        folder, thread = tmp_path / str(number), studio.thread()
        write_files(folder, CALC)
        with native_server(use(EDIT, NEW), DONE) as model:
            studio.run(thread, folder, model, input=studio.request(TASK), context={"mode": "ask"})
            tools = [call["tool"] for call in studio.question(thread)["calls"]]
            before, answer = changed_files(folder, CALC), ANSWERS[number][0]
            ended: Any = studio.client.runs.wait(thread["thread_id"], "mendgraph", command={"resume": answer})
        outcome = ended["outcome"]
        ends = (outcome["kind"], outcome["reason"]) if outcome else ASKED_AGAIN
        return (before, tools), changed_files(folder, CALC), ends

    with ThreadPoolExecutor(len(ANSWERS)) as people:
        played = list(people.map(play, range(len(ANSWERS))))
    first: Any = ({}, ["edit_file", "write_file"])
    assert played == [(first, files, ends) for _, files, ends in ANSWERS]
    assert studio.complaints() == []


@slow
def test_unanswered_approval_request_is_dropped_by_the_next_message(studio: Studio, tmp_path: Path) -> None:
    """Also by "Mark as Resolved" in a chat page, which sends the thread to its end."""
    write_files(tmp_path, CALC)
    thread = studio.thread()
    with native_server(use(EDIT), Say("Good.")) as model:
        studio.run(thread, tmp_path, model, input=studio.request(TASK), context={"mode": "ask"})
        assert len(studio.question(thread)["calls"]) == 1
        ended: Any = studio.client.runs.wait(thread["thread_id"], "mendgraph", command={"goto": "__end__"})
        assert ended["outcome"] is None
        last = studio.run(thread, tmp_path, model, input=studio.request("Leave it."))
    assert (last["outcome"]["answer"], changed_files(tmp_path, CALC)) == ("Good.", {})
    assert studio.complaints() == []


# --- What is shown of a run

RUN: tuple[str, JsonMap] = ("run_command", {"argv": ["true"]})
SEARCH: tuple[str, JsonMap] = ("search_files", {"pattern": "return"})


@slow
def test_nothing_blocks_the_event_loop_of_the_server(studio: Studio, tmp_path: Path) -> None:
    """A search, an edit and a command that a person approves, and a missing embedded model."""

    def worked(folder: Path) -> str:
        write_files(folder, CALC)
        thread = studio.thread()
        run = [] if sandbox_problem() else [RUN]
        checked = {"mode": "ask", "evidence": True, "read_ahead": True, "offer": "all", "allowed_programs": ["true"]}
        with native_server(use(READ, SEARCH), use(EDIT, *run), DONE, Say("You are welcome.")) as model:
            studio.run(thread, folder, model, input=studio.request(TASK), context=checked)
            ended: Any = studio.client.runs.wait(thread["thread_id"], "mendgraph", command={"resume": "approve"})
        return f"{ended['outcome']['answer']} {changed_files(folder, CALC) == {'calc.py': MENDED}}"

    def without_model(folder: Path) -> str:
        folder.mkdir()
        with native_server() as unused:
            ended = studio.run(
                studio.thread(),
                folder,
                unused,
                input=studio.request(TASK),
                context={"model": "local", "base_url": None},
            )
        return str(ended["outcome"]["reason"])

    with ThreadPoolExecutor(3) as people:
        runs = [people.submit(worked, tmp_path / name) for name in ("one", "two")]
        runs.append(people.submit(without_model, tmp_path / "three"))
        assert [run.result(120) for run in runs] == ["add now adds. True", "add now adds. True", "provider_failed"]
    assert studio.complaints() == []


# --- Behind `RemoteGraph`: a graph here, the agent in a server

ASKED: Any = {"messages": [HumanMessage(TASK)]}


def repair_model() -> ScriptedServer:
    return ScriptedServer([in_protocol(reply, Protocol.NATIVE) for reply in REPAIR])


@slow
def test_approval_request_in_a_server_is_answered_through_remote_graph(studio: Studio, tmp_path: Path) -> None:
    remote = RemoteGraph("mendgraph", sync_client=studio.client)
    thread: Any = {"configurable": {"thread_id": studio.thread()["thread_id"]}}
    with repair_model() as server:
        context = studio.context(workspace(tmp_path), server, {"mode": "ask"})
        parts = list(remote.stream(ASKED, thread, context=context, stream_mode="updates"))
        (question,) = next(part["__interrupt__"] for part in parts if "__interrupt__" in part)
        assert [call["tool"] for call in question["value"]["calls"]] == ["edit_file"]
        assert changed_files(tmp_path, CALC) == {}
        result: Any = remote.invoke(Command(resume="approve"), thread, context=context)
    assert result["outcome"]["kind"] == "FINISHED"
    assert changed_files(tmp_path, CALC) == {"calc.py": MENDED}
