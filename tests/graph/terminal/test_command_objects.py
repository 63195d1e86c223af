"""What the commands of a chat answer to programs is as published."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from graph.terminal.chat import chat
from graph.terminal.command_objects import COMMAND_LINES, COMMAND_OBJECTS
from graph.terminal.exit_codes import ExitCode
from graph.terminal.output_schema import line_schema, object_schema
from tests.graph.terminal.played_terminal import FIX, Terminal

LINES = ["fix", "/diff", "/plan", "/usage", "/model", "/undo", "/undoo", "/help", "/exit"]
NAMES = ["diff", "plan", "usage", "model", "undo", "error", "help", "exit"]


@pytest.mark.parametrize("json_lines", [False, True])
def test_each_command_answers_as_published(tmp_path: Path, json_lines: bool) -> None:
    terminal = Terminal(tmp_path, [FIX, "Fixed."], lines=LINES, as_json=True, json_lines=json_lines)
    assert chat(terminal.setup) is ExitCode.FINISHED
    told = [json.loads(line) for line in terminal.out.splitlines()][-len(NAMES) :]
    judge = Draft202012Validator(line_schema() if json_lines else object_schema())
    for name, value in zip(NAMES, told, strict=True):
        judge.validate(value)
        assert set(value) == ({name, "event"} if json_lines else {name})
        assert value.get("event", name) == name


def test_an_answer_is_the_same_among_json_lines() -> None:
    for alone, line in zip(COMMAND_OBJECTS, COMMAND_LINES, strict=True):
        assert set(line.__annotations__) == {*alone.__annotations__, "event"}
