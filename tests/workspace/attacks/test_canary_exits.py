"""The other exits: the terminal, approvals, refusals, bugs, models that break their contract."""

import io
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph.graph import cli
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.run import Session
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import ModelReply, OutcomeKind, ProviderFailure
from tests.doubles.call_model import CallModel
from tests.doubles.replies import Message, Reply, Say, Status
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tool_use import Use, message_of, use
from tests.extent import slow
from tests.vocabulary import Protocol
from tests.workspace.attacks.canary_scene import PLANTED, REQUEST, TOOLS, Scene, no_redaction, scene, script

__all__ = ("no_redaction", "scene")


class Terminal:
    """The command as a person starts it, with the tools of this test."""

    def __init__(self, scene: Scene, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.scene, self._capsys, self._patch = scene, capsys, patch
        self.session_options: Callable[[], Mapping[str, Any]] = lambda: {"tools": TOOLS}
        patch.setattr(cli, "_session_options", self._session_options)

    def _session_options(self) -> Mapping[str, Any]:
        return self.session_options()

    def run(self, replies: list[Reply], *words: str) -> int:
        with ScriptedServer(replies) as server:
            code = self.command("--base-url", server.base_url, "--max-calls", "50", *words, REQUEST)
            self.scene.note_requests(server)
        return code

    def command(self, *words: str) -> int:
        self._patch.setattr(sys.stdout, "isatty", lambda: True)  # a pipe would get the answer alone
        self._patch.setenv("COLUMNS", "1000")
        self._patch.setenv("TERM", "dumb")
        code = cli.main(["--root", str(self.scene.root), "--model", "m", *words])
        output = self._capsys.readouterr()
        self.scene.places["stdout"], self.scene.places["stderr"] = output.out, output.err
        self.scene.note_files()
        return code


@pytest.fixture
def terminal(scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(scene, capsys, monkeypatch)


@slow
@pytest.mark.parametrize(("protocol", "words"), [(Protocol.TEXT, ()), (Protocol.NATIVE, ("--json", "--debug"))])
def test_terminal_shows_no_secret(terminal: Terminal, protocol: Protocol, words: tuple[str, ...]) -> None:
    code = terminal.run(script(protocol), "--protocol", protocol.value, *words)
    assert (code, terminal.scene.leaks()) == (0, {})
    assert "[redacted secret]" in str(terminal.scene.places["stdout"])


@slow
@pytest.mark.usefixtures("no_redaction")
def test_without_redaction_the_terminal_shows_secrets(terminal: Terminal) -> None:
    assert terminal.run(script(Protocol.NATIVE), "--protocol", "native", "--debug") == 0
    leaks = terminal.scene.leaks()
    assert {"stdout", "stderr", "requests", "all files"} - set(leaks) == set()
    assert {"streamed", "source_file"} <= leaks["stdout"]
    assert {"source_file", "json_file", "exception", "endpoint_error"} <= leaks["stderr"]


REFUSED = Status(400, {"error": {"message": f"bad key {PLANTED.endpoint_error}, {PLANTED.variable}", "type": "x"}})


@slow
def test_failure_messages_show_no_secret(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (terminal.run([REFUSED], "--debug"), terminal.scene.leaks()) == (4, {})

    # It is no address that can be used, so that the whole of it stands in the message.
    monkeypatch.setenv("OPENAI_BASE_URL", f"ftp://ada:{PLANTED.request}@llm.test/v1")
    assert (terminal.command("Look here."), terminal.scene.leaks()) == (4, {})
    assert "is not an address" in str(terminal.scene.places["stdout"])

    def fail() -> Mapping[str, Any]:
        raise RuntimeError(f"{PLANTED.exception} and {PLANTED.variable}")

    terminal.session_options = fail
    for words in ((), ("--debug",), ("--json",)):
        assert (terminal.command(*words, "Look here."), terminal.scene.leaks()) == (70, {})


class _Person(io.StringIO):
    """An input that is a terminal."""

    def isatty(self) -> bool:
        return True


@slow
def test_preview_of_a_change_shows_no_secret(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replaced text is read from the file, not from the model's reply."""
    monkeypatch.setattr(sys, "stdin", _Person("y\ny\n"))
    content = PLANTED.files()["app.py"].replace(PLANTED.source_file, "from the vault")
    steps = (
        use(("read_file", {"path": "app.py"})),
        use(("write_file", {"path": "app.py", "content": content})),
        use(("edit_file", {"path": "app.py", "old_str": "retries = 3", "new_str": "retries = 4"})),
    )
    replies: list[Reply] = [*(message_of(step, Protocol.NATIVE) for step in steps), Say("Done.")]
    assert (terminal.run(replies, "--mode", "ask"), terminal.scene.leaks()) == (0, {})
    assert "Allow write_file app.py?" in str(terminal.scene.places["stderr"])


@slow
def test_reason_that_a_person_gives_is_stored_without_secrets(scene: Scene) -> None:
    edit = use(("edit_file", {"path": "app.py", "old_str": "limit = 10", "new_str": "limit = 20"}))
    replies = [message_of(step, Protocol.NATIVE) for step in (use(("read_file", {"path": "app.py"})), edit)]
    reason = f"Use {PLANTED.request} instead, or {PLANTED.variable}."
    decisions = {"decisions": {"0": {"action": "reject", "reason": reason}}}

    scene.run("Edit.", decisions, model=ScriptedModel([*replies, Say("Done.")]), mode="ask")
    assert scene.leaks() == {}
    assert "instead, or" in str(scene.places["prompts"])


class Raising(CallModel):
    """A model that breaks its contract, with secrets in the exception."""

    def complete(self, call: Call, _: Callable[[str], None]) -> ModelReply | ProviderFailure:
        raise RuntimeError(f"{call.seed} {PLANTED.exception} and {PLANTED.variable}")


def test_exception_of_a_model_shows_no_secret(scene: Scene) -> None:
    result = scene.run("Look.", model=Raising())
    assert (result.outcome.kind, scene.leaks()) == (OutcomeKind.SYSTEM_ERROR, {})
    assert "Raising failed (RuntimeError" in result.outcome.message


def test_call_names_and_ids_from_a_model_show_no_secret(scene: Scene) -> None:
    """The name of a tool, the id of a call and the name of the model come from the endpoint."""
    calls = ((PLANTED.arguments, "{}", PLANTED.reply), ("read_file", '{"path": "app.py"}', PLANTED.variable))
    result = scene.run("Look.", model=ScriptedModel([Message(calls=calls, finish_reason="tool_calls"), Say("Done.")]))
    assert (result.outcome.kind, scene.leaks()) == (OutcomeKind.FINISHED, {})


def test_saver_of_the_user_receives_no_secret_of_the_request(scene: Scene) -> None:
    """It may use any serializer, so a request is redacted before LangGraph sees it."""
    saver = InMemorySaver()
    with Session(AgentContext(workspace=str(scene.root)), model=ScriptedModel([]), checkpointer=saver) as session:
        list(session.stream(REQUEST))
    scene.places["saver"] = repr((dict(saver.storage), dict(saver.writes), dict(saver.blobs)))
    assert scene.leaks() == {}
    assert "redacted secret" in str(scene.places["saver"])


WHOLE = use(("read_file", {"path": "key.py"}))
PART = use(("read_file", {"path": "key.py", "start_line": 4, "limit": 1}))
AROUND = use(("search_files", {"pattern": "limit", "context_lines": 3}))
MISS = use(("edit_file", {"path": "key.py", "old_str": f"{PLANTED.key_block[:12]}\nlimit = 9", "new_str": "x"}))


@slow
def test_multiline_key_is_never_shown_even_in_part(scene: Scene) -> None:
    (scene.root / "key.py").write_text(PLANTED.key_file(), encoding="utf-8")
    steps: tuple[Use, ...] = (WHOLE, PART, AROUND, MISS)
    scene.run("Look.", model=ScriptedModel([*(message_of(step, Protocol.NATIVE) for step in steps), Say("Done.")]))
    assert scene.leaks() == {}
