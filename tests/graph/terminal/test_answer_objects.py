"""What the commands that work on no task answer to programs is as published."""

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from graph import cli
from graph.cassettes.cassette_lint import LintFinding
from graph.cassettes.from_run import WrittenCassette
from graph.terminal.answer_objects import LintFindingObject, PulledObject, WrittenCassetteObject
from graph.terminal.output_schema import object_schema
from graph.terminal.turns import run_once
from nodes.call_model.pull import Pulled
from nodes.records import JsonMap
from tests.graph.terminal.played_terminal import FIX, Terminal

SCHEMA = object_schema()
RUN = "RUN"
"""Stands for the id of a run."""

COMMANDS: Sequence[tuple[Sequence[str], str, bool]] = [
    (["runs"], "RunObject", True),
    (["runs", "show", RUN], "ShownRun", False),
    (["report", RUN], "WrittenReport", False),
    (["fork", RUN, "--at", "1"], "ForkedRun", False),
    (["undo", RUN], "RestoredObject", False),
    (["usage"], "DayObject", True),
    (["usage", "--accounts"], "AccountObject", True),
    (["doctor", "--offline"], "DoctorObject", False),
    (["doctor", "--bundle"], "BundleObject", False),
    (["config"], "SettingsObject", False),
    (["config", "check"], "CheckedFiles", False),
    (["config", "trust", "--forget"], "TrustObject", False),
    (["config", "check", "none.toml"], "ErrorObject", False),
    (["model", "status"], "WeightsObject", False),
    (["cassette", "lint", "."], "LintFindingObject", True),
    (["runs", "prune", "--keep", "9"], "PrunedRuns", False),
]
"""Commands, the definition of what they answer, and whether they answer with a list of it."""


def _validator(name: str) -> Draft202012Validator:
    """That of one definition, which allows no key that it does not name."""
    definitions: JsonMap = SCHEMA["$defs"]
    return Draft202012Validator({**definitions[name], "additionalProperties": False, "$defs": definitions})


def test_each_command_answers_as_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for each in (project, elsewhere):
        each.mkdir()
    terminal = Terminal(project, [FIX, "Fixed."])
    assert run_once(terminal.setup, "Fix add") == 0
    for command, name, listed in COMMANDS:
        monkeypatch.chdir(elsewhere if command[0] == "doctor" else project)
        words = [project.name if word == RUN else word for word in command]
        cli.main(["--json", *words])
        told = json.loads(capsys.readouterr().out)
        Draft202012Validator(SCHEMA).validate(told)
        values = told if listed else [told]
        for value in values:
            _validator(name).validate(value)
        assert values or name == "LintFindingObject", command


@pytest.mark.parametrize(
    ("kind", "published"),
    [(WrittenCassette, WrittenCassetteObject), (LintFinding, LintFindingObject), (Pulled, PulledObject)],
)
def test_what_takes_long_to_make_has_the_keys_that_are_published(kind: type[Any], published: type[Any]) -> None:
    assert {each.name for each in fields(kind)} == set(published.__annotations__)
