"""Spec 2's manual test plan and its acceptance criteria, by machine: each on a whole run."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mendgraph import AgentContext, Ended, Event, Session, StepDone, Text
from mendgraph.graph.cli import main
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import Chunked, Reply, Say, ScriptedServer
from tests.doubles.tool_use import message_of, use
from tests.vocabulary import Protocol
from tests.workspace_files import changed_files, write_files

FILES = {"calc.py": "a = 1\n", "names.txt": "b = 2\n", "A/one.txt": "1\n", "B/two.txt": "2\n"}
LONG = "The answer is long: " + ", ".join(f"point {number}" for number in range(1, 40)) + "."

Call = tuple[str, dict[str, Any]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project, and a folder outside it."""
    write_files(tmp_path / "outside", {"secret.txt": "swordfish\n"})
    write_files(tmp_path / "root", FILES)
    return tmp_path / "root"


def ask(root: Path, *calls: Call, protocol: Protocol = Protocol.NATIVE) -> tuple[list[dict[str, Any]], ScriptedModel]:
    """The results that a model gets for these calls of one reply, and the model, which was asked twice."""
    model = ScriptedModel([message_of(use(*calls), protocol), Say("Done.")])
    context = AgentContext(workspace=str(root), protocol=protocol.value, evidence=False)
    with Session(context, model=model) as session:
        events = list(session.stream("Do it."))
    assert len(model.calls) == 2
    results = [result for event in events if isinstance(event, StepDone) for result in event.results]
    return [result.result.as_map() for result in results], model


# --- 1. Sandboxing


def test_nothing_outside_the_root_is_read_listed_or_written(root: Path) -> None:
    calls: list[Call] = [
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
    ]
    outside = root.parent / "outside"
    (root / "to_etc").symlink_to("/etc")
    (root / "to_outside").symlink_to(outside)
    (root / "secret_link.txt").symlink_to(outside / "secret.txt")
    results, model = ask(root, *calls)
    for call, result in zip(calls, results, strict=True):
        assert (result["ok"], result["error"]["code"]) == (False, "permission_denied"), call
        assert "relative path under '.'" in result["error"]["message"], call
    assert "swordfish" not in str(model.calls)
    assert changed_files(outside, {"secret.txt": "swordfish\n"}) == {}


# --- 2. Multi-tool


@pytest.mark.parametrize("protocol", [Protocol.TEXT, Protocol.NATIVE])
def test_calls_of_one_message_run_in_order_and_are_answered_together(root: Path, protocol: Protocol) -> None:
    """The i-th answer is that of the i-th call, also where one of them fails, and each call sees what those did."""
    calls: tuple[Call, ...] = (
        ("write_file", {"path": "A/new.txt", "content": "written\n"}),
        ("read_file", {"path": "nope.py"}),
        ("read_file", {"path": "A/new.txt"}),
        ("list_files", {"path": "A"}),
        ("list_files", {"path": "B"}),
    )
    results, model = ask(root, *calls, protocol=protocol)
    assert [result["ok"] for result in results] == [True, False, True, True, True]
    assert results[2]["data"]["content"] == "written\n"
    assert [result["data"]["entries"] for result in results[3:]] == [["A/new.txt", "A/one.txt"], ["B/two.txt"]]

    sent = model.calls[1].prompt.messages[2:]
    roles = {Protocol.TEXT: ["assistant", "user"], Protocol.NATIVE: ["assistant", *["tool"] * 5]}
    assert [message["role"] for message in sent] == roles[protocol]
    answers = [line for message in sent[1:] for line in str(message["content"]).splitlines()]
    words = ("A/new.txt", "nope.py", "written", "A/one.txt", "B/two.txt")
    assert [word in answer for word, answer in zip(words, answers, strict=True)] == [True] * 5


# --- 3. Streaming


def test_long_answer_is_streamed(root: Path) -> None:
    with ScriptedServer([Chunked(Say(LONG), 20)]) as server:
        context = AgentContext(workspace=str(root), base_url=server.base_url, model="m")
        with Session(context) as session:
            events: list[Event] = list(session.stream("Tell me everything."))
    texts = [event.text for event in events if isinstance(event, Text)]
    assert (max(map(len, texts)) <= 40, "".join(texts)) == (True, LONG)  # by the word: a secret may span pieces
    assert isinstance(events[-1], Ended)


def test_streamed_replies_are_one_message_each_of_the_history(root: Path) -> None:
    """The model is called until it calls no tool."""
    call = message_of(use(("read_file", {"path": "calc.py"})), Protocol.NATIVE)
    with ScriptedServer([Chunked(Say(LONG), 7), Chunked(call, 7), Say("Read."), Say("Bye.")]) as server:
        context = AgentContext(workspace=str(root), base_url=server.base_url, model="m", protocol="native")
        with Session(context) as session:
            for request in ("Tell me.", "Read.", "Go."):
                session.work(request)
        messages = server.requests[-1]["messages"]
    replies = [message for message in messages if message["role"] == "assistant"]
    assert [message.get("content") or "" for message in replies] == [LONG, "", "Read."]
    assert [len(message.get("tool_calls", ())) for message in replies] == [0, 1, 0]
    assert [message["role"] for message in messages].count("user") == 3
    assert len(messages) == 1 + 2 + 4 + 1


def test_terminal_shows_one_prefix_per_turn_and_no_json_of_calls(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)  # a pipe would get the answer alone
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("TERM", "dumb")
    replies: list[Reply] = [
        message_of(use(("read_file", {"path": "calc.py"})), Protocol.NATIVE),
        Chunked(Say(LONG), 20),
    ]
    with ScriptedServer(replies) as server:
        code = main(["--root", str(root), "--base-url", server.base_url, "--model", "m", "Tell me everything."])
    output = capsys.readouterr().out
    assert (code, output.count("mendgraph: "), output.count(LONG)) == (0, 1, 1)
    assert "→ read_file" in output
    assert '{"path"' not in output


# --- 4. Error envelope


def test_missing_file_error_suggests_existing_names(root: Path) -> None:
    rows = {"cal": "calc.py", "A/one": "A/one.txt", "clac.py": "calc.py", "CALC.PY": "calc.py"}
    results, _ = ask(root, *(("read_file", {"path": path}) for path in rows))
    for (path, name), result in zip(rows.items(), results, strict=True):
        message = f"No such file: '{path}'. Did you mean '{name}'?"
        assert result == {"ok": False, "error": {"code": "not_found", "message": message, "suggestions": [name]}}


def test_debug_shows_calls_responses_and_decisions_as_json_on_stderr(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: tuple[Call, ...] = (("read_file", {"path": "A/../../x"}), ("read_file", {"path": "calc.py"}))
    with ScriptedServer([message_of(use(*calls), Protocol.NATIVE), Say("Done.")]) as server:
        main(["--root", str(root), "--base-url", server.base_url, "--model", "m", "--debug", "Read this."])
    output = capsys.readouterr()
    lines = [json.loads(line) for line in output.err.splitlines() if line.startswith("{")]
    [called] = [line["calls"] for line in lines if line["event"] == "calls_read"]
    [answered] = [[result["result"] for result in line["results"]] for line in lines if line["event"] == "step_done"]
    [refused] = [line["payload"] for line in lines if line.get("name") == "sandbox.refused"]
    assert [call["arguments"]["path"] for call in called] == ["A/../../x", "calc.py"]
    assert [result["ok"] for result in answered] == [False, True]
    assert answered[1]["data"]["content"] == "a = 1\n"
    assert (refused["root"], refused["clean"], refused["relative"]) == (str(root), "../x", "../x")
    assert "{" not in output.out
