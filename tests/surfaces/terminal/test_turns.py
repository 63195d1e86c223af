"""Turns at the terminal: their output, signals in the event loop and outside it, and the status line."""

import errno
import io
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals, raise_signal
from typing import Any

import pytest
from rich.console import Console

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.run_words import command_line
from mendgraph.graph.terminal.output import Screen
from mendgraph.graph.terminal.process_end import ExitCode, by_whom
from mendgraph.graph.terminal.screen import Display
from mendgraph.graph.terminal.status_line import StatusLine
from mendgraph.graph.terminal.turns import Turns, resume_once, run_once
from mendgraph.graph.terminal.visible_text import edits_in_blocks
from mendgraph.nodes.call_model.ledger import RunLimits
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import ModelReply, ProviderFailure
from mendgraph.nodes.workspace.store.run_folder import workspace_folder_path
from tests.doubles.scripted_model import ScriptedModel
from tests.sandboxes import needs_sandbox
from tests.surfaces.terminal.played_terminal import BUG, FIRST_LINE, FIX, READ, Terminal, TerminalFile
from tests.surfaces.terminal.signalled_models import (
    STOPPING,
    Interrupted,
    InterruptedTwice,
    Terminated as TerminatedModel,
    TerminatedTwice,
    interrupt_late,
)


class Full(io.StringIO):
    """A file on a full disk."""

    def write(self, text: str) -> int:
        assert text
        raise OSError(errno.ENOSPC, "No space left on device")


def test_run_ends_cleanly_if_the_output_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    terminal = Terminal(tmp_path, [READ, FIX, "It adds now."])
    full = replace(terminal.setup.display, out=Screen(Console(file=Full())))
    with pytest.raises(OSError, match="No space left"):
        run_once(replace(terminal.setup, display=full), "Fix add")
    assert caplog.messages == []
    assert terminal.calc.read_text(encoding="utf-8") == BUG


def test_task_shows_its_progress_and_result(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, [f"I look.\n{READ}", FIX, "It adds now."])
    assert run_once(terminal.setup, "Fix add") is ExitCode.FINISHED
    *lines, usage = terminal.out.splitlines()
    assert lines == [
        "mendgraph: I look.",
        "→ read_file calc.py  2 lines",
        "→ edit_file calc.py  1 replacement",
        "It adds now.",
        "",
        "--- a/calc.py",
        "+++ b/calc.py",
        "@@ -1,2 +1,2 @@",
        " def add(a, b):",
        "-    return a - b",
        "+    return a + b",
        (
            "FINISHED (answered): Changed calc.py; not checked: no test of calc.py was found (looked for test_calc.py,"
            " tests/test_calc.py, test/test_calc.py, and what imports it)."
        ),
    ]
    assert usage.startswith("usage: 3/10 calls, ")
    undo = command_line(str(tmp_path), "undo", tmp_path.name)
    assert terminal.err == f"mendgraph: run {tmp_path.name}; undo with: {undo}\n"


@needs_sandbox
def test_first_line_of_a_session_names_the_sandbox_once(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, ["One.", "Two."])
    with Turns(terminal.setup) as turns:
        turns.take("first")
        turns.take("second")
    assert FIRST_LINE.match(terminal.whole_err)
    assert terminal.whole_err.count("sandbox") == 1


def test_unusable_model_is_reported_only_by_the_run(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, [], context={"model": "gpt", "evidence": False})
    setup = replace(terminal.setup, environment={}, session_options={"thread_id": "t"})
    assert run_once(setup, "Fix add") is ExitCode.SYSTEM_ERROR
    assert "Model 'gpt' needs an endpoint: " in terminal.out
    assert "at most" not in terminal.whole_err


BLOCKS: tuple[tuple[dict[str, Any], dict[str, str], bool], ...] = (
    ({}, {}, True),
    ({"protocol": "text", "model": "local"}, {"OPENAI_API_KEY": "k"}, True),
    ({"model": "gpt"}, {"OPENAI_API_KEY": "k"}, False),
    ({"model": "qwen2.5-coder:1.5b"}, {"OPENAI_BASE_URL": "http://llm.test/v1"}, True),
    ({}, {"OPENAI_BASE_URL": "http://llm.test/v1"}, False),
    ({"edit_form": "blocks"}, {"OPENAI_BASE_URL": "http://llm.test/v1"}, True),
)


def test_small_model_edits_in_blocks() -> None:
    forms = [edits_in_blocks(AgentContext(**context), environment) for context, environment, _ in BLOCKS]
    assert forms == [expected for *_, expected in BLOCKS]


# --- Signals


@pytest.mark.parametrize(("model", "by"), [(Interrupted, "Ctrl-C"), (TerminatedModel, "SIGTERM")])
def test_signal_cancels_the_model_call_and_ends_the_task_with_an_outcome(
    tmp_path: Path, model: type[Interrupted], by: str
) -> None:
    terminal = Terminal(tmp_path, [FIX, "I go on"], model=model)
    assert run_once(terminal.setup, "Fix add") is ExitCode.BUDGET_STOP
    sentence = "Changed calc.py; not checked: the run ended before its changes were checked."
    assert f"\nBUDGET_STOP (cancelled): The run was stopped {by_whom(by)}. {sentence}\n" in terminal.out
    assert f"\nHow to continue: Continue with `{terminal.resume}`, or send another message.\n" in terminal.out
    ended = f"mendgraph: run {tmp_path.name}; continue with: {terminal.resume}\n"
    assert terminal.err == STOPPING.replace("Ctrl-C", by) + ended


@pytest.mark.parametrize(
    ("model", "code", "by"),
    [(InterruptedTwice, ExitCode.INTERRUPTED, "Ctrl-C"), (TerminatedTwice, ExitCode.TERMINATED, "SIGTERM")],
)
def test_second_signal_ends_a_task_at_once_and_names_the_changed_files(
    tmp_path: Path, model: type[Interrupted], code: ExitCode, by: str
) -> None:
    terminal = Terminal(tmp_path, [FIX, "I go on"], model=model)
    assert run_once(terminal.setup, "Fix add") is code
    assert terminal.out == "→ edit_file calc.py  1 replacement\n"
    message = f"mendgraph: stopped {by_whom(by)}; changed before that: calc.py; continue with: {terminal.resume}\n"
    assert terminal.err.removeprefix(STOPPING.replace("Ctrl-C", by)) == message


@pytest.mark.parametrize("context", [{}, {"mode": "ask"}])
def test_after_a_signal_no_call_of_the_reply_starts_and_no_approval_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: dict[str, str]
) -> None:
    interrupt_late(monkeypatch)
    terminal = Terminal(tmp_path, [FIX, "Done."], answer="y", context=context)
    assert run_once(terminal.setup, "Fix add") is ExitCode.BUDGET_STOP
    assert (terminal.prompts, terminal.calc.read_text(encoding="utf-8")) == ([], BUG)
    line = "→ edit_file calc.py  cancelled: The run was stopped before this call, so it did not run.\n"
    assert (line in terminal.out) is not bool(context)


@pytest.mark.parametrize(("number", "code"), [(SIGINT, ExitCode.INTERRUPTED), (SIGTERM, ExitCode.TERMINATED)])
def test_signal_at_an_approval_request_ends_the_task_at_once(tmp_path: Path, number: Signals, code: ExitCode) -> None:
    terminal = Terminal(tmp_path, [FIX], answer="y", context={"mode": "ask"})

    def hear(_: str) -> str:
        raise_signal(number)
        raise AssertionError("nothing happened")

    assert run_once(replace(terminal.setup, ask=hear), "Fix add") is code
    by = by_whom("Ctrl-C" if number is SIGINT else "SIGTERM")
    assert f"mendgraph: stopped {by}; continue with: {terminal.resume}\n" in terminal.err
    assert terminal.calc.read_text(encoding="utf-8") == BUG


# --- With a status line


class InterruptedThrice(Interrupted):
    signals = (SIGINT, SIGINT, SIGINT)


class Watching(ScriptedModel):
    """A model that looks at the terminal before it answers."""

    look: Callable[[], None] = lambda: None

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        self.look()
        return super().complete(call, on_text)


def with_a_status_line(screen: TerminalFile) -> Display:
    console = Console(file=screen, width=1_000, color_system=None, _environ={"TERM": "xterm"})
    live = StatusLine(console, RunLimits(), lambda: False, iter(range(1_000)).__next__)
    return Display(Screen(console, live.write), Screen(console, live.write), live=live)


def test_status_line_is_below_the_run_and_removed_at_the_end(tmp_path: Path) -> None:
    screen, seen = TerminalFile(), list[str]()
    quiet = {"evidence": False}
    played = Terminal(tmp_path, ["I look.\n" + READ, FIX, "It adds now."], model=Watching, context=quiet)
    played.setup.session_options["model"].look = lambda: seen.append(screen.visible_lines[-1])
    setup = replace(played.setup, display=with_a_status_line(screen))
    assert run_once(setup, "Fix add") is ExitCode.FINISHED
    assert resume_once(setup) is ExitCode.FINISHED
    counts = [re.sub(r" · [\d:]+ · ", " · ", line[: line.index(" · in ")]) for line in seen if "calls" in line]
    assert counts == [f"waiting for the model · calls {calls}/10" for calls in range(3)]
    assert not [line for line in screen.visible_lines if " · calls " in line]
    assert screen.visible_lines[1:5] == [
        "mendgraph: I look.",
        "→ read_file calc.py  2 lines",
        "→ edit_file calc.py  1 replacement",
        "It adds now.",
    ]


def test_status_line_shows_the_stop_and_further_signals_change_nothing(tmp_path: Path) -> None:
    screen = TerminalFile()
    terminal = Terminal(tmp_path, [READ, "I wait"], model=InterruptedThrice)
    assert run_once(replace(terminal.setup, display=with_a_status_line(screen)), "wait") is ExitCode.INTERRUPTED
    assert STOPPING.strip() in screen.visible_lines


def test_unreadable_earlier_usage_is_left_to_the_turn(tmp_path: Path) -> None:
    screen = TerminalFile()
    played = Terminal(tmp_path, ["It adds."], context={"evidence": False})
    assert run_once(played.setup, "Does it add?") is ExitCode.FINISHED
    store = Path(workspace_folder_path(str(tmp_path)), "store.sqlite")
    with closing(sqlite3.connect(store, isolation_level=None)) as database:
        database.execute("UPDATE checkpoints SET type = NULL")
    setup = replace(played.setup, display=with_a_status_line(screen))
    assert run_once(setup, "And now?") is ExitCode.SYSTEM_ERROR
    shown = " ".join(line.strip() for line in screen.visible_lines)
    assert f"SYSTEM_ERROR (store_failed): The run {tmp_path.name} cannot be read." in shown
