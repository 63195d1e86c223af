"""A person sees what a call would do, and only a yes lets it run."""

import io
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from graph.terminal.approval import NOBODY, ask_person, preview
from graph.terminal.screen import Screen

EDIT = {
    "index": 0,
    "tool": "edit_file",
    "path": "calc.py",
    "rule": "ask_before_write",
    "arguments": {"path": "calc.py", "old_str": "a - b", "new_str": "a + b"},
}
WRITE = {**EDIT, "index": 2, "tool": "write_file", "arguments": {"path": "calc.py", "content": "new\n"}}
OTHER = {**EDIT, "tool": "deploy", "path": "", "arguments": {"where": "there\x1b[2J\nnow"}}


def answers(*lines: str) -> Any:
    waiting: Iterator[str] = iter(lines)

    def read_line(prompt: str) -> str:
        assert prompt in {"Allow edit_file calc.py? [y/N, s to stop] ", "Allow write_file calc.py? [y/N, s to stop] "}
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    return read_line


def decided(read_line: Any, *calls: dict[str, Any]) -> tuple[Any, str]:
    file = io.StringIO()
    request = {"kind": "approval", "calls": list(calls)}
    decisions = ask_person(request, Screen(Console(file=file)), read_line, lambda _: b"old\n")
    return decisions["decisions"], file.getvalue()


@pytest.mark.parametrize(
    ("said", "action"),
    [("y", "approve"), (" Yes ", "approve"), ("n", "reject"), ("", "reject"), ("yikes", "reject"), ("S", "stop")],
)
def test_only_a_yes_approves(said: str, action: str) -> None:
    assert decided(answers(said), EDIT)[0] == {"0": {"action": action}}


def test_each_call_has_its_own_question_and_the_end_of_the_input_rejects() -> None:
    decisions, shown = decided(answers("y"), EDIT, WRITE)
    assert decisions == {"0": {"action": "approve"}, "2": {"action": "reject"}}
    assert "-a - b\n+a + b\n" in shown
    assert "-old\n+new\n" in shown


def test_where_there_is_nobody_to_ask_every_call_is_rejected() -> None:
    assert decided(None, EDIT, WRITE) == (
        {"0": {"action": "reject", "reason": NOBODY}, "2": {"action": "reject", "reason": NOBODY}},
        "",
    )


def test_a_new_file_is_shown_as_new() -> None:
    lines = [line.text for line in preview(WRITE, lambda _: None)]
    assert lines == ["? write_file calc.py", "--- /dev/null", "+++ b/calc.py", "@@ -0,0 +1 @@", "+new"]


def test_other_calls_show_their_arguments_on_one_line_each() -> None:
    assert [line.text for line in preview(OTHER, lambda _: None)] == ["? deploy", r"  where: there\x1b[2J now"]


def test_a_block_is_shown_as_what_it_changes_in_the_file() -> None:
    old = b"def add(a, b):\n    return a - b\n\n\ndef sub(a, b):\n    return a - b\n"
    block = {**EDIT, "tool": "edit_blocks", "arguments": {"path": "calc.py", "content": ADDS}}
    shown = "\n".join(line.text for line in preview(block, lambda _: old))
    assert "-    return a - b\n+    return a + b\n" in shown
    assert "/dev/null" not in shown
    assert "-def sub" not in shown


ADDS = "def add(a, b):\n    return a + b\n"
