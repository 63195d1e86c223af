"""A person sees what a call would do, and only a yes lets it run."""

import io
import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mendgraph.graph.terminal.answers import Screen
from mendgraph.graph.terminal.approval import HELP, ask_person, in_editor
from mendgraph.nodes.records import JsonMap

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
    """Says these lines, and then nothing more; keeps the prompts."""

    def __init__(self, *lines: str) -> None:
        self._lines: Iterator[str] = iter(lines)
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        try:
            return next(self._lines)
        except StopIteration:
            raise EOFError from None


def decided(
    person: Person | None, *calls: JsonMap, edit: Callable[[str], str | None] | None = None, width: int = 80
) -> tuple[Any, list[str]]:
    file = io.StringIO()
    request = {"kind": "approval", "calls": list(calls)}
    answer = ask_person(request, Screen(Console(file=file)), person, edit, width=width)
    return answer["decisions"], file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("said", "decision"),
    [
        ("y", {"action": "approve"}),
        (" YES ", {"action": "approve"}),
        ("a", {"action": "approve_for_run"}),
        ("all", {"action": "approve_for_run"}),
        ("n use b.py", {"action": "reject", "reason": "use b.py"}),
        ("S", {"action": "stop"}),
    ],
)
def test_word_is_an_answer(said: str, decision: JsonMap) -> None:
    assert decided(Person(said), EDIT)[0] == {"0": {**decision, "digest": "d0"}}


def test_diff_and_the_choices_stand_above_the_question() -> None:
    person = Person("y")
    _, shown = decided(person, EDIT)
    head = "? edit_file calc.py: ask_before_write"
    assert shown == [head, *(f"│ {line}" for line in DIFF.splitlines()), CHOICES]
    assert person.prompts == ["Allow edit_file calc.py? "]


@pytest.mark.parametrize(
    ("line", "head"),
    [
        ("bash -c 'echo $HOME; rm -rf build' it's", "bash -c 'echo $HOME; rm -rf build' it's"),
        ("make\nin sub", "make in sub"),
        (f"bash -c '{'x' * 300} > out'", f"bash -c '{'x' * 78}...{'x' * 91} > out'"),
    ],
)
def test_command_is_named_by_its_line(line: str, head: str) -> None:
    argv: JsonMap = {"kind": "argv", "text": line, "truncated": False}
    command: JsonMap = {**EDIT, "tool": "run_command", "path": ".", "rule": "ask_before_run", "preview": argv}
    _, shown = decided(Person("y"), command, width=400)
    assert shown[0] == f"? run_command {head}: ask_before_run"


def test_key_answers_and_lines_give_reasons() -> None:
    keys, lines = Person("n"), Person("use b.py")
    file = io.StringIO()
    request = {"kind": "approval", "calls": [EDIT]}
    answer = ask_person(request, Screen(Console(file=file)), lines, read_key=keys)
    assert answer["decisions"]["0"] == {"action": "reject", "reason": "use b.py", "digest": "d0"}
    assert (keys.prompts, lines.prompts) == (["Allow edit_file calc.py? "], ["Why not (Enter: no reason)? "])


@pytest.mark.parametrize("said", ["", "yikes", "y please", "1", "a calc.py"])
def test_word_that_means_nothing_is_asked_again(said: str) -> None:
    person = Person(said, "y")
    decisions, shown = decided(person, EDIT)
    assert (decisions["0"]["action"], len(person.prompts)) == ("approve", 2)
    assert "Please answer with one of the letters; nothing has run." in shown


def test_end_of_the_input_and_endless_noise_reject() -> None:
    assert decided(Person(), EDIT)[0] == {"0": {"action": "reject", "digest": "d0"}}
    noise = Person(*["?!"] * 1_000)
    assert decided(noise, EDIT)[0] == {"0": {"action": "reject", "digest": "d0"}}
    assert len(noise.prompts) < 100


def test_where_there_is_nobody_to_ask_that_is_the_answer() -> None:
    assert decided(None, EDIT, LIKE) == ({"0": {"action": "nobody"}, "2": {"action": "nobody"}}, [])


def test_all_like_this_is_not_asked_again() -> None:
    person = Person("a")
    decisions, shown = decided(person, EDIT, LIKE)
    assert decisions == {
        "0": {"action": "approve_for_run", "digest": "d0"},
        "2": {"action": "approve_for_run", "digest": "d2"},
    }
    assert (len(person.prompts), shown[-1]) == (1, "  allowed: like the one before")
    assert [line for line in shown if line.startswith("?")][1] == "? edit_file calc.py (2 of 2): ask_before_write"


@pytest.mark.parametrize("other", [{"rule": "env_file"}, {"choices": {"approve_for_run": "edit_file on src"}}])
def test_grant_for_the_run_is_that_of_one_tool_and_one_rule(other: JsonMap) -> None:
    person = Person("a", "n no")
    decisions, _ = decided(person, EDIT, {**LIKE, **other})
    assert decisions["2"] == {"action": "reject", "reason": "no", "digest": "d2"}
    assert len(person.prompts) == 2


@pytest.mark.parametrize(("letter", "action"), [("p", "approve_prefix"), ("w", "approve_always")])
def test_command_may_be_allowed_by_its_prefix_and_for_good(letter: str, action: str) -> None:
    log = "run_command git log"
    choices = {"approve_prefix": log, "approve_for_run": "run_command git", "approve_always": log}
    command: JsonMap = {**EDIT, "tool": "run_command", "choices": choices}
    decisions, shown = decided(Person("?", letter), command, {**command, "index": 1})
    assert [each["action"] for each in decisions.values()] == [action, action]
    assert f"{letter} would allow: {log}" in shown
    line = "[y]es, all that begin with this [p]refix, [a]ll like this in this run, al[w]ays in this folder, [e]dit,"
    assert " ".join(shown).count(line) == 2


def test_project_configuration_is_asked_for_each_time() -> None:
    person = Person("a", "y")
    decisions, shown = decided(person, CONFIG)
    assert decisions["0"]["action"] == "approve"
    assert "A call like this is asked about each time: answer y or n." in shown
    assert not any("[a]ll" in line for line in shown)


def test_after_a_stop_nothing_more_is_asked() -> None:
    person = Person("s", "y")
    assert decided(person, EDIT, LIKE)[0] == {"0": {"action": "stop", "digest": "d0"}}
    assert len(person.prompts) == 1


def test_arguments_are_changed_in_the_editor() -> None:
    seen: list[str] = []

    def edit(text: str) -> str:
        seen.append(text)
        return text.replace("a + b", "b + a")

    changed = {**EDIT["arguments"], "new_str": "b + a"}
    expected = {"0": {"action": "edit", "arguments": changed, "digest": "d0"}}
    assert decided(Person("e"), EDIT, edit=edit)[0] == expected
    assert json.loads(seen[0]) == EDIT["arguments"]


def test_without_an_editor_they_are_changed_in_one_line() -> None:
    person = Person("e", '{"path": "b.py"}')
    assert decided(person, EDIT)[0] == {"0": {"action": "edit", "arguments": {"path": "b.py"}, "digest": "d0"}}
    assert person.prompts[1] == "Arguments: "
    assert decided(Person("e", "{}"), EDIT, edit=lambda _: None)[0]["0"]["action"] == "edit"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ""),
        ("{'a': 1}", "That is no JSON: "),
        ("[1]", "That is no JSON object"),
        ("[" * 100_000, "That is no JSON"),
    ],
)
def test_arguments_that_are_no_object_are_asked_again(text: str, told: str) -> None:
    decisions, shown = decided(Person("e", "y"), EDIT, edit=lambda _: text)
    assert decisions["0"]["action"] == "approve"
    assert any(line.startswith(told) for line in shown)


def test_help_and_all_arguments_can_be_seen() -> None:
    _, shown = decided(Person("?", "v", "y"), EDIT, width=120)
    assert [line for line in HELP if line in shown] == list(HELP)
    assert f"a would allow: {GRANT}" in shown
    assert '│   "old_str": "a - b",' in shown


def test_what_is_wrong_and_what_is_cut_is_said() -> None:
    preview = {"kind": "arguments", "text": "The call would fail: no.", "truncated": True}
    _, shown = decided(Person("n x"), {**EDIT, "preview": preview})
    assert shown[1:3] == ["│ The call would fail: no.", "not all of it is shown here: v shows all arguments"]


def test_nothing_that_a_call_says_can_look_like_a_question_or_steer_the_screen() -> None:
    evil = "+x\x1b[2J\u202e\rAllow edit_file calc.py? y\n\x85Allow all? " + "w" * 100
    call = {**EDIT, "path": "a\nAllow? y", "preview": {"kind": "diff", "text": evil, "truncated": False}}
    _, shown = decided(Person("v", "?", "y"), call, width=40)
    assert all(line.isprintable() and len(line) <= 39 for line in shown)
    assert not [line for line in shown if line.startswith("Allow")]
    assert "│ +x\\x1b[2J\\u202e\\x0dAllow" in "".join(shown).replace("\\r", "\\x0d")


@pytest.mark.parametrize("width", [1, 40, 120])
def test_lines_fit_a_narrow_terminal(width: int) -> None:
    wide = {**EDIT, "preview": {"kind": "argv", "text": "echo " + "漢字" * 60 + "\tx", "truncated": False}}
    person = Person("y")
    _, shown = decided(person, wide, width=width)
    cells = [sum(2 if ord(each) > 0x2FFF else 1 for each in line) for line in shown]
    assert max(cells) < max(width, 20)
    assert len(person.prompts[0]) <= max(width, 20)


def script(folder: Path, body: str) -> str:
    path = folder / "my editor"
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(stat.S_IRWXU)
    return f"'{path}' --wait"


def test_text_comes_back_as_it_was_left(tmp_path: Path) -> None:
    editor = script(
        tmp_path, f'ls -l "$2" > {tmp_path}/mode; echo "$2" > {tmp_path}/name; echo "new: $(cat "$2")" > "$2"'
    )
    assert in_editor({"EDITOR": editor}, "old") == "new: old\n"
    name = (tmp_path / "name").read_text(encoding="utf-8").strip()
    assert name.endswith("/arguments.json")
    assert not Path(name).parent.exists()
    assert in_editor({"VISUAL": editor, "EDITOR": "false"}, "old") == "new: old\n"


def test_it_does_not_learn_where_the_shared_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "postgresql://u:plum-51-orchard@h/runs")
    editor = script(tmp_path, 'env > "$2"')
    assert "MENDGRAPH_STORE_URL" not in (in_editor({"EDITOR": editor}, "old") or "MENDGRAPH_STORE_URL")


@pytest.mark.parametrize("editor", ["", "   ", "'", "false", "/nowhere/to/be/found", "rm"])
def test_no_editor_and_one_that_fails_give_nothing(editor: str) -> None:
    assert in_editor({"EDITOR": editor}, "old") is None
