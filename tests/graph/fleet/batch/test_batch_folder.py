"""The folder of a batch: what is written stays, what was torn is cut off, and nobody else works there meanwhile."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.fleet.batch import batch_folder
from mendgraph.graph.fleet.batch.batch_folder import BatchFolder, Done, open_batch_folder, read_results
from mendgraph.graph.fleet.batch.tasks import BatchTask, TaskResult, TaskUsage, Worked
from mendgraph.nodes.records import OutcomeKind, ToolError, ToolErrorCode

TASK = BatchTask(id="a", prompt="p", workspace="/w")
USAGE = TaskUsage(calls=2, cost_usd=0.5)
RESULT = TaskResult(id="a", kind=OutcomeKind.FINISHED, reason="answered", answer="\u2028é", usage=USAGE, task="f00")


def opened(path: Path) -> BatchFolder:
    folder = open_batch_folder(str(path), {"workers": 2})
    assert isinstance(folder, BatchFolder), folder.message
    return folder


def refusal(path: Path) -> ToolError:
    found = open_batch_folder(str(path), {})
    assert isinstance(found, ToolError)
    return found


def test_what_was_written_is_known_at_the_next_start(tmp_path: Path) -> None:
    with opened(tmp_path / "out") as folder:
        name = folder.batch
        folder.begin(TASK)
        folder.begin(TASK)
        folder.pin(("/w", ""), "c0ffee")
        written = folder.write(Worked(RESULT, b"diff"))
        folder.write(Worked(RESULT.model_copy(update={"id": "b"})))
    assert written.patch == "patches/a.patch"
    assert written.patch_sha256 == hashlib.sha256(b"diff").hexdigest()
    assert (tmp_path / "out" / "patches" / "a.patch").read_bytes() == b"diff"
    assert [*read_results(str(tmp_path / "out"))] == [written, RESULT.model_copy(update={"id": "b"})]
    assert (tmp_path / "out" / "results.jsonl").read_bytes().isascii()
    begun = (tmp_path / "out" / "begun.jsonl").read_text().splitlines()
    assert [*map(json.loads, begun)] == [
        {"id": "a", "task": TASK.sha256},
        {"workspace": "/w", "revision": "", "commit": "c0ffee"},
    ]
    with opened(tmp_path / "out") as again:
        assert again.batch == name
        assert again.done["a"] == Done("f00", OutcomeKind.FINISHED, USAGE)
        assert again.begun == {"a": TASK.sha256}
        assert again.pins == {("/w", ""): "c0ffee"}
        assert (again.known_hash("a"), again.known_hash("b"), again.known_hash("c")) == (TASK.sha256, "f00", None)
    known = json.loads((tmp_path / "out" / "batch.json").read_text())
    assert known == {"schema": 1, "batch": name, "options": {"workers": 2}}


def test_torn_line_is_cut_off(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        folder.begin(TASK)
        whole = folder.write(Worked(RESULT))
        folder.write(Worked(RESULT.model_copy(update={"id": "b"})))
    results = tmp_path / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-20])
    assert [*read_results(str(tmp_path))] == [whole]
    with opened(tmp_path) as again:
        assert [*again.done] == ["a"]
        again.write(Worked(RESULT.model_copy(update={"id": "c"})))
    assert [each.id for each in read_results(str(tmp_path))] == ["a", "c"]


def test_disk_that_is_full_leaves_the_results_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) > 20:
            return real(descriptor, data[:20])
        raise OSError(28, "No space left on device")

    with opened(tmp_path) as folder:
        folder.write(Worked(RESULT))
        before = (tmp_path / "results.jsonl").read_bytes()
        monkeypatch.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space"):
            folder.write(Worked(RESULT.model_copy(update={"id": "b", "answer": "x" * 20})))
        monkeypatch.undo()
        assert (tmp_path / "results.jsonl").read_bytes() == before
        assert [*folder.done] == ["a"]


def test_patch_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        (tmp_path / "patches" / "a.patch").mkdir()
        with pytest.raises(OSError, match="directory"):
            folder.write(Worked(RESULT, b"diff"))
    assert [path.name for path in (tmp_path / "patches").iterdir()] == ["a.patch"]
    assert [*read_results(str(tmp_path))] == []


def test_one_process_works_in_it_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path):
        error = refusal(tmp_path)
    assert (error.code, f"process {os.getpid()}" in error.message) == (ToolErrorCode.UNAVAILABLE, True)
    opened(tmp_path).close()


def test_standby_waits_until_nobody_works_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work, waited = opened(tmp_path / "out"), list[float]()

    def end(seconds: float) -> None:
        waited.append(seconds)
        at_work.close()

    monkeypatch.setattr(batch_folder, "pause", end)
    stands_by = open_batch_folder(str(tmp_path / "out"), {}, standby=True)
    assert isinstance(stands_by, BatchFolder)
    with stands_by:
        assert (stands_by.batch, len(waited)) == (at_work.batch, 1)


def test_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    error = refusal(tmp_path)
    assert (error.code, "'thesis.txt'" in error.message) == (ToolErrorCode.CONFLICT, True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_start_that_was_killed_at_once_is_no_stranger(tmp_path: Path) -> None:
    (tmp_path / ".batch.json.0123456789abcdef").write_text("")
    (tmp_path / "batch.lock").write_text("")
    opened(tmp_path).close()


def test_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    assert "make the batch's folder" in refusal(tmp_path / "out").message


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 2, "batch": "0123456789ab"}', '{"schema": 1, "batch": "../x"}'])
def test_batch_of_another_version_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "batch.json").write_text(text)
    assert "is no file of this version" in refusal(tmp_path).message
    assert (tmp_path / "batch.json").read_text() == text


@pytest.mark.parametrize(
    ("name", "line", "what"),
    [
        ("results.jsonl", "{}", "no result"),
        ("results.jsonl", RESULT.model_dump_json(), "a second result of the task 'a'"),
        ("begun.jsonl", "[]", "no note of a task"),
        ("begun.jsonl", "[" * 100_000, "no note of a task"),
    ],
)
def test_line_that_somebody_spoiled_is_named(tmp_path: Path, name: str, line: str, what: str) -> None:
    with opened(tmp_path) as folder:
        folder.begin(TASK)
        folder.write(Worked(RESULT))
    with (tmp_path / name).open("a") as file:
        file.write(f"{line}\n")
    error = refusal(tmp_path)
    assert f"Line 2 of '{tmp_path / name}' is {what}" in error.message
    (tmp_path / name).write_text("")
    opened(tmp_path).close()


def test_folder_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / "results.jsonl").unlink()
    (tmp_path / "results.jsonl").mkdir()
    assert "open the batch's folder" in refusal(tmp_path).message


def test_names_that_are_no_utf_8_are_escaped_and_can_be_read_again(tmp_path: Path) -> None:
    odd: dict[str, Any] = {"changed": ("b\udcff.txt",), "answer": "\ud83d", "value": {"\udcfe": ["\udcfd", 1, None]}}
    with opened(tmp_path) as folder:
        written = folder.write(Worked(RESULT.model_copy(update=odd)))
    told: dict[str, Any] = {
        "changed": ("b\\udcff.txt",),
        "answer": "\\ud83d",
        "value": {"\\udcfe": ["\\udcfd", 1, None]},
    }
    assert written == RESULT.model_copy(update=told)
    assert [*read_results(str(tmp_path))] == [written]
    with opened(tmp_path) as again:
        assert [*again.done] == [RESULT.id]
