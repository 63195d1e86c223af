"""The doors beside the usual ones: the terminal, approvals, refusals, bugs, models that break their contract."""

import io
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from mendgraph.graph import cli
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.state import serializer
from mendgraph.graph.runs.events import Asked
from mendgraph.graph.runs.run import Session
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import ModelReply, OutcomeKind, Protocol, ProviderFailure
from tests.doubles.call_model import CallModel
from tests.doubles.replies import Message, Reply, Say, Status
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tool_use import Use, message_of, use
from tests.nodes.execute_tools.attacks.canaries import PLANTED, everything_below
from tests.nodes.execute_tools.attacks.canary_scene import (
    REQUEST,
    TOOLS,
    Scene,
    new_scene,
    note_requests,
    note_result,
    script,
    without_redaction,
)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """All that a run writes goes below one folder."""
    return new_scene(tmp_path, monkeypatch)


# --- The terminal


def terminal_run(
    scene: Scene, replies: list[Reply], capsys: pytest.CaptureFixture[str], *words: str, request: str = REQUEST
) -> int:
    """The command as a person starts it; `words` are its options."""
    with ScriptedServer(replies) as server:
        options = ("--root", str(scene.root), "--base-url", server.base_url, "--model", "m", "--max-calls", "50")
        code = cli.main([*options, *words, request])
        note_requests(scene, server)
    shown = capsys.readouterr()
    scene.places["stdout"], scene.places["stderr"] = shown.out, shown.err
    scene.take_files()
    return code


@pytest.fixture
def own_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's sessions have the tools of this test too."""
    monkeypatch.setattr(cli, "_session_options", lambda: {"tools": TOOLS})


@pytest.mark.usefixtures("own_tools")
@pytest.mark.parametrize(("protocol", "words"), [(Protocol.TEXT, ()), (Protocol.NATIVE, ("--json", "--debug"))])
def test_terminal_shows_no_secret(
    scene: Scene, protocol: Protocol, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code = terminal_run(scene, script(protocol), capsys, "--protocol", protocol.value, *words)
    assert (code, scene.leaks()) == (0, {})
    assert "[redacted secret]" in str(scene.places["stdout"])


@pytest.mark.usefixtures("own_tools")
def test_control_without_redaction_the_terminal_leaks(
    scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_redaction(monkeypatch)
    assert terminal_run(scene, script(Protocol.NATIVE), capsys, "--protocol", "native", "--debug") == 0
    found = scene.leaks()
    assert {"stdout", "stderr", "requests", "kept results", "all files"} - set(found) == set()
    assert {"streamed", "source_file"} <= found["stdout"]
    assert {"source_file", "json_file", "exception", "endpoint_error"} <= found["stderr"]


REFUSED = Status(400, {"error": {"message": f"bad key {PLANTED.endpoint_error}, {PLANTED.variable}", "type": "x"}})


def test_run_that_its_endpoint_refuses_tells_no_secret(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    assert (terminal_run(scene, [REFUSED], capsys, "--debug"), scene.leaks()) == (4, {})


def test_address_with_a_login_is_not_shown(
    scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no address that can be used, so that the whole of it stands in the message."""
    monkeypatch.setenv("OPENAI_BASE_URL", f"ftp://ada:{PLANTED.request}@llm.test/v1")
    code = cli.main(["--root", str(scene.root), "--model", "m", "Look here."])
    shown = capsys.readouterr()
    scene.places["stdout"], scene.places["stderr"] = shown.out, shown.err
    assert (code, scene.leaks()) == (4, {})
    assert "is not an address" in shown.out


class _Person(io.StringIO):
    """An input that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_preview_of_a_change_shows_no_secret(
    scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a call would replace is read from the file, not from what the model said."""
    monkeypatch.setattr(sys, "stdin", _Person("y\ny\n"))
    content = PLANTED.files()["app.py"].replace(PLANTED.source_file, "from the vault")
    steps = (
        use(("read_file", {"path": "app.py"})),
        use(("write_file", {"path": "app.py", "content": content})),
        use(("edit_file", {"path": "app.py", "old_str": "retries = 3", "new_str": "retries = 4"})),
    )
    replies: list[Reply] = [*(message_of(step, Protocol.NATIVE) for step in steps), Say("Done.")]
    code = terminal_run(scene, replies, capsys, "--mode", "ask")
    assert (code, scene.leaks()) == (0, {})
    assert "Allow write_file app.py?" in str(scene.places["stderr"])


def test_what_a_person_says_to_an_approval_is_kept_without_secrets(scene: Scene) -> None:
    edit = use(("edit_file", {"path": "app.py", "old_str": "limit = 10", "new_str": "limit = 20"}))
    replies = [message_of(each, Protocol.NATIVE) for each in (use(("read_file", {"path": "app.py"})), edit)]
    model = ScriptedModel([*replies, Say("Done.")])
    with closing(sqlite3.connect(scene.folder / "thread.db", check_same_thread=False)) as database:
        saver = SqliteSaver(database, serde=serializer())
        context = AgentContext(workspace=str(scene.root), mode="ask")
        with Session(context, model=model, checkpointer=saver) as session:
            assert isinstance(list(session.stream("Edit."))[-1], Asked)
            reason = f"Use {PLANTED.request} instead, or {PLANTED.variable}."
            decisions = {"decisions": {"0": {"action": "reject", "reason": reason}}}
            events = list(session.answer(decisions))
            result = session.result()
        scene.places["database"] = everything_below(scene.folder, but=scene.root)
    note_result(scene, events, result)
    scene.places["prompts"] = repr(model.calls)
    assert scene.leaks() == {}
    assert "instead, or" in repr(model.calls)


def test_bug_is_reported_without_secrets(
    scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> dict[str, Any]:
        raise RuntimeError(f"{PLANTED.exception} and {PLANTED.variable}")

    monkeypatch.setattr(cli, "_session_options", fail)
    for words in ((), ("--debug",), ("--json",)):
        assert cli.main(["--root", str(scene.root), *words, "Look here."]) == 70
        shown = capsys.readouterr()
        scene.places[f"{words}: stdout"], scene.places[f"{words}: stderr"] = shown.out, shown.err
    assert scene.leaks() == {}


# --- A model of the user's own


class Raising(CallModel):
    """A model that breaks its contract, with secrets in the exception."""

    def complete(self, call: Call, _: Callable[[str], None]) -> ModelReply | ProviderFailure:
        raise RuntimeError(f"{call.seed} {PLANTED.exception} and {PLANTED.variable}")


def test_model_that_raises_tells_no_secret(scene: Scene) -> None:
    with closing(sqlite3.connect(scene.folder / "thread.db", check_same_thread=False)) as database:
        saver = SqliteSaver(database, serde=serializer())
        with Session(AgentContext(workspace=str(scene.root)), model=Raising(), checkpointer=saver) as session:
            events = list(session.stream("Look."))
            result = session.result()
        scene.places["database"] = everything_below(scene.folder, but=scene.root)
    note_result(scene, events, result)
    assert (result.outcome.kind, scene.leaks()) == (OutcomeKind.SYSTEM_ERROR, {})
    assert "Raising failed (RuntimeError" in result.outcome.message


def test_names_that_a_model_gives_to_calls_are_looked_at_as_well(scene: Scene) -> None:
    """The name of a tool, the id of a call and the name of the model are the endpoint's own words."""
    calls = ((PLANTED.arguments, "{}", PLANTED.reply), ("read_file", '{"path": "app.py"}', PLANTED.variable))
    model = ScriptedModel([Message(calls=calls, finish_reason="tool_calls"), Say("Done.")])
    with closing(sqlite3.connect(scene.folder / "thread.db", check_same_thread=False)) as database:
        saver = SqliteSaver(database, serde=serializer())
        with Session(AgentContext(workspace=str(scene.root)), model=model, checkpointer=saver) as session:
            events = list(session.stream("Look."))
            result = session.result()
        scene.places["database"] = everything_below(scene.folder, but=scene.root)
    note_result(scene, events, result)
    scene.places["prompts"] = repr(model.calls)
    assert (result.outcome.kind, scene.leaks()) == (OutcomeKind.FINISHED, {})


def test_saver_of_the_users_own_is_given_no_secret_of_the_request(scene: Scene) -> None:
    """Its serializer may be any, so what a session is asked is looked at before LangGraph sees it."""
    saver = InMemorySaver()
    with Session(AgentContext(workspace=str(scene.root)), model=ScriptedModel([]), checkpointer=saver) as session:
        list(session.stream(REQUEST))
    scene.places["saver"] = repr((dict(saver.storage), dict(saver.writes), dict(saver.blobs)))
    assert scene.leaks() == {}
    assert "redacted secret" in str(scene.places["saver"])


# --- A key of several lines

WHOLE = use(("read_file", {"path": "key.py"}))
PART = use(("read_file", {"path": "key.py", "start_line": 4, "limit": 1}))
AROUND = use(("search_files", {"pattern": "limit", "context_lines": 3}))
MISS = use(("edit_file", {"path": "key.py", "old_str": f"{PLANTED.key_block[:12]}\nlimit = 9", "new_str": "x"}))


@pytest.mark.parametrize("step", [PART, AROUND, MISS], ids=["part", "around", "miss"])
def test_key_block_is_shown_nowhere_not_even_in_part(scene: Scene, step: Use) -> None:
    (scene.root / "key.py").write_text(PLANTED.key_file(), encoding="utf-8")
    model = ScriptedModel([*(message_of(each, Protocol.NATIVE) for each in (WHOLE, step)), Say("Done.")])
    with Session(AgentContext(workspace=str(scene.root)), model=model) as session:
        note_result(scene, list(session.stream("Look.")), session.result())
    scene.places["prompts"] = repr(model.calls)
    assert scene.leaks() == {}
