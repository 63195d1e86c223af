"""`FileRulesMiddleware` and `RedactionMiddleware`, each compared with the same agent without it."""

from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from mendgraph import FileGuardrailRule, FileRulesMiddleware, RedactionMiddleware, serializer
from tests.doubles.scripted_server import Say, ScriptedServer
from tests.extent import slow
from tests.langchain.agents import chat
from tests.langchain.coders import FilesystemBackend, coder, deep_coder, reply_with_calls, run_turn, sent_text
from tests.row_tables import rows

KEY = "sk-proj-" + "aB3dE5gH7jK9mN1pQ3sT5vX7z" * 2
PASSWORD = "correct-horse-7-battery"  # noqa: S105 - nobody's
sync_and_async = pytest.mark.parametrize("loop", [False, True], ids=["sync", "async"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a secret file, a link to it, and others."""
    (tmp_path / ".env").write_text(f"API_KEY={KEY}\n", encoding="utf-8")
    (tmp_path / "notes.txt").symlink_to(".env")
    (tmp_path / ".env.example").write_text("API_KEY=\n", encoding="utf-8")
    (tmp_path / "app.py").write_text(f'KEY = "{KEY}"\npassword = "{PASSWORD}"\n', encoding="utf-8")
    return tmp_path


def results(state: dict[str, Any]) -> list[tuple[str, str]]:
    """The status and the text of each tool's result."""
    return [(message.status, message.text) for message in state["messages"] if isinstance(message, ToolMessage)]


READ_ENV = ("read_file", {"path": ".env"})
BLOCKED = "Blocked by rule 'env_file': Environment variable files (.env). Go on without this file."


@sync_and_async
def test_secret_file_is_denied_with_the_middleware_and_read_without_it(root: Path, loop: bool) -> None:
    with ScriptedServer([reply_with_calls(READ_ENV), Say("Read.")]) as server:
        run_turn(coder(server, root), "Read it.", loop)
        assert KEY in sent_text(server)
    with ScriptedServer([reply_with_calls(READ_ENV), Say("I cannot.")]) as server:
        state = run_turn(coder(server, root, FileRulesMiddleware(root=str(root))), "Read it.", loop)
        assert (results(state), KEY in sent_text(server)) == ([("error", BLOCKED)], False)


BLOCKED_CALLS: list[tuple[tuple[str, dict[str, Any]], str]] = [
    (("read_file", {"path": "notes.txt"}), "env_file"),
    (("read_file", {"path": "/etc/passwd"}), "system_path"),
    (("read_file", {"path": "app.py", "files": {"prod.env": "x"}}), "env_file"),
    (("read_file", {"path": "a/../../.ssh/id_rsa"}), "sensitive_config"),
    (
        ("save", {"edits": [{"filePath": "ok.py", "text": ""}, {"filePath": ".git/config", "text": "x"}]}),
        "git_internal",
    ),
    (("save", {"edits": [{"filePath": ".env.example", "text": "x"}]}), "env_file"),
]


def test_blocked_call_has_no_effect_whatever_argument_holds_the_path(root: Path) -> None:
    with ScriptedServer([reply_with_calls(*(call for call, _ in BLOCKED_CALLS)), Say("I cannot.")]) as server:
        blocked = results(run_turn(coder(server, root, FileRulesMiddleware(root=str(root))), "Do it."))
    assert [(status, text.partition(":")[0]) for status, text in blocked] == [
        ("error", f"Blocked by rule '{rule}'") for _, rule in BLOCKED_CALLS
    ]
    assert not (root / "ok.py").exists()


def test_allowed_call_runs_and_rules_and_argument_names_can_be_custom(root: Path) -> None:
    mine = FileGuardrailRule("mine", "My files", lambda path: path.name == "app.py")
    calls = reply_with_calls(("read_file", {"path": ".env.example"}), ("read_file", {"path": "app.py"}))
    with ScriptedServer(
        [calls, reply_with_calls(("save", {"edits": [{"filePath": "x", "text": "app.py"}]})), Say("Done.")]
    ) as server:
        guarded = coder(server, root, FileRulesMiddleware((mine,), path_arguments=["text"], root=str(root)))
        first, second, third = results(run_turn(guarded, "Do it."))
    assert (first, second[0], third[0]) == (("success", "API_KEY=\n"), "error", "error")


def test_custom_rule_receives_the_resolved_absolute_path(root: Path) -> None:
    (root / "link.py").symlink_to("app.py")
    paths: list[Path] = []

    def check(path: Path) -> bool:
        paths.append(path)
        return path == root / "app.py"

    rule = FileGuardrailRule("mine", "Mine", check)
    names = ("app.py", "./app.py", f"{root}/app.py", "link.py")
    with ScriptedServer(
        [reply_with_calls(*(("read_file", {"path": name}) for name in names)), Say("I cannot.")]
    ) as server:
        blocked = results(run_turn(coder(server, root, FileRulesMiddleware((rule,), root=str(root))), "Do it."))
    assert [status for status, _ in blocked] == ["error"] * 4
    assert all(path == path.resolve() for path in paths)


def test_tools_of_deepagents_are_guarded(root: Path) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("read_file", {"file_path": "/notes.txt"}),
        ("write_file", {"file_path": "/.env", "content": "x"}),
        ("edit_file", {"file_path": "/.env.local", "old_string": "API_KEY", "new_string": "x"}),
        ("grep", {"pattern": "KEY", "path": "/.env"}),
        ("grep", {"pattern": "KEY", "glob": ".env"}),
        ("ls", {"path": "/.git"}),
        ("glob", {"pattern": "*", "path": "/.git"}),
    ]
    with ScriptedServer([reply_with_calls(*calls), Say("I cannot.")]) as server:
        files = FilesystemBackend(root_dir=root, virtual_mode=True)
        agent = deep_coder(server, files, FileRulesMiddleware(root=str(root)))
        blocked = results(run_turn(agent, "Do it."))
        assert [(status, "Blocked by rule" in text) for status, text in blocked] == [("error", True)] * len(calls)
        assert KEY not in sent_text(server)
    assert (root / ".env").read_text(encoding="utf-8") == f"API_KEY={KEY}\n"


@slow
def test_subagent_is_guarded_if_it_has_the_middleware_as_well(root: Path) -> None:
    rules = FileRulesMiddleware(root=str(root))
    reader = {"name": "general-purpose", "description": "Reads.", "system_prompt": "Read.", "middleware": [rules]}
    task = reply_with_calls(("task", {"description": "Read .env", "subagent_type": "general-purpose"}))
    for subagents, reads in (([], True), ([reader], False)):
        with ScriptedServer(
            [task, reply_with_calls(("read_file", {"file_path": "/.env"})), Say("So."), Say("Done.")]
        ) as server:
            files = FilesystemBackend(root_dir=root, virtual_mode=True)
            run_turn(deep_coder(server, files, rules, subagents=subagents), "Read it.")
            assert (KEY in sent_text(server)) is reads


def stored_checkpoints(saver: InMemorySaver) -> str:
    """The content of all checkpoints, as bytes."""
    return repr((saver.storage, saver.blobs, saver.writes))


@pytest.mark.parametrize(("deep", "loop"), [(False, True), (True, False)], ids=["create_agent", "create_deep_agent"])
def test_secrets_are_redacted_with_the_middleware_and_visible_without_it(root: Path, loop: bool, deep: bool) -> None:
    def run(saver: InMemorySaver, *middleware: Any) -> tuple[bool, bool]:
        call = ("read_file", {"file_path": "/app.py"} if deep else {"path": "app.py"})
        with ScriptedServer([reply_with_calls(call), Say("It has a key.")]) as server:
            place: Any = FilesystemBackend(root_dir=root, virtual_mode=True) if deep else root
            agent = (deep_coder if deep else coder)(server, place, *middleware, checkpointer=saver)
            run_turn(agent, f"My key is {KEY}, my word is {PASSWORD}. Look at app.py.", loop)
            assert len(server.requests) == 2
            return any(secret in sent_text(server) for secret in (KEY, PASSWORD)), any(
                secret in stored_checkpoints(saver) for secret in (KEY, PASSWORD)
            )

    assert run(InMemorySaver()) == (True, True)
    secrets = [PASSWORD]
    assert run(InMemorySaver(serde=serializer(secrets)), RedactionMiddleware(secrets)) == (False, False)


class Unspoken:
    """A value whose `repr` raises."""

    def __repr__(self) -> str:
        raise ZeroDivisionError


def test_secrets_of_the_environment_are_known_and_artifacts_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYMENT_TOKEN", "t0ken-9f8e7d6c5b4a")
    redaction = RedactionMiddleware()
    tool_message: Any = ToolMessage("t0ken-9f8e7d6c5b4a", tool_call_id="1", artifact={"at": ["t0ken-9f8e7d6c5b4a"]})
    clean: Any = redaction.wrap_tool_call(None, lambda _: Command(update={"messages": [tool_message], "n": 1}))  # type: ignore[arg-type]
    [message] = clean.update["messages"]
    assert (message.content, message.artifact, clean.update["n"]) == (
        "[redacted secret]",
        {"at": ["[redacted secret]"]},
        1,
    )
    for artifact in (object(), Unspoken()):
        original: Any = ToolMessage([{"type": "text", "text": "plain"}], tool_call_id="1", artifact=artifact)
        assert redaction.wrap_tool_call(None, lambda _: original).artifact is artifact  # type: ignore[arg-type,union-attr]  # noqa: B023


def note_command(call_id: str, *others: BaseMessage) -> Any:
    """A Command of a tool whose own message holds no secret."""
    return Command(update={"messages": [ToolMessage("Noted.", tool_call_id=call_id), *others]})


NOTE: Any = {"name": "note", "args": {"text": KEY}, "id": "2"}
RETURNS: dict[str, Any] = {
    "a list of messages": lambda call_id: [ToolMessage(KEY, tool_call_id=call_id)],
    "a list of commands": lambda call_id: [
        note_command(call_id),
        Command(update={"messages": [HumanMessage(f"Note: {KEY}")]}),
    ],
    "a message as a dict": lambda call_id: Command(
        update={"messages": [{"role": "tool", "content": KEY, "tool_call_id": call_id}]}
    ),
    "the message of a model": lambda call_id: note_command(call_id, AIMessage(f"Note: {KEY}")),
    "the call of a model": lambda call_id: note_command(
        call_id, AIMessage("", tool_calls=[NOTE]), ToolMessage("Noted.", tool_call_id="2")
    ),
    "the thoughts of a model": lambda call_id: note_command(
        call_id, AIMessage("Noted.", additional_kwargs={"reasoning_content": KEY})
    ),
    "a name": lambda call_id: ToolMessage("Noted.", tool_call_id=call_id, name=KEY),
}


@slow
@rows(*RETURNS.values())
def test_secret_is_redacted_in_each_form_of_a_tool_result(answer: Any) -> None:

    @tool
    def note(call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Note it."""
        return answer(call_id)

    with ScriptedServer([reply_with_calls(("note", {})), Say("Done.")]) as server:
        agent = create_agent(chat(server), [note], middleware=[RedactionMiddleware()])
        state = run_turn(agent, "Note it.")
        assert KEY not in sent_text(server) + str(state["messages"])


def test_secret_in_the_name_of_a_message_or_file_is_redacted() -> None:
    parts: list[Any] = [
        {"type": "text", "text": "Read it."},
        {"type": "file", "file": {"filename": f"{KEY}.pdf", "file_data": "data:application/pdf;base64,YQ=="}},
    ]
    with ScriptedServer([Say("Done.")]) as server:
        agent = create_agent(chat(server), [], middleware=[RedactionMiddleware()])
        agent.invoke({"messages": [HumanMessage(parts, name=KEY)]})
        assert KEY not in sent_text(server)
