"""The file of tasks: each valid line is a task, and each problem is reported with its line."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from mendgraph.graph.fleet.batch.tasks import BatchTask, TaskLine, pin_sources, read_task_file
from tests.surfaces.batch.batching import repository

LINE = '{"id": "a", "prompt": "Do it.", "workspace": "w"}'


def read(folder: Path, *lines: str, prefix: bytes = b"") -> object:
    """What a file of these lines holds."""
    file = folder / "t.jsonl"
    file.write_bytes(prefix + "\n".join(lines).encode("utf-8", "surrogatepass"))
    return read_task_file(str(file))


def problems(folder: Path, *lines: str) -> list[str]:
    result = read(folder, *lines)
    assert isinstance(result, tuple)
    return [str(problem).partition("t.jsonl:")[2] for problem in result]


def task_in(name: str, workspace: object, revision: str = "") -> BatchTask:
    return BatchTask(id=name, prompt="p", workspace=str(workspace), revision=revision)


def test_line_is_a_task_with_a_workspace_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    full_line = '{"id":"b","prompt":"é","workspace":"/x.zip","revision":"v1","limits":{"max_steps":3}}\n'
    other = BatchTask(id="b", prompt="é", workspace="/x.zip", revision="v1", limits={"max_steps": 3})
    home, relative_line = LINE.replace('"w"', '"~/d"'), LINE.replace('"w"', '"a/../b"')
    result = read(tmp_path, relative_line, " ", full_line, home.replace('"a"', '"c"'), prefix=b"\xef\xbb\xbf")
    assert result == [
        TaskLine(BatchTask(id="a", prompt="Do it.", workspace=f"{tmp_path}/b"), 1),
        TaskLine(other, 3),
        TaskLine(BatchTask(id="c", prompt="Do it.", workspace="/home/me/d"), 5),
    ]


WRONG = [
    ("{", "1: Invalid JSON: "),
    ("[1]", "1: Input should be an object"),
    ("\ud800", "1: Invalid JSON: "),
    (LINE.replace('"a"', "7"), "1: id: must be text"),
    (LINE.replace('"workspace": "w"', '"workspace": ""'), "1: workspace: String should have at least 1 character"),
    (LINE.replace("workspace", "workspac"), "1: workspace: Field required"),
    (LINE.replace("Do it.", "  "), "1: prompt: it is empty: describe the task"),
    (LINE.replace("Do it.", "\\u0000"), "1: prompt: it holds a NUL or half of a surrogate pair, which no text has"),
    (LINE[:-1] + ', "revision": "-x"}', "1: revision: String should match pattern"),
    (LINE[:-1] + ', "limits": {"max_steps": 0}}', "1: limits: max_steps: must be at least"),
    (LINE[:-1] + ', "q": 1}', "1: q: Extra inputs are not permitted"),
    ("", ' it holds no task: write {"id": ..., "prompt": ..., "workspace": ...} on a line'),
    *(
        (LINE[:-1] + f', "limits": {json.dumps({name: 1})}}}', f"1: limits: {name!r} is not a limit of a task: ")
        for name in ("max_cost_usd_per_account", "account", "model", "max_stepz")
    ),
]


def test_problem_is_reported_with_its_line(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for line, words in WRONG:
        with subtests.test(words=words):
            assert any(problem.startswith(words) for problem in problems(tmp_path, line))
    every = problems(tmp_path, LINE, "{", '{"promt": "", "workspace": "w"}')
    assert [problem.partition(":")[0] for problem in every] == ["2", "3", "3", "3"]


def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b"\xff\xfe")
    for name, words in (("t.jsonl", "Invalid JSON"), ("none", "none: there is no such file")):
        (problem,) = read_task_file(str(tmp_path / name))
        assert words in str(problem)


@given(st.text(st.sampled_from("aB9._-/ é\n"), min_size=0, max_size=101))
def test_id_is_a_file_name(name: str) -> None:
    good = re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", name) is not None
    try:
        BatchTask(id=name, prompt="p", workspace="w")
    except ValidationError:
        assert not good
    else:
        assert good


def test_different_tasks_have_different_hashes() -> None:
    task = BatchTask(id="a", prompt="p", workspace="w", limits={"max_steps": 1, "max_seconds": 2})
    same = BatchTask(id="a", prompt="p", workspace="w", limits={"max_seconds": 2, "max_steps": 1})
    changes: tuple[dict[str, object], ...] = ({"prompt": "q"}, {"workspace": "v"}, {"revision": "r"}, {"limits": {}})
    assert same.sha256 == task.sha256
    assert len({task.sha256, *(task.model_copy(update=change).sha256 for change in changes)}) == 5


def test_source_is_pinned_once(tmp_path: Path) -> None:
    root, plain = repository(tmp_path / "root"), tmp_path / "plain"
    plain.mkdir()
    tasks = [task_in("a", root), task_in("b", root), task_in("c", root, "HEAD"), task_in("d", plain)]
    pins = pin_sources([TaskLine(task, line) for line, task in enumerate(tasks, 1)], {})
    assert isinstance(pins, dict)
    assert pins.keys() == {(str(root), ""), (str(root), "HEAD"), (str(plain), "")}
    assert pins[str(root), ""].revision == pins[str(root), "HEAD"].revision != ""
    assert pins[str(plain), ""].revision == ""
    assert pin_sources([TaskLine(tasks[0], 1)], {(str(root), ""): "c0ffee"}) == {}


def test_missing_source_is_reported_with_its_line(tmp_path: Path) -> None:
    tasks = [TaskLine(task_in("a", tmp_path / "none"), 3), TaskLine(task_in("b", tmp_path, "v1"), 4)]
    result = pin_sources(tasks, {}, "t.jsonl")
    assert isinstance(result, tuple)
    assert [str(problem) for problem in result] == [
        f"t.jsonl:3: Cannot copy the workspace '{tmp_path}/none': there is no such file or directory.",
        f"t.jsonl:4: '{tmp_path}' is not a git repository, so it has no revision 'v1': omit the revision.",
    ]
