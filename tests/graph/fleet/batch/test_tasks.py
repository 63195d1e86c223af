"""The file of tasks: each good line is a task, and all that is wrong is told with its line."""

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from mendgraph.graph.configuration.loading import Problem
from mendgraph.graph.fleet.batch.tasks import BatchTask, ReadTask, Sources, find_sources, numbered, read_task_file
from tests.runs.batching import repository

LINE = '{"id": "a", "prompt": "Do it.", "workspace": "w"}'
NAMES = st.text(st.sampled_from("aB9._-/ é\n"), min_size=0, max_size=101)


def read(*lines: str) -> list[ReadTask] | tuple[Problem, ...]:
    """What a file of these lines holds."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "t.jsonl")
        file.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
        return read_task_file(str(file))


def told(*lines: str) -> list[str]:
    problems = read(*lines)
    assert isinstance(problems, tuple)
    return [str(problem).partition("t.jsonl:")[2] for problem in problems]


def test_line_is_a_task() -> None:
    whole = '{"id":"b","prompt":"é","workspace":"/x.zip","revision":"v1","limits":{"max_steps":3}}\n'
    one = BatchTask(id="a", prompt="Do it.", workspace="/w")
    other = BatchTask(id="b", prompt="é", workspace="/x.zip", revision="v1", limits={"max_steps": 3})
    assert read(LINE.replace('"w"', '"/w"'), " ", whole) == [ReadTask(one, 1), ReadTask(other, 3)]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "1: Invalid JSON: "),
        ("[1]", "1: Input should be an object"),
        ("\ud800", "1: Invalid JSON: "),
        (LINE.replace('"a"', "7"), "1: id: Input should be a valid string"),
        (LINE.replace('"workspace": "w"', '"workspace": ""'), "1: workspace: String should have at least 1 character"),
        (LINE.replace("workspace", "workspac"), "1: workspace: Field required"),
        (LINE.replace("Do it.", "  "), "1: prompt: it is empty: say in words what is wanted"),
        (LINE.replace("Do it.", "\\u0000"), "1: prompt: it holds a NUL or half of a surrogate pair, which no text has"),
        (LINE[:-1] + ', "revision": "-x"}', "1: revision: String should match pattern"),
        (LINE[:-1] + ', "limits": {"max_steps": 0}}', "1: limits: max_steps: Input should be greater than or equal to"),
        (LINE[:-1] + ', "q": 1}', "1: q: Extra inputs are not permitted"),
        ("", ' it holds no task: write {"id": ..., "prompt": ..., "workspace": ...} on a line'),
    ],
)
def test_what_is_wrong_is_told_with_its_line(line: str, problem: str) -> None:
    assert any(each.startswith(problem) for each in told(line))


def test_every_problem_of_every_line_is_told() -> None:
    found = [each.partition(":")[0] for each in told(LINE, "{", '{"promt": "", "workspace": "w"}')]
    assert found == ["2", "3", "3", "3"]


@pytest.mark.parametrize("name", ["max_cost_usd_per_account", "account", "model", "max_stepz"])
def test_only_limits_of_the_task_are_taken(name: str) -> None:
    (problem,) = told(LINE[:-1] + json.dumps({"limits": {name: 1}})[1:].join([", ", ""]))
    assert f"limits: {name!r} is no limit that a task may set: did you mean" in problem


def test_ids_that_are_there_before_are_told_with_their_line() -> None:
    tasks = [ReadTask(task_in(name, "/w"), line) for line, name in enumerate("abaA", 1)]
    assert [(problem.line, problem.message) for problem in numbered(tasks, "t")] == [
        (line, "the id 'a' is there already: give each task an id of its own, whatever its capitals (line 1)")
        for line in (3, 4)
    ]


@given(NAMES)
def test_id_names_a_file(name: str) -> None:
    good = re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", name) is not None
    try:
        BatchTask(id=name, prompt="p", workspace="w")
    except ValidationError:
        assert not good
    else:
        assert good


def test_another_task_has_another_hash() -> None:
    task = BatchTask(id="a", prompt="p", workspace="w", limits={"max_steps": 1, "max_seconds": 2})
    same = BatchTask(id="a", prompt="p", workspace="w", limits={"max_seconds": 2, "max_steps": 1})
    changes: tuple[dict[str, Any], ...] = ({"prompt": "q"}, {"workspace": "v"}, {"revision": "r"}, {"limits": {}})
    assert same.sha256 == task.sha256
    assert len({task.sha256, *(task.model_copy(update=change).sha256 for change in changes)}) == 5


def task_in(name: str, workspace: object, revision: str = "") -> BatchTask:
    return BatchTask(id=name, prompt="p", workspace=str(workspace), revision=revision)


def test_workspaces_are_below_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    file = tmp_path / "t.jsonl"
    lines = [f'{{"id": "{n}", "prompt": "p", "workspace": "{w}"}}' for n, w in enumerate(("a/../b", "/c", "~/d"))]
    file.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    tasks = read_task_file(str(file))
    assert isinstance(tasks, list)
    assert [each.workspace for each, _ in tasks] == [str(tmp_path / "b"), "/c", "/home/me/d"]


def test_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b"\xff\xfe")
    for name, said in (("t.jsonl", "Invalid JSON"), ("none", "annot read")):
        (problem,) = read_task_file(str(tmp_path / name))
        assert said in str(problem)


def test_each_source_is_pinned_once(tmp_path: Path) -> None:
    root, plain = repository(tmp_path / "root"), tmp_path / "plain"
    plain.mkdir()
    tasks = [task_in("a", root), task_in("b", root), task_in("c", root, "HEAD"), task_in("d", plain)]
    found = find_sources([ReadTask(each, line) for line, each in enumerate(tasks, 1)], {})
    assert isinstance(found, Sources)
    commits = {source: found.pins[source] for source in found.pins}
    assert set(commits) == {(str(root), ""), (str(root), "HEAD"), (str(plain), "")}
    assert commits[str(root), ""] == commits[str(root), "HEAD"] != ""
    assert commits[str(plain), ""] == ""
    known = find_sources([ReadTask(tasks[0], 1)], {(str(root), ""): "c0ffee"})
    assert known == Sources({})


def test_what_is_not_there_is_told_with_its_line(tmp_path: Path) -> None:
    tasks = [ReadTask(task_in("a", tmp_path / "none"), 3), ReadTask(task_in("b", tmp_path, "v1"), 4)]
    found = find_sources(tasks, {}, "t.jsonl")
    assert isinstance(found, tuple)
    assert [str(each) for each in found] == [
        f"t.jsonl:3: Cannot copy the workspace '{tmp_path}/none': there is no such file or directory.",
        f"t.jsonl:4: '{tmp_path}' is no git repository, so it has no revision 'v1': leave the revision out.",
    ]
