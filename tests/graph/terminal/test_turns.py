"""Turns at a terminal: one task or a chat, on a scripted model in a real workspace."""

import asyncio
import json
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graph.context import AgentContext
from graph.terminal.exit_codes import ExitCode
from graph.terminal.turns import TOOL_THREAD, _let_tools_tidy_up, chat, edits_in_blocks, run_once
from nodes.call_model.model import Call
from nodes.records import ModelReply, ProviderErrorKind, ProviderFailure
from tests.doubles.scripted_model import ScriptedModel
from tests.graph.terminal.played_terminal import BUG, READ, Terminal

FIX = 'tool: edit_file({"path": "calc.py", "old_str": "a - b", "new_str": "a + b"})'
COMMENT = 'tool: edit_file({"path": "calc.py", "old_str": "a + b", "new_str": "a + b  # sum"})'
DOWN = ProviderFailure(kind=ProviderErrorKind.AUTHENTICATION, message="The endpoint refuses the key.")


STOPPING = "mendgraph: stopping after the running step; Ctrl-C again to stop at once\n"
"""SIGTERM puts its own name there."""


class Interrupted(ScriptedModel):
    """A model that waits after its second line, at which these signals come."""

    signals: tuple[signal.Signals, ...] = (signal.SIGINT,)

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        reply = self.complete(call, on_text)
        if len(self.calls) == 2:
            for each in self.signals:
                signal.raise_signal(each)
            await asyncio.sleep(60)
        return reply


class InterruptedTwice(Interrupted):
    signals = (signal.SIGINT, signal.SIGINT)


class Terminated(Interrupted):
    signals = (signal.SIGTERM,)


class TerminatedTwice(Interrupted):
    signals = (signal.SIGTERM, signal.SIGTERM)


class InterruptedLate(ScriptedModel):
    """A model whose replies are complete when Ctrl-C comes."""

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        signal.raise_signal(signal.SIGINT)
        return self.complete(call, on_text)


def test_a_task_is_worked_on_before_the_eyes_of_its_owner(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, [f"I look.\n{READ}", FIX, "It adds now."])
    assert run_once(terminal.setup, "Fix add") is ExitCode.FINISHED
    *lines, usage, _, _, _, _, _ = terminal.out.splitlines()
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
        "FINISHED (answered): 1 file changed: calc.py",
    ]
    assert usage.startswith("usage: 3/10 calls, ")
    assert terminal.err == ""


def test_many_changes_of_a_file_are_one_diff(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, [FIX, COMMENT, 'tool: final_answer({"answer": "Done so."})'])
    assert run_once(terminal.setup, "Fix add") is ExitCode.FINISHED
    assert "mendgraph: Done so.\n" in terminal.out
    assert "-    return a - b\n+    return a + b  # sum\nFINISHED" in terminal.out


@pytest.mark.parametrize(
    ("script", "context", "code", "line"),
    [
        ([READ, READ], {"max_calls_per_turn": 1}, ExitCode.BUDGET_STOP, "BUDGET_STOP (max_calls_per_turn): Limit "),
        ([DOWN], {}, ExitCode.SYSTEM_ERROR, "SYSTEM_ERROR (provider_failed): The endpoint refuses the key."),
    ],
)
def test_other_ends_have_their_code_their_reason_and_a_way_on(
    tmp_path: Path, script: list[Any], context: dict[str, Any], code: ExitCode, line: str
) -> None:
    terminal = Terminal(tmp_path, script, context=context)
    assert run_once(terminal.setup, "Fix add") is code
    assert line in terminal.out
    assert "How to go on: " in terminal.out


def test_json_is_one_object(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, [f"I look.\n{FIX}", "Done."], as_json=True)
    assert run_once(terminal.setup, "Fix add") is ExitCode.FINISHED
    shown = json.loads(terminal.out)
    assert set(shown) == {"outcome", "changes", "plan", "usage", "steps", "compactions", "thread_id", "log"}
    assert (shown["outcome"]["kind"], shown["changes"][0]["path"]) == ("FINISHED", "calc.py")
    assert (shown["log"], shown["thread_id"]) == ("/data/audit\x1b.jsonl", terminal.thread_id)
    assert terminal.err == "→ edit_file calc.py  1 replacement\n"


def test_debug_ends_each_turn_with_the_place_of_its_log(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, ["Hello.", "I wait"], model=Interrupted, lines=["hi", "wait"], debug=True)
    assert chat(terminal.setup) is ExitCode.FINISHED
    log = "log: /data/audit\\x1b.jsonl\n"
    told = [line for line in terminal.err.splitlines(keepends=True) if "{" not in line]
    assert told == [log, STOPPING, log]


def test_debug_ends_a_turn_that_was_ended_at_once_with_the_place_of_its_log(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, [READ, "I wait"], model=InterruptedTwice, debug=True)
    assert run_once(terminal.setup, "wait") is ExitCode.INTERRUPTED
    assert terminal.err.endswith("\nlog: /data/audit\\x1b.jsonl\n")


@pytest.mark.parametrize("audit", [True, False])
def test_a_run_without_a_log_names_none(tmp_path: Path, audit: bool) -> None:
    terminal = Terminal(tmp_path, ["Hello."], as_json=True, debug=True, context={"audit": audit})
    setup = replace(terminal.setup, find_log=lambda _: None) if audit else terminal.setup
    assert run_once(setup, "Hello") is ExitCode.FINISHED
    assert json.loads(terminal.out)["log"] is None
    assert "log:" not in terminal.err


@pytest.mark.parametrize(
    ("said", "kind", "text"),
    [("y", "FINISHED", BUG.replace("-", "+")), ("n", "FINISHED", BUG), ("s", "BUDGET_STOP", BUG)],
)
def test_a_person_decides_about_each_change(tmp_path: Path, said: str, kind: str, text: str) -> None:
    terminal = Terminal(tmp_path, [FIX, "Done."], said=said, context={"mode": "ask"})
    assert run_once(terminal.setup, "Fix add") is ExitCode[kind]
    assert terminal.asked == ["Allow edit_file calc.py? [y/N, s to stop] "]
    assert "-a - b\n+a + b\n" in terminal.err
    assert terminal.calc.read_text(encoding="utf-8") == text


def test_where_nobody_can_be_asked_nothing_is_changed(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, [FIX, "I may not."], context={"mode": "ask"})
    assert run_once(terminal.setup, "Fix add") is ExitCode.FINISHED
    (line,) = [line for line in terminal.out.splitlines() if line.startswith("⛔")]
    assert line.startswith("⛔ edit_file calc.py: ")
    assert "nobody can be asked" in line
    assert "--mode auto" in line
    assert terminal.calc.read_text(encoding="utf-8") == BUG


SIGNALS = pytest.mark.parametrize(("model", "by"), [(Interrupted, "Ctrl-C"), (Terminated, "SIGTERM")])


@SIGNALS
def test_a_signal_drops_the_model_call_and_ends_the_task_with_an_outcome(
    tmp_path: Path, model: type[Interrupted], by: str
) -> None:
    terminal = Terminal(tmp_path, [FIX, "I go on"], model=model)
    assert run_once(terminal.setup, "Fix add") is ExitCode.BUDGET_STOP
    assert f"\nBUDGET_STOP (cancelled): The run was stopped by {by}.\n1 file changed: calc.py\n" in terminal.out
    assert "\nHow to go on: Go on from there with `mendgraph resume`, or send another message.\n" in terminal.out
    assert terminal.err == STOPPING.replace("Ctrl-C", by)


@SIGNALS
def test_with_json_a_drained_run_is_an_outcome_too(tmp_path: Path, model: type[Interrupted], by: str) -> None:
    terminal = Terminal(tmp_path, [READ, "I go on"], model=model, as_json=True)
    assert run_once(terminal.setup, "Fix add") is ExitCode.BUDGET_STOP
    outcome = json.loads(terminal.out)["outcome"]
    assert (outcome["kind"], outcome["reason"]) == ("BUDGET_STOP", "cancelled")
    assert outcome["message"] == f"The run was stopped by {by}."


@pytest.mark.parametrize(
    ("model", "code", "by"),
    [
        (InterruptedTwice, ExitCode.INTERRUPTED, "Ctrl-C"),
        (TerminatedTwice, ExitCode.TERMINATED, "SIGTERM"),
    ],
)
def test_the_second_signal_ends_a_task_at_once_and_says_what_was_changed(
    tmp_path: Path, model: type[Interrupted], code: ExitCode, by: str
) -> None:
    terminal = Terminal(tmp_path, [FIX, "I go on"], model=model)
    assert run_once(terminal.setup, "Fix add") is code
    assert terminal.out == "→ edit_file calc.py  1 replacement\n"
    way_on = f"go on with: mendgraph resume {terminal.thread_id}"
    said = f"mendgraph: stopped by {by}; changed before that: calc.py; {way_on}\n"
    assert terminal.err.removeprefix(STOPPING.replace("Ctrl-C", by)) == said


def test_ended_at_once_with_json_there_is_an_object_too(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, [READ, "I go on"], model=InterruptedTwice, as_json=True)
    assert run_once(terminal.setup, "Fix add") is ExitCode.INTERRUPTED
    message = f"stopped by Ctrl-C; go on with: mendgraph resume {terminal.thread_id}"
    assert json.loads(terminal.out) == {"error": {"code": "interrupted", "message": message}}


def test_a_reply_that_is_complete_counts(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, ["It adds."], model=InterruptedLate)
    assert run_once(terminal.setup, "Does it add?") is ExitCode.FINISHED
    assert (terminal.out.startswith("mendgraph: It adds.\nFINISHED"), terminal.err) == (True, STOPPING)


def test_the_calls_of_a_reply_are_not_begun_after_a_signal(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, [FIX, "Done."], model=InterruptedLate)
    assert run_once(terminal.setup, "Fix add") is ExitCode.BUDGET_STOP
    assert "→ edit_file calc.py  cancelled: The run was stopped before this call, so it did not run.\n" in terminal.out
    assert terminal.calc.read_text(encoding="utf-8") == BUG


def test_nobody_is_asked_once_the_run_is_to_stop(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, [FIX, "Done."], model=InterruptedLate, said="y", context={"mode": "ask"})
    assert run_once(terminal.setup, "Fix add") is ExitCode.BUDGET_STOP
    assert (terminal.asked, terminal.calc.read_text(encoding="utf-8")) == ([], BUG)


def test_a_call_that_nobody_waits_for_any_more_tidies_up_before_the_end() -> None:
    free, ended = threading.Event(), []

    class Tool(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            free.set()
            super().join(timeout)

    tool = Tool(target=lambda: ended.append(free.wait()), name=TOOL_THREAD)
    tool.start()
    _let_tools_tidy_up()
    assert (ended, tool.is_alive()) == ([True], False)


def test_the_signals_are_afterwards_what_they_were(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run_once(Terminal(tmp_path, [READ, "I wait"], model=TerminatedTwice).setup, "Fix add")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


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


def test_each_turn_is_stopped_by_a_signal_of_its_own(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, ["One.", "Two."], model=InterruptedLate, lines=["one", "two"])
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


@pytest.mark.parametrize(
    ("number", "code", "by"),
    [(signal.SIGINT, ExitCode.INTERRUPTED, "Ctrl-C"), (signal.SIGTERM, ExitCode.TERMINATED, "SIGTERM")],
)
def test_a_signal_at_a_question_ends_the_task_at_once(
    tmp_path: Path, number: signal.Signals, code: ExitCode, by: str
) -> None:
    terminal = Terminal(tmp_path, [FIX], said="y", context={"mode": "ask"})

    def hear(_: str) -> str:
        signal.raise_signal(number)
        raise AssertionError("nothing happened")

    assert run_once(replace(terminal.setup, ask=hear), "Fix add") is code
    assert f"mendgraph: stopped by {by}; go on with: mendgraph resume {terminal.thread_id}\n" in terminal.err
    assert terminal.calc.read_text(encoding="utf-8") == BUG


def test_a_chat_goes_on_after_ctrl_c_at_a_question(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, [FIX, "Hello."], said="y", context={"mode": "ask"}, lines=["fix", "hi"])

    def stop(_: str) -> str:
        raise KeyboardInterrupt

    assert chat(replace(terminal.setup, ask=stop)) is ExitCode.FINISHED
    assert "mendgraph: stopped by Ctrl-C; " in terminal.err
    assert "mendgraph: Hello.\n" in terminal.out
    assert terminal.calc.read_text(encoding="utf-8") == BUG


def test_a_chat_in_json_is_one_object_for_each_turn(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, ["Hello.", "Bye."], lines=["hi", "bye"], as_json=True)
    assert chat(terminal.setup) is ExitCode.FINISHED
    assert terminal.asked == [""] * 3
    assert [json.loads(line)["outcome"]["answer"] for line in terminal.out.splitlines()] == ["Hello.", "Bye."]


@pytest.mark.parametrize(
    ("context", "environment", "expected"),
    [
        ({}, {}, True),
        ({"protocol": "text", "model": "local"}, {"OPENAI_API_KEY": "k"}, True),
        ({"protocol": "native"}, {}, True),
        ({"model": "gpt"}, {"OPENAI_API_KEY": "k"}, False),
        ({"model": "qwen2.5-coder:1.5b"}, {"OPENAI_BASE_URL": "http://llm.test/v1"}, True),
        ({"model": "qwen2.5-coder:32b"}, {"OPENAI_BASE_URL": "http://llm.test/v1"}, False),
        ({}, {"OPENAI_BASE_URL": "http://llm.test/v1"}, False),
        ({"edit_form": "blocks"}, {"OPENAI_BASE_URL": "http://llm.test/v1"}, True),
        ({"edit_form": "replace"}, {}, False),
    ],
)
def test_a_small_model_edits_in_blocks(
    tmp_path: Path, context: dict[str, Any], environment: dict[str, str], expected: bool
) -> None:
    setup = replace(
        Terminal(tmp_path, []).setup, context=AgentContext(**context), environment=environment, session_options={}
    )
    assert edits_in_blocks(setup) is expected


def test_a_model_of_ones_own_edits_as_its_name_says(tmp_path: Path) -> None:
    setup = replace(Terminal(tmp_path, []).setup, environment={})
    for name, expected in (None, False), ("local", False), ("qwen2.5-coder:1.5b", True):
        assert edits_in_blocks(replace(setup, context=AgentContext(model=name))) is expected
