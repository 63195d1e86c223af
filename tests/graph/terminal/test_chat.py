"""A chat at a terminal, on a scripted model in a real workspace."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graph.terminal.chat import _files, chat, prompt_for, terminal_prompt
from graph.terminal.exit_codes import ExitCode
from tests.graph.terminal.played_terminal import BUG, FIX, READ, Terminal
from tests.graph.terminal.signalled_models import (
    STOPPING,
    Interrupted,
    InterruptedTwice,
    Terminated,
    TerminatedTwice,
    interrupt_late,
)


def test_debug_ends_each_turn_with_the_place_of_its_log(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, ["Hello.", "I wait"], model=Interrupted, lines=["hi", "wait"], debug=True)
    assert chat(terminal.setup) is ExitCode.FINISHED
    log = "log: /data/audit\\x1b.jsonl\n"
    told = [line for line in terminal.err.splitlines(keepends=True) if "{" not in line]
    assert told == [log, STOPPING, log]


def test_a_chat_goes_on_until_the_input_ends_and_then_tells_its_usage(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, ["Hello.", "Bye."], lines=["hi", "  ", "bye"])
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert terminal.asked == ["You: "] * 4
    assert terminal.out.count("mendgraph: ") == 2
    assert "API Usage Stats:\n  Calls: 2/100\n  Turn Calls: 1/10\n" in terminal.out


def test_ctrl_c_ends_a_turn_but_not_the_chat(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, ["Hello.", "I wait", "Here again."], model=Interrupted, lines=["hi", "wait", "and?"])
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert terminal.err == STOPPING
    assert terminal.out.count("FINISHED (answered): no file changed\n") == 2
    assert terminal.out.count("BUDGET_STOP (cancelled): The run was stopped by Ctrl-C.\n") == 1
    assert "mendgraph: Here again.\n" in terminal.out


def test_each_turn_is_stopped_by_a_signal_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_late(monkeypatch)
    terminal = Terminal(tmp_path, ["One.", "Two."], lines=["one", "two"])
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert terminal.err == STOPPING * 2
    assert terminal.out.count("FINISHED (answered): no file changed\n") == 2


@pytest.mark.parametrize(("model", "calls"), [(Interrupted, 2), (InterruptedTwice, 1)])
def test_a_turn_that_was_cut_off_counts_in_the_usage(tmp_path: Path, model: type[Interrupted], calls: int) -> None:
    terminal = Terminal(tmp_path, [READ, "I wait"], model=model, lines=["wait"])
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert f"API Usage Stats:\n  Calls: {calls}/100\n  Turn Calls: {calls}/10\n" in terminal.out


@pytest.mark.parametrize("model", [Terminated, TerminatedTwice])
def test_sigterm_ends_the_chat_with_its_turn(tmp_path: Path, model: type[Interrupted]) -> None:
    terminal = Terminal(tmp_path, [READ, "I wait", "Here again."], model=model, lines=["wait", "and?"])
    assert chat(terminal.setup) is ExitCode.TERMINATED
    assert (terminal.asked, "API Usage Stats:" in terminal.out) == (["You: "], True)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, ExitCode.FINISHED), (signal.SIGTERM, ExitCode.TERMINATED)]
)
def test_a_signal_at_the_prompt_ends_the_chat(tmp_path: Path, number: signal.Signals, code: ExitCode) -> None:
    terminal = Terminal(tmp_path, [])

    def hear(_: str) -> str:
        signal.raise_signal(number)
        raise AssertionError("nothing happened")

    assert chat(replace(terminal.setup, next_line=hear)) is code
    assert ("API Usage Stats:" in terminal.out, terminal.err) == (True, "")


def test_a_chat_goes_on_after_ctrl_c_at_a_question(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, [FIX, "Hello."], said="y", context={"mode": "ask"}, lines=["fix", "hi"])

    def stop(_: str) -> str:
        raise KeyboardInterrupt

    assert chat(replace(terminal.setup, ask=stop)) is ExitCode.FINISHED
    assert "\n\nmendgraph: stopped by Ctrl-C; " in terminal.err  # the first one ends the line of the question
    assert "mendgraph: Hello.\n" in terminal.out
    assert terminal.calc.read_text(encoding="utf-8") == BUG


def test_a_chat_in_json_is_one_object_for_each_turn(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, ["Hello.", "Bye."], lines=["hi", "bye"], as_json=True)
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert terminal.asked == [""] * 3
    assert [json.loads(line)["outcome"]["answer"] for line in terminal.out.splitlines()] == ["Hello.", "Bye."]


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
    streams = [SimpleNamespace(isatty=lambda tty=tty: tty) for tty in ttys]
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

    monkeypatch.setattr("graph.terminal.prompt_input.PromptInput", opened)
    monkeypatch.setattr("graph.terminal.chat.RequestHistory.load", unusable)
    monkeypatch.setenv("MENDGRAPH_TEST_API_KEY", "sk-1234567890abcdefghij")
    assert chat(terminal.setup, terminal_prompt) is ExitCode.FINISHED
    assert terminal.err == "mendgraph: requests are not kept for the next chat: the disk is full.\n"
    assert terminal.out.count("mendgraph: ") == 2
    assert terminal.out.startswith(f"mendgraph chat in {tmp_path}; /help lists the commands\n\n")
    assert [scrub("hello") for scrub in scrubs] == ["hello"]


def test_only_files_that_a_model_may_read_are_offered(tmp_path: Path) -> None:
    for name in ("calc.py", ".env", "ignored.log", ".gitignore"):
        (tmp_path / name).write_text("*.log\n", encoding="utf-8")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "new.py").touch()
    assert _files(str(tmp_path)) == [".gitignore", "calc.py", "pkg/new.py"]
