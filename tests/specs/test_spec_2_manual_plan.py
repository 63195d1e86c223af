"""Spec 2's manual test plan and its acceptance criteria, by machine: each on a whole run."""

import json
from pathlib import Path

import pytest

from mendgraph.graph.cli import main
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.events import Ended, Event, StepDone, Text
from mendgraph.graph.runs.run import Session
from mendgraph.nodes.records import JsonMap, Protocol
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import Chunked, Reply, Say, ScriptedServer
from tests.doubles.tool_use import message_of, use
from tests.workspace_files import changed_files, write_files

FILES = {"calc.py": "a = 1\n", "names.txt": "b = 2\n", "A/one.txt": "1\n", "B/two.txt": "2\n"}
PROTOCOLS = [Protocol.TEXT, Protocol.NATIVE]

Call = tuple[str, JsonMap]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project, beside a folder that is none of its business."""
    write_files(tmp_path / "outside", {"secret.txt": "swordfish\n"})
    write_files(tmp_path / "root", FILES)
    return tmp_path / "root"


def ask(root: Path, *calls: Call, protocol: Protocol = Protocol.NATIVE) -> tuple[list[JsonMap], ScriptedModel]:
    """The results that a model gets for these calls of one reply, and the model, which was asked twice."""
    model = ScriptedModel([message_of(use(*calls), protocol), Say("Done.")])
    context = AgentContext(workspace=str(root), protocol=protocol.value, evidence=False)
    with Session(context, model=model) as session:
        events = list(session.stream("Do it."))
    assert len(model.calls) == 2
    results = [result for event in events if isinstance(event, StepDone) for result in event.results]
    return [result.result.as_map() for result in results], model


def test_each_tool_does_its_work(root: Path) -> None:
    write: Call = ("write_file", {"path": "A/new.txt", "content": "new\n"})
    results, _ = ask(root, write, ("read_file", {"path": "A/one.txt"}), ("list_files", {"path": "A"}))
    assert [result["ok"] for result in results] == [True] * 3
    assert (root / "A/new.txt").read_text(encoding="utf-8") == "new\n"
    assert results[1]["data"]["content"] == "1\n"
    assert results[2]["data"]["entries"] == ["A/new.txt", "A/one.txt"]


# --- 1. Sandboxing


@pytest.mark.parametrize(
    "call",
    [
        ("read_file", {"path": "../"}),
        ("read_file", {"path": "../outside/secret.txt"}),
        ("read_file", {"path": "/etc/hosts"}),
        ("read_file", {"path": "to_etc/hosts"}),
        ("read_file", {"path": "to_outside/secret.txt"}),
        ("read_file", {"path": "secret_link.txt"}),
        ("write_file", {"path": "../new.txt", "content": "x"}),
        ("write_file", {"path": "to_outside/new.txt", "content": "x"}),
        ("write_file", {"path": "secret_link.txt", "content": "x"}),
        ("edit_file", {"path": "to_outside/secret.txt", "old_str": "sword", "new_str": "x"}),
        ("list_files", {"path": ".."}),
        ("list_files", {"path": "/"}),
        ("list_files", {"path": "to_outside"}),
    ],
    ids=lambda call: f"{call[0]} {call[1]['path']}",
)
def test_nothing_outside_the_root_is_read_listed_or_written(root: Path, call: Call) -> None:
    outside = root.parent / "outside"
    (root / "to_etc").symlink_to("/etc")
    (root / "to_outside").symlink_to(outside)
    (root / "secret_link.txt").symlink_to(outside / "secret.txt")
    [result], model = ask(root, call)
    assert (result["ok"], result["error"]["code"]) == (False, "permission_denied")
    assert "relative path under '.'" in result["error"]["message"]
    assert "swordfish" not in str(model.calls)
    assert changed_files(outside, {"secret.txt": "swordfish\n"}) == {}


# --- 2. Multi-tool


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_calls_of_one_message_both_run_and_are_answered_at_once(root: Path, protocol: Protocol) -> None:
    calls = (("read_file", {"path": "calc.py"}), ("read_file", {"path": "names.txt"}))
    results, model = ask(root, *calls, protocol=protocol)
    assert [result["data"]["content"] for result in results] == ["a = 1\n", "b = 2\n"]
    sent = model.calls[1].prompt.messages[2:]
    assert [message["role"] for message in sent] == {
        Protocol.TEXT: ["assistant", "user"],
        Protocol.NATIVE: ["assistant", "tool", "tool"],
    }[protocol]
    answers = [line for message in sent[1:] for line in str(message["content"]).splitlines()]
    assert ["a = 1" in answers[0], "b = 2" in answers[1], len(answers)] == [True, True, 2]


def test_prompt_about_two_folders_takes_one_call_and_one_answer(root: Path) -> None:
    results, _ = ask(root, ("list_files", {"path": "A"}), ("list_files", {"path": "B"}))
    assert [result["data"]["entries"] for result in results] == [["A/one.txt"], ["B/two.txt"]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_three_calls_are_made_one_after_the_other_in_their_order(root: Path, protocol: Protocol) -> None:
    """The i-th answer is that of the i-th call, also where one of them fails, and each call sees what those did."""
    calls = (
        ("write_file", {"path": "new.txt", "content": "written\n"}),
        ("read_file", {"path": "nope.py"}),
        ("read_file", {"path": "new.txt"}),
    )
    results, _ = ask(root, *calls, protocol=protocol)
    assert [result["ok"] for result in results] == [True, False, True]
    assert results[2]["data"]["content"] == "written\n"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tools_are_called_until_the_model_calls_none(root: Path, protocol: Protocol) -> None:
    replies = [message_of(use(("read_file", {"path": path})), protocol) for path in ("calc.py", "names.txt")]
    model = ScriptedModel([*replies, Say("Both.")])
    with Session(AgentContext(workspace=str(root), protocol=protocol.value), model=model) as session:
        session.work("Read.")
    assert len(model.calls) == 3


# --- 3. Streaming

LONG = "The answer is long: " + ", ".join(f"point {number}" for number in range(1, 40)) + "."


def test_long_answer_comes_bit_by_bit(root: Path) -> None:
    with ScriptedServer([Chunked(Say(LONG), 20)]) as server:
        context = AgentContext(workspace=str(root), base_url=server.base_url, model="m")
        with Session(context) as session:
            events: list[Event] = list(session.stream("Tell me everything."))
    texts = [event.text for event in events if isinstance(event, Text)]
    assert (max(map(len, texts)) <= 40, "".join(texts)) == (True, LONG)  # by the word: a secret may span pieces
    assert isinstance(events[-1], Ended)


def test_replies_in_chunks_are_one_message_each_of_the_history(root: Path) -> None:
    call = message_of(use(("read_file", {"path": "calc.py"})), Protocol.NATIVE)
    with ScriptedServer([Chunked(Say(LONG), 7), Chunked(call, 7), Say("Read."), Say("Bye.")]) as server:
        context = AgentContext(workspace=str(root), base_url=server.base_url, model="m", protocol="native")
        with Session(context) as session:
            for request in ("Tell me.", "Read.", "Go."):
                session.work(request)
        told = server.requests[-1]["messages"]
    said = [message for message in told if message["role"] == "assistant"]
    assert [message.get("content") or "" for message in said] == [LONG, "", "Read."]
    assert [len(message.get("tool_calls", ())) for message in said] == [0, 1, 0]


def test_terminal_shows_one_prefix_a_turn_and_no_json_of_calls(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replies: list[Reply] = [
        message_of(use(("read_file", {"path": "calc.py"})), Protocol.NATIVE),
        Chunked(Say(LONG), 20),
    ]
    with ScriptedServer(replies) as server:
        code = main(["--root", str(root), "--base-url", server.base_url, "--model", "m", "Tell me everything."])
    shown = capsys.readouterr().out
    assert (code, shown.count("mendgraph: "), shown.count(LONG)) == (0, 1, 1)
    assert "→ read_file" in shown
    assert '{"path"' not in shown


# --- 4. Error envelope


@pytest.mark.parametrize(
    ("path", "suggestions"),
    [("cal", ["calc.py"]), ("A/one", ["A/one.txt"]), ("clac.py", ["calc.py"]), ("CALC.PY", ["calc.py"])],
)
def test_missing_file_is_answered_with_names_that_are_there(root: Path, path: str, suggestions: list[str]) -> None:
    [result], _ = ask(root, ("read_file", {"path": path}))
    assert result == {
        "ok": False,
        "error": {
            "code": "not_found",
            "message": f"No such file: '{path}'. Did you mean '{suggestions[0]}'?",
            "suggestions": suggestions,
        },
    }


def test_debug_shows_calls_responses_and_decisions_in_json_on_standard_error(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: tuple[Call, ...] = (("read_file", {"path": "A/../../x"}), ("read_file", {"path": "calc.py"}))
    with ScriptedServer([message_of(use(*calls), Protocol.NATIVE), Say("Done.")]) as server:
        main(["--root", str(root), "--base-url", server.base_url, "--model", "m", "--debug", "Read this."])
    shown = capsys.readouterr()
    lines = [json.loads(line) for line in shown.err.splitlines() if line.startswith("{")]
    told = {event: [line for line in lines if line["event"] == event] for event in ("tool.call", "tool.response")}
    assert [(line["tool"], line["args"]["path"]) for line in told["tool.call"]] == [
        ("read_file", "A/../../x"), ("read_file", "calc.py"),
    ]  # fmt: skip
    assert [line["response"]["ok"] for line in told["tool.response"]] == [False, True]
    assert told["tool.response"][1]["response"]["data"]["content"] == "a = 1\n"
    [decision] = [line for line in lines if line["event"] == "sandbox.refused"]
    assert (decision["root"], decision["clean"], decision["relative"]) == (str(root), "../x", "../x")
    assert "{" not in shown.out
