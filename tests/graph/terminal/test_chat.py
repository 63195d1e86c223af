"""The commands of a chat, on a scripted model in a real workspace."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.terminal.chat import COMMANDS, KEYS, _files, chat, prompt_for, run_command, terminal_prompt
from mendgraph.graph.terminal.process_end import ExitCode
from mendgraph.graph.terminal.turns import Turns
from mendgraph.nodes.execute_tools.store.run_folder import workspace_folder
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.graph.terminal.played_terminal import BUG, FIX, READ, Terminal
from tests.graph.terminal.signalled_models import STOPPING, Interrupted, Terminated, TerminatedTwice

COMMENT = 'tool: edit_file({"path": "calc.py", "old_str": "a + b", "new_str": "a + b  # sum"})'
PLAN = 'tool: update_plan({"steps": [{"title": "Look\\u001b[2J", "status": "done"}, {"title": "Mend"}]})'
DIFF = "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"


def talked(folder: Path, script: Sequence[str], lines: Sequence[str], **options: Any) -> Terminal:
    terminal = Terminal(folder, script, lines=lines, **options)
    assert chat(terminal.setup) is ExitCode.FINISHED
    return terminal


def objects(terminal: Terminal) -> list[dict[str, Any]]:
    return [json.loads(line) for line in terminal.out.splitlines()]


def test_undo_takes_back_turn_by_turn_and_the_model_hears_of_it(tmp_path: Path) -> None:
    script = [FIX, "Fixed.", COMMENT, "Said.", "Hello."]
    lines = ["fix", "comment", "/undo", "/diff", "/undo", "/undo", "and now?"]
    terminal = Terminal(tmp_path, script, lines=lines)
    model = terminal.setup.session_options["model"]
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert terminal.calc.read_text(encoding="utf-8") == BUG
    assert terminal.out.count("restored calc.py\n") == 2
    assert f"restored calc.py\n{DIFF}restored calc.py\nnothing to undo: " in terminal.out
    note = "(I took back your changes of these files, so look at them anew: calc.py.)\n\n"
    assert f"{note}and now?" in [message["content"] for message in model.calls[-1].prompt.messages]
    assert terminal.err == f"mendgraph: run {tmp_path.name}; go on with: {terminal.chat}\n"


def test_undo_works_where_a_question_was_left_open(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        if len(asked) == 1:
            return "y"
        raise KeyboardInterrupt

    terminal = Terminal(
        tmp_path, [FIX, "Fixed.", COMMENT, "Hello."], lines=["fix", "more", "/undo", "hi"], context={"mode": "ask"}
    )
    assert chat(replace(terminal.setup, ask=ask)) is ExitCode.FINISHED
    assert "restored calc.py\n" in terminal.out
    assert terminal.calc.read_text(encoding="utf-8") == BUG
    assert "mendgraph: Hello.\n" in terminal.out


def test_undo_leaves_what_somebody_else_has_changed_since(tmp_path: Path) -> None:
    def lines() -> Iterator[str]:
        yield "//fix"
        (tmp_path / "calc.py").write_text("mine\n")
        yield "/undo 1"
        yield " "

    terminal = Terminal(tmp_path, [FIX, "Fixed."], lines=lines())
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert terminal.err.startswith("mendgraph: Nothing was restored. ")
    assert terminal.calc.read_text() == "mine\n"


def test_before_the_first_turn_there_is_nothing(tmp_path: Path) -> None:
    terminal = talked(tmp_path, [], ["/diff", "/undo", "/plan"])
    assert terminal.out.startswith("no file is changed\nnothing to undo: ")
    assert "there is no plan: the model has made none\n" in terminal.out
    assert terminal.err == ""


@pytest.mark.parametrize("line", ["/diff", "/undo", "/plan"])
def test_store_that_cannot_be_read_is_said(tmp_path: Path, line: str) -> None:
    terminal = Terminal(tmp_path, [])
    folder = workspace_folder(str(tmp_path))
    assert isinstance(folder, str)
    store = Path(folder, "store.sqlite")
    store.write_bytes(b"no database at all" * 100)
    with Turns(terminal.setup) as turns:
        told = run_command(turns, line)
    message = (
        f"The database {str(store)!r} is damaged, or no database at all (file is not a database):"
        " put a backup in its place, or move it away and begin with a new one."
    )
    assert told == ToolError(code=ToolErrorCode.IO_ERROR, message=message)


def test_plan_is_shown_as_it_stands(tmp_path: Path) -> None:
    terminal = talked(tmp_path, [PLAN, "Later."], ["plan it", "/plan"])
    assert "\n[x] Look\\x1b[2J\n[ ] Mend\n" in terminal.out


def test_model_is_shown_and_changed_from_the_next_turn_on(tmp_path: Path) -> None:
    terminal = Terminal(
        tmp_path, [FIX, "Fixed.", READ, "It adds."], lines=["fix", "/model", "/model b", "see", "/usage"]
    )
    environment = {"OPENAI_BASE_URL": "http://me:secret@llm.test/v1"}
    setup = replace(
        terminal.setup, environment=environment, context=terminal.setup.context.model_copy(update={"model": "a"})
    )
    assert chat(setup) is ExitCode.FINISHED
    assert "model: a at http://llm.test/v1\nmodel: b at http://llm.test/v1, from the next turn on\n" in terminal.out
    assert "API Usage Stats:\n  Calls: 4/100\n  Turn Calls: 2/10\n" in terminal.out
    assert "secret" not in terminal.out


def test_address_does_not_go_to_another_provider_with_its_key(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, [], lines=["/model openai:b", "/model anthropic:c", "/model"])
    context = terminal.setup.context.model_copy(update={"model": "a", "base_url": "http://llm.test/v1"})
    assert chat(replace(terminal.setup, context=context)) is ExitCode.FINISHED
    assert "model: b at http://llm.test/v1, from" in terminal.out
    assert terminal.out.count("model: anthropic:c") == 2
    assert "anthropic:c at" not in terminal.out


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("/model a b", "/model takes one name, and there is 'b' as well."),
        ("/model gpt", "Model 'gpt' needs an endpoint: "),
        ("/model local", "The embedded model is not on this machine: `mendgraph model pull` fetches it."),
        ("/mode yolo", "/mode takes one of read-only, ask, auto."),
        ("/add", "/add takes the name of a file: /add README.md"),
        ("/diff now", "/diff takes no arguments, and there is 'now'."),
        ("/undo 1 2", "/undo takes the number of a step"),
        ("/undo -1", "/undo takes the number of a step"),
        ("/undo \u0661", "/undo takes the number of a step"),
        (f"/undo {'9' * 10}", "/undo takes the number of a step"),
        (
            "/undoo",
            "There is no command /undoo. Did you mean /undo? With another / before it the line goes to the model.",
        ),
        ("/", "There is no command /. /help lists them. With another / before it the line goes to the model."),
        ("/etc/hosts is wrong", "There is no command /etc/hosts."),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_sent(tmp_path: Path, line: str, problem: str) -> None:
    terminal = talked(tmp_path, [], [line])
    assert terminal.err.startswith(f"mendgraph: {problem}")
    assert terminal.err.count("\n") == 1
    told = objects(talked(tmp_path, [], [line], as_json=True))
    assert [set(each) for each in told] == [{"error"}]


def test_another_mode_and_another_thread(tmp_path: Path) -> None:
    lines = ["hi", "/mode", "/mode ask", "fix", "/undo", "/clear", "/usage", "again"]
    terminal = Terminal(tmp_path, ["Hello.", FIX, "I may not.", "Once more."], lines=lines)
    model = terminal.setup.session_options["model"]
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert "mode: auto\nmode: ask, from the next turn on\n" in terminal.out
    assert terminal.calc.read_text(encoding="utf-8") == BUG
    assert "a new conversation begins; " in terminal.out
    assert "API Usage Stats:\n  Calls: 0/100\n" in terminal.out
    assert "hi" not in [message["content"] for message in model.calls[-1].prompt.messages]


def test_added_file_is_read_with_the_next_request_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("all:\n\ttrue\n", encoding="utf-8")
    (tmp_path / ".env").write_text("KEY=hush\n", encoding="utf-8")
    terminal = Terminal(tmp_path, ["It has one goal."], lines=["/add @Makefile", "/add .env", "/add none.py", "see"])
    model = terminal.setup.session_options["model"]
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert "Makefile (11 bytes) is read with the next request\n" in terminal.out
    assert "→ read_file Makefile  2 lines\n" in terminal.out
    assert "(Read './Makefile' first.)\n\nsee" in [message["content"] for message in model.calls[-1].prompt.messages]
    assert ".env" in terminal.err
    assert "none.py" in terminal.err


def test_persons_own_command_is_shown_and_told_to_the_model(tmp_path: Path) -> None:
    lines = ["!echo out; echo $KEY >&2; pwd; exit 3", "see", "!!no command"]
    terminal = Terminal(tmp_path, ["I see.", "So be it."], lines=lines, said="")
    model = terminal.setup.session_options["model"]
    environment = {"SHELL": "/bin/sh", "KEY": "\x1b[2Jseen"}
    assert chat(replace(terminal.setup, environment=environment)) is ExitCode.FINISHED
    assert all(said in terminal.out for said in ("out\n", "\\x1b[2Jseen\n", f"{tmp_path}\n", "exit code 3;"))
    told = [message["content"] for message in model.calls[-1].prompt.messages]
    assert any(each.startswith("(I ran `echo out; ") and each.endswith("\n\nsee") for each in told)
    assert "!no command" in told


def test_last_eight_thousand_characters_of_a_command_go_to_the_model(tmp_path: Path) -> None:
    lines = ["!printf 'x%.0s' $(seq 9000); echo end", "see"]
    terminal = Terminal(tmp_path, ["I see."], lines=lines, said="")
    model = terminal.setup.session_options["model"]
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert "x" * 9_000 in terminal.out
    [told] = [str(each["content"]) for each in model.calls[-1].prompt.messages if "I ran" in str(each["content"])]
    assert f"at its end:\n{'x' * 7_996}end\n)" in told


def test_what_was_noted_for_the_next_request_is_forgotten_with_the_conversation(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("all:\n", encoding="utf-8")
    terminal = Terminal(tmp_path, ["Hello."], lines=["/add Makefile", "/clear", "see"])
    model = terminal.setup.session_options["model"]
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert model.calls[-1].prompt.messages[-1]["content"] == "see"


def test_command_ends_with_ctrl_c_and_the_chat_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    terminal = Terminal(tmp_path, ["I see."], lines=["!sleep 60", "see"], said="")
    monkeypatch.setattr("mendgraph.graph.terminal.chat.read_until", interrupted)
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert "stopped by you (Ctrl-C);" in terminal.out
    assert "mendgraph: I see.\n" in terminal.out


def test_what_is_piped_into_a_chat_gets_no_shell(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, ["I see."], lines=["!touch made"])
    model = terminal.setup.session_options["model"]
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert not (tmp_path / "made").exists()
    assert model.calls[0].prompt.messages[-1]["content"] == "!touch made"


def test_help_names_every_command_and_the_keys(tmp_path: Path) -> None:
    terminal = talked(tmp_path, [], ["/HELP", "/quit"])
    assert all(f"\n{name}" in f"\n{terminal.out}" for name in COMMANDS)
    assert all(each[:20] in terminal.out for each in KEYS)


def test_ctrl_c_ends_a_turn_but_not_the_chat(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, ["Hello.", "I wait", "Here again."], model=Interrupted, lines=["hi", "wait", "and?"])
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert terminal.err.startswith(STOPPING)
    assert terminal.out.count("FINISHED (answered): No file was changed.\n") == 2
    assert terminal.out.count("BUDGET_STOP (cancelled): The run was stopped by you (Ctrl-C).\n") == 1
    assert "mendgraph: Here again.\n" in terminal.out


@pytest.mark.parametrize("model", [Terminated, TerminatedTwice])
def test_sigterm_ends_the_chat_with_its_turn(tmp_path: Path, model: type[Interrupted]) -> None:
    terminal = Terminal(tmp_path, [READ, "I wait", "Here again."], model=model, lines=["wait", "and?"])
    assert chat(terminal.setup) is ExitCode.TERMINATED
    assert (terminal.asked, "API Usage Stats:" in terminal.out) == (["You: "], True)


@pytest.mark.parametrize(
    ("term", "as_json", "ttys", "expected"),
    [
        ("xterm-256color", False, (True, True), True),
        ("dumb", False, (True, True), False),
        ("xterm", True, (True, True), False),
        ("xterm", False, (True, False), False),
        ("xterm", False, (False, True), False),
    ],
)
def test_only_a_real_terminal_has_a_prompt(
    tmp_path: Path, term: str, as_json: bool, ttys: tuple[bool, bool], expected: bool
) -> None:
    setup = replace(Terminal(tmp_path, [], as_json=as_json).setup, environment={"TERM": term})
    streams: list[Any] = [SimpleNamespace(isatty=lambda tty=tty: tty) for tty in ttys]
    assert (prompt_for(setup, *streams) is terminal_prompt) is expected


def test_where_no_history_can_be_kept_that_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(tmp_path, ["Hello.", "Bye."], lines=["hi", "bye"])
    scrubs: list[Any] = []

    def opened(*options: Any, **_: Any) -> Any:
        scrubs.append(options[1])
        return terminal.setup.next_line

    def unusable(history: Any) -> list[str]:
        history.problem = "the disk is full."
        return []

    monkeypatch.setattr("mendgraph.graph.terminal.prompt_input.PromptInput", opened)
    monkeypatch.setattr("mendgraph.graph.terminal.chat.RequestHistory.load", unusable)
    monkeypatch.setenv("MENDGRAPH_TEST_API_KEY", "sk-1234567890abcdefghij")
    assert chat(terminal.setup, terminal_prompt) is ExitCode.FINISHED
    assert terminal.err.startswith("mendgraph: requests are not kept for the next chat: the disk is full.\n")
    assert terminal.err.count("\n") == 2
    assert terminal.out.count("mendgraph: ") == 2
    assert terminal.out.startswith(f"mendgraph chat in {tmp_path}; /help lists the commands\n\n")
    assert [scrub("hello") for scrub in scrubs] == ["hello"]


def test_only_files_that_a_model_may_read_are_offered(tmp_path: Path) -> None:
    for name in ("calc.py", ".env", "ignored.log", ".gitignore"):
        (tmp_path / name).write_text("*.log\n", encoding="utf-8")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "new.py").touch()
    assert _files(AgentContext(workspace=str(tmp_path))) == [".gitignore", "calc.py", "pkg/new.py"]
