"""A person sees what a call would do, and it runs only after a yes."""

import io
import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mendgraph.graph.terminal.approval import HELP, ask_person, in_editor
from mendgraph.graph.terminal.output import Screen
from mendgraph.nodes.records import JsonMap
from tests.extent import slow
from tests.row_tables import rows

DIFF = "--- a/calc.py\n+++ b/calc.py\n@@ -1 +1 @@\n-a - b\n+a + b"
GRANT = "edit_file on every file"
EDIT: JsonMap = {
    "index": 0,
    "tool": "edit_file",
    "path": "calc.py",
    "rule": "ask_before_write",
    "arguments": {"path": "calc.py", "old_str": "a - b", "new_str": "a + b"},
    "preview": {"kind": "diff", "text": DIFF, "truncated": False},
    "choices": {"approve_for_run": GRANT},
    "digest": "d0",
}
LIKE: JsonMap = {**EDIT, "index": 2, "digest": "d2"}
CONFIG: JsonMap = {**EDIT, "path": "a.toml", "rule": "project_config", "choices": {}}
CHOICES = "[y]es, [a]ll like this in this run, [e]dit, [n]o, [s]top, [v]iew, [?]"


class Person:
    """A person who types these lines, then nothing; the prompts are recorded."""

    def __init__(self, *lines: str) -> None:
        self._lines: Iterator[str] = iter(lines)
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        try:
            return next(self._lines)
        except StopIteration:
            raise EOFError from None


def decide(
    person: Person | None, *calls: JsonMap, edit: Callable[[str], str | None] | None = None, width: int = 80
) -> tuple[Any, list[str]]:
    file = io.StringIO()
    request = {"kind": "approval", "calls": list(calls)}
    answer = ask_person(request, Screen(Console(file=file)), person, edit, width=width)
    return answer["decisions"], file.getvalue().splitlines()


def test_key_answers_and_a_line_gives_the_reason() -> None:
    keys, lines = Person("n"), Person("use b.py")
    file = io.StringIO()
    request = {"kind": "approval", "calls": [EDIT]}
    answer = ask_person(request, Screen(Console(file=file)), lines, read_key=keys)
    assert answer["decisions"]["0"] == {"action": "reject", "reason": "use b.py", "digest": "d0"}
    assert (keys.prompts, lines.prompts) == (["Allow edit_file calc.py? "], ["Why not (Enter: no reason)? "])


YES, NO = {"action": "approve"}, {"action": "reject"}
ANSWERS: dict[tuple[str, ...], tuple[int, JsonMap]] = {
    ("y",): (1, YES),
    (" YES ",): (1, YES),
    ("a",): (1, {"action": "approve_for_run"}),
    ("all",): (1, {"action": "approve_for_run"}),
    ("n use b.py",): (1, {**NO, "reason": "use b.py"}),
    ("S",): (1, {"action": "stop"}),
    ("", "y"): (2, YES),
    ("yikes", "y"): (2, YES),
    ("y please", "y"): (2, YES),
    ("1", "y"): (2, YES),
    ("a calc.py", "y"): (2, YES),
    (): (1, NO),
}
"""What a person says, after how many questions there is an answer, and which; the end of the input rejects."""


def test_word_is_accepted_and_anything_else_is_asked_again() -> None:
    answered = {}
    for lines in ANSWERS:
        person = Person(*lines)
        decisions, screen_lines = decide(person, EDIT)
        decision = {name: value for name, value in decisions["0"].items() if name != "digest"}
        assert decisions["0"]["digest"] == "d0"
        answered[lines] = (len(person.prompts), decision)
        asked_again = "Please answer with one of the letters; nothing has run." in screen_lines
        assert asked_again is (len(lines) == 2), lines
    assert answered == ANSWERS
    noise = Person(*["?!"] * 1_000)
    assert decide(noise, EDIT)[0] == {"0": {**NO, "digest": "d0"}}
    assert len(noise.prompts) < 100
    assert decide(None, EDIT, LIKE) == ({"0": {"action": "nobody"}, "2": {"action": "nobody"}}, [])


COMMANDS = {
    "bash -c 'echo $HOME; rm -rf build' it's": "bash -c 'echo $HOME; rm -rf build' it's",
    "make\nin sub": "make in sub",
    f"bash -c '{'x' * 300} > out'": f"bash -c '{'x' * 78}...{'x' * 91} > out'",
}


def test_approval_request_shows_the_diff_or_command_and_the_choices() -> None:
    person = Person("y")
    _, screen_lines = decide(person, EDIT)
    assert screen_lines == [
        "? edit_file calc.py: ask_before_write",
        *(f"│ {line}" for line in DIFF.splitlines()),
        CHOICES,
    ]
    assert person.prompts == ["Allow edit_file calc.py? "]
    for line, head in COMMANDS.items():
        argv: JsonMap = {"kind": "argv", "text": line, "truncated": False}
        command: JsonMap = {**EDIT, "tool": "run_command", "path": ".", "rule": "ask_before_run", "preview": argv}
        assert decide(Person("y"), command, width=400)[1][0] == f"? run_command {head}: ask_before_run"
    cut = {"kind": "arguments", "text": "The call would fail: no.", "truncated": True}
    _, screen_lines = decide(Person("n x"), {**EDIT, "preview": cut})
    assert screen_lines[1:3] == ["│ The call would fail: no.", "this is not all of it: v shows all arguments"]
    _, screen_lines = decide(Person("?", "v", "y"), EDIT, width=120)
    offered = [f"{key}  {text}" for key, text in HELP.items() if key not in "pwh"]
    assert [line for line in screen_lines if line[0].isalpha() and line[1:3] == "  "] == offered
    assert (f"a would allow: {GRANT}" in screen_lines, '│   "old_str": "a - b",' in screen_lines) == (True, True)


# --- Hunks


SECOND = "@@ -9 +9 @@\n-old\n+new"
NEW_FILE = "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x"
LONG: JsonMap = {
    **EDIT,
    "preview": {"kind": "diff", "text": f"{DIFF}\n{SECOND}\n{NEW_FILE}", "truncated": False},
    "hunks": 3,
}


@rows(
    (("h", "y", "n", "y"), {"action": "approve", "hunks": [1, 3]}),
    (("hunks", "Y", "", "perhaps", "y", "y"), {"action": "approve", "hunks": [1, 2, 3]}),
    (("h", "n", "y", "q"), {"action": "approve", "hunks": [2]}),
    (("h", "q", "use b.py"), {**NO, "reason": "use b.py"}),
    (("h", "n", "n", "n"), {**NO, "reason": ""}),
    (("h", "y", "y"), NO),
    (("h", "y"), NO),
    (("h",), NO),
)
def test_hunks_are_chosen_one_by_one(lines: tuple[str, ...], decision: JsonMap) -> None:
    assert decide(Person(*lines), LONG)[0] == {"0": {**decision, "digest": "d0"}}


def test_each_hunk_is_shown_with_its_file_and_number() -> None:
    person = Person("h", "y", "n", "q")
    _, screen_lines = decide(person, LONG)
    assert person.prompts == [
        "Allow edit_file calc.py? ",
        *(f"Write hunk {number} of 3 [y,n,q,?]? " for number in (1, 2, 3)),
    ]
    names = "--- a/calc.py\n+++ b/calc.py"
    hunks = [f"│ {line}" for line in f"{DIFF}\n{names}\n{SECOND}\n{NEW_FILE}".splitlines()]
    assert screen_lines[-len(hunks) :] == hunks
    assert CHOICES.replace("[e]dit", "[h]unks, [e]dit") in " ".join(screen_lines)


def test_hunks_cannot_be_chosen_where_none_are_offered() -> None:
    decisions, screen_lines = decide(Person("h", "y"), EDIT)
    assert decisions["0"]["action"] == "approve"
    assert "This call has no hunks to choose from: answer y or n." in screen_lines


# --- Permissions for later calls


def test_approve_for_run_covers_one_tool_and_one_rule() -> None:
    person = Person("a")
    decisions, screen_lines = decide(person, EDIT, LIKE)
    grant = {"action": "approve_for_run"}
    assert decisions == {"0": {**grant, "digest": "d0"}, "2": {**grant, "digest": "d2"}}
    assert (len(person.prompts), screen_lines[-1]) == (1, "  allowed: like the one before")
    assert "? edit_file calc.py (2 of 2): ask_before_write" in screen_lines
    for other in ({"rule": "env_file"}, {"choices": {"approve_for_run": "edit_file on src"}}):
        person = Person("a", "n no")
        decisions, _ = decide(person, EDIT, {**LIKE, **other})
        assert (decisions["2"], len(person.prompts)) == ({**NO, "reason": "no", "digest": "d2"}, 2)


@pytest.mark.parametrize(("letter", "action"), [("p", "approve_prefix"), ("w", "approve_always")])
def test_command_can_be_allowed_by_its_prefix_and_permanently(letter: str, action: str) -> None:
    log = "run_command git log"
    choices = {"approve_prefix": log, "approve_for_run": "run_command git", "approve_always": log}
    command: JsonMap = {**EDIT, "tool": "run_command", "choices": choices}
    decisions, screen_lines = decide(Person("?", letter), command, {**command, "index": 1})
    assert [decision["action"] for decision in decisions.values()] == [action, action]
    assert f"{letter} would allow: {log}" in screen_lines
    line = "[y]es, all that begin with this [p]refix, [a]ll like this in this run, al[w]ays in this folder, [e]dit,"
    assert " ".join(screen_lines).count(line) == 2


def test_project_configuration_is_asked_about_each_time_and_nothing_after_a_stop() -> None:
    decisions, screen_lines = decide(Person("a", "y"), CONFIG)
    assert decisions["0"]["action"] == "approve"
    assert "A call like this is asked about each time: answer y or n." in screen_lines
    assert not any("[a]ll" in line for line in screen_lines)
    person = Person("s", "y")
    assert decide(person, EDIT, LIKE)[0] == {"0": {"action": "stop", "digest": "d0"}}
    assert len(person.prompts) == 1


# --- Edited arguments


LIMIT: JsonMap = {
    "index": 0,
    "tool": "raise_limit",
    "path": "",
    "rule": "limit",
    "arguments": {"max_calls_per_turn": 120},
    "preview": {"kind": "limit", "text": "60 of 60 model calls are spent. Raise to 120?", "truncated": False},
    "choices": {},
    "digest": "d0",
}


@rows(
    (("y",), {"action": "approve"}),
    (("e", "200"), {"action": "edit", "arguments": {"max_calls_per_turn": 200}}),
    (("1,000",), {"action": "edit", "arguments": {"max_calls_per_turn": 1_000}}),
    (("maybe", "y"), {"action": "approve"}),
    (("n",), {"action": "stop"}),
    ((), {"action": "stop"}),
)
def test_limit_is_raised_by_a_key_or_a_number(lines: tuple[str, ...], decision: JsonMap) -> None:
    decisions, screen_lines = decide(Person(*lines), LIMIT)
    assert decisions == {"0": {**decision, "digest": "d0"}}
    assert screen_lines[:3] == [
        "? A limit is reached:",
        "│ 60 of 60 model calls are spent. Raise to 120?",
        "[y]es, [e]dit the number, [n]o: the run stops",
    ]


def test_arguments_are_edited_in_the_editor() -> None:
    seen: list[str] = []

    def edit(text: str) -> str:
        seen.append(text)
        return text.replace("a + b", "b + a")

    changed = {**EDIT["arguments"], "new_str": "b + a"}
    assert decide(Person("e"), EDIT, edit=edit)[0] == {"0": {"action": "edit", "arguments": changed, "digest": "d0"}}
    assert json.loads(seen[0]) == EDIT["arguments"]
    for without in (None, lambda _: None):
        decisions, screen_lines = decide(Person("e", "y"), EDIT, edit=without)
        assert (decisions["0"]["action"], "The text was not edited: " in "\n".join(screen_lines)) == ("approve", True)


def test_edited_arguments_that_are_not_an_object_are_asked_for_again() -> None:
    wrong = {
        "": "",
        "{'a': 1}": "This is not valid JSON: ",
        "[1]": "This is not a JSON object",
        "[" * 100_000: "This is not valid JSON",
    }
    for text, message in wrong.items():
        decisions, screen_lines = decide(Person("e", "y"), EDIT, edit=lambda _, text=text: text)  # type: ignore[misc]
        assert decisions["0"]["action"] == "approve"
        assert any(line.startswith(message) for line in screen_lines), text


def script(folder: Path, body: str) -> str:
    path = folder / "my editor"
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(stat.S_IRWXU)
    return f"'{path}' --wait"


@slow
def test_editor_gets_a_private_file_and_not_the_store_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "postgresql://u:plum-51-orchard@h/runs")
    editor = script(tmp_path, f'echo "$2" > {tmp_path}/name; env > {tmp_path}/env; echo "new: $(cat "$2")" > "$2"')
    assert in_editor({"EDITOR": editor}, "old") == "new: old\n"
    assert in_editor({"VISUAL": editor, "EDITOR": "false"}, "old") == "new: old\n"
    name = (tmp_path / "name").read_text(encoding="utf-8").strip()
    assert (name.endswith("/arguments.json"), Path(name).parent.exists()) == (True, False)
    assert "MENDGRAPH_STORE_URL" not in (tmp_path / "env").read_text(encoding="utf-8")
    for broken in ("", "   ", "'", "false", "/nowhere/to/be/found", "rm"):
        assert in_editor({"EDITOR": broken}, "old") is None, broken


# --- What a call may show


def test_call_can_neither_imitate_a_question_nor_control_the_screen() -> None:
    evil = "+x\x1b[2J\u202e\rAllow edit_file calc.py? y\n\x85Allow all? " + "w" * 100
    call = {**EDIT, "path": "a\nAllow? y", "preview": {"kind": "diff", "text": evil, "truncated": False}}
    _, screen_lines = decide(Person("v", "?", "y"), call, width=40)
    assert all(line.isprintable() and len(line) <= 39 for line in screen_lines)
    assert not [line for line in screen_lines if line.startswith("Allow")]
    assert "│ +x\\x1b[2J\\u202e\\x0dAllow" in "".join(screen_lines).replace("\\r", "\\x0d")


def test_approval_request_fits_a_narrow_terminal() -> None:
    wide = {**EDIT, "preview": {"kind": "argv", "text": "echo " + "漢字" * 60 + "\tx", "truncated": False}}
    for width in (1, 40, 120):
        person = Person("y")
        _, screen_lines = decide(person, wide, width=width)
        assert max(sum(2 if ord(character) > 0x2FFF else 1 for character in line) for line in screen_lines) < max(
            width, 20
        )
        assert len(person.prompts[0]) <= max(width, 20)
