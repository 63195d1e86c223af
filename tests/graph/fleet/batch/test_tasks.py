"""The file of tasks: each good line is a task, and all that is wrong is told with its line."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from mendgraph.graph.fleet.batch.tasks import LIMITS, BatchTask, ReadTask, doubled, read_tasks

LINE = '{"id": "a", "prompt": "Do it.", "workspace": "w"}'
NAMES = st.text(st.sampled_from("aB9._-/ é\n"), min_size=0, max_size=101)


def told(*lines: str) -> list[str]:
    tasks, problems = read_tasks(lines, "t.jsonl")
    assert tasks == []
    return [str(problem).removeprefix("t.jsonl:") for problem in problems]


def test_a_line_is_a_task() -> None:
    whole = '{"id":"b","prompt":"é","workspace":"x.zip","revision":"v1","limits":{"max_steps":3}}\n'
    one = BatchTask(id="a", prompt="Do it.", workspace="w")
    other = BatchTask(id="b", prompt="é", workspace="x.zip", revision="v1", limits={"max_steps": 3})
    assert read_tasks([LINE, " \n", whole]) == ([ReadTask(one, 1), ReadTask(other, 3)], [])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "{",
            "1:2: this is no JSON (Expecting property name enclosed in double quotes): write one object on each line",
        ),
        ("[1]", '1: this is no JSON object: write {"id": ..., "prompt": ..., "workspace": ...}'),
        ('{"id": "a", "id": "b"}', "1: the key 'id' is there twice: which one is meant?"),
        ('{"id": NaN}', "1: this is no JSON that can be read (NaN is no number of JSON)"),
        ("[" * 100_000, "1: this is no JSON that can be read (nested too deep)"),
        (LINE.replace('"a"', "7"), "1: id: Input should be a valid string"),
        (LINE.replace('"workspace": "w"', '"workspace": ""'), "1: workspace: String should have at least 1 character"),
        (LINE.replace("workspace", "workspac"), "1: workspace: this key is missing"),
        (LINE.replace("Do it.", "  "), "1: prompt: it is empty: say in words what is wanted"),
        (LINE.replace("Do it.", "\\ud800"), "1: prompt: it holds a NUL or half of a surrogate pair, which no text has"),
        (LINE[:-1] + ', "revision": "-x"}', "1: revision: no revision begins with a hyphen"),
        (
            LINE[:-1] + ', "limits": {"max_steps": 0}}',
            "1: limits: max_steps: Input should be greater than or equal to 1",
        ),
        (LINE[:-1] + ', "q": 1}', "1: q: there is no such key"),
    ],
)
def test_what_is_wrong_is_told_with_its_remedy(line: str, problem: str) -> None:
    assert problem in told(line)


def test_every_problem_of_every_line_is_told() -> None:
    assert told("", "{", '{"promt": "", "workspace": "w"}') == [
        "2:2: this is no JSON (Expecting property name enclosed in double quotes): write one object on each line",
        "3: id: this key is missing",
        "3: prompt: this key is missing",
        "3: promt: there is no such key: did you mean prompt?",
    ]


def test_a_file_without_tasks_is_a_problem() -> None:
    (problem,) = read_tasks([], "t.jsonl")[1]
    assert str(problem) == 't.jsonl: it holds no task: write {"id": ..., "prompt": ..., "workspace": ...} on a line'


@pytest.mark.parametrize("name", ["max_cost_usd_per_account", "account", "model", "max_stepz"])
def test_only_limits_of_the_task_are_taken(name: str) -> None:
    (problem,) = told(LINE[:-1] + json.dumps({"limits": {name: 1}})[1:].join([", ", ""]))
    assert f"limits: {name!r} is no limit that a task may set: did you mean" in problem


def test_the_limits_are_those_of_the_context() -> None:
    assert {"max_steps", "max_seconds", "tool_timeout_s", "request_timeout_s", "tool_quotas"} <= LIMITS
    assert not {"account", "max_tokens_per_account", "mode", "allowed_programs"} & LIMITS


def test_ids_that_are_there_before_are_told_with_their_line() -> None:
    tasks, problems = read_tasks([LINE, LINE, LINE.replace('"a"', '"A"')])
    assert [task.id for task, _ in tasks] == ["a"]
    assert [(problem.line, problem.message) for problem in problems] == [
        (2, "the id 'a' is there on line 1 already: give each task an id of its own"),
        (3, "the id 'A' differs from 'a' on line 1 in small and large letters alone: give each its own"),
    ]
    assert doubled("a", "a") == "the id 'a' is there already: give each task an id of its own"


@given(NAMES)
def test_an_id_names_a_file(name: str) -> None:
    good = re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", name) is not None
    try:
        BatchTask(id=name, prompt="p", workspace="w")
    except ValidationError:
        assert not good
    else:
        assert good


@given(st.lists(st.text(max_size=30), max_size=6))
def test_no_text_is_too_much(lines: list[str]) -> None:
    tasks, problems = read_tasks(lines)
    assert tasks == []
    assert problems


def test_another_task_has_another_hash() -> None:
    task = BatchTask(id="a", prompt="p", workspace="w", limits={"max_steps": 1, "max_seconds": 2})
    same = BatchTask(id="a", prompt="p", workspace="w", limits={"max_seconds": 2, "max_steps": 1})
    changes: tuple[dict[str, Any], ...] = ({"prompt": "q"}, {"workspace": "v"}, {"revision": "r"}, {"limits": {}})
    assert same.sha256 == task.sha256
    assert len({task.sha256, *(task.model_copy(update=change).sha256 for change in changes)}) == 5
