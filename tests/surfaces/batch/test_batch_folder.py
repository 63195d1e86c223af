"""The folder of a batch: results stay, an incomplete line is cut off, and only one process works there."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.fleet.batch import batch_folder
from mendgraph.graph.fleet.batch.batch_folder import (
    BatchEnd,
    BatchFolder,
    BatchResult,
    CompletedTask,
    Tally,
    end_words,
    open_batch_folder,
    read_results,
    tally_words,
)
from mendgraph.graph.fleet.batch.tasks import BatchTask, TaskOutput, TaskResult, TaskUsage
from mendgraph.nodes.records import OutcomeKind, ToolError, ToolErrorCode

TASK = BatchTask(id="a", prompt="p", workspace="/w")
USAGE = TaskUsage(calls=2, cost_usd=0.5)
RESULT = TaskResult(id="a", kind=OutcomeKind.FINISHED, reason="answered", answer="\u2028é", usage=USAGE, task="f00")


def open_folder(path: Path) -> BatchFolder:
    folder = open_batch_folder(str(path))
    assert isinstance(folder, BatchFolder), folder.message
    return folder


def result(name: str, **more: Any) -> TaskOutput:
    return TaskOutput(RESULT.model_copy(update={"id": name, **more}))


def refusal(path: Path) -> ToolError:
    error = open_batch_folder(str(path))
    assert isinstance(error, ToolError)
    return error


def test_results_and_pins_are_read_at_the_next_start(tmp_path: Path) -> None:
    with open_folder(tmp_path / "out") as folder:
        name = folder.batch
        folder.begin(TASK)
        folder.begin(TASK)
        folder.pin(("/w", ""), "c0ffee")
        written = folder.write(TaskOutput(RESULT, b"diff"))
        folder.write(result("b"))
    assert (written.patch, written.patch_sha256) == ("patches/a.patch", hashlib.sha256(b"diff").hexdigest())
    assert (tmp_path / "out/patches/a.patch").read_bytes() == b"diff"
    assert [*read_results(str(tmp_path / "out"))] == [written, result("b").result]
    assert (tmp_path / "out/results.jsonl").read_bytes().isascii()
    assert [json.loads(line) for line in (tmp_path / "out/begun.jsonl").read_text().splitlines()] == [
        {"id": "a", "task": TASK.sha256},
        {"workspace": "/w", "revision": "", "commit": "c0ffee"},
    ]
    with open_folder(tmp_path / "out") as again:
        assert again.batch == name
        assert again.completed["a"] == CompletedTask("f00", OutcomeKind.FINISHED, USAGE)
        assert again.begun_hashes == {"a": TASK.sha256}
        assert again.pins == {("/w", ""): "c0ffee"}
        assert (again.known_hash("a"), again.known_hash("b"), again.known_hash("c")) == (TASK.sha256, "f00", None)
    batch_file = json.loads((tmp_path / "out/batch.json").read_text())
    assert batch_file == {"schema": 1, "batch": name}


def test_incomplete_line_is_cut_off(tmp_path: Path) -> None:
    with open_folder(tmp_path) as folder:
        complete = folder.write(TaskOutput(RESULT))
        folder.write(result("b"))
    results = tmp_path / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-20])
    assert [*read_results(str(tmp_path))] == [complete]
    with open_folder(tmp_path) as again:
        assert [*again.completed] == ["a"]
        again.write(result("c"))
    assert [result.id for result in read_results(str(tmp_path))] == ["a", "c"]


def test_full_disk_leaves_the_results_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) > 20:
            return real(descriptor, data[:20])
        raise OSError(28, "No space left on device")

    with open_folder(tmp_path) as folder:
        folder.write(TaskOutput(RESULT))
        before = (tmp_path / "results.jsonl").read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            with pytest.raises(OSError, match="No space"):
                folder.write(result("b", answer="x" * 20))
        assert (tmp_path / "results.jsonl").read_bytes() == before
        assert [*folder.completed] == ["a"]
        (tmp_path / "patches/c.patch").mkdir()
        with pytest.raises(OSError, match="directory"):
            folder.write(result("c")._replace(patch=b"diff"))
    assert [path.name for path in (tmp_path / "patches").iterdir()] == ["c.patch"]
    assert [result.id for result in read_results(str(tmp_path))] == ["a"]


def test_standby_continues_when_the_other_process_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work, waited = open_folder(tmp_path), list[float]()
    error = refusal(tmp_path)
    assert (error.code, f"process {os.getpid()}" in error.message) == (ToolErrorCode.UNAVAILABLE, True)

    def end(seconds: float) -> None:
        waited.append(seconds)
        at_work.close()

    monkeypatch.setattr(batch_folder, "pause", end)
    stands_by = open_batch_folder(str(tmp_path), standby=True)
    assert isinstance(stands_by, BatchFolder)
    with stands_by:
        assert (stands_by.batch, len(waited)) == (at_work.batch, 1)


def test_folder_of_a_killed_start_is_accepted(tmp_path: Path) -> None:
    (tmp_path / ".batch.json.0123456789abcdef").write_text("")
    (tmp_path / "batch.lock").write_text("")
    open_folder(tmp_path).close()


def replace_folder_by_file(folder: Path) -> None:
    folder.rmdir()
    folder.write_text("")


def replace_results_by_folder(folder: Path) -> None:
    open_folder(folder).close()
    (folder / "results.jsonl").unlink()
    (folder / "results.jsonl").mkdir()


UNUSABLE: list[tuple[Callable[[Path], object], str]] = [
    (replace_folder_by_file, "make the batch's folder"),
    (lambda folder: (folder / "thesis.txt").write_text("mine"), "'thesis.txt'"),
    (replace_results_by_folder, "open the batch's folder"),
    *(
        (lambda folder, text=text: (folder / "batch.json").write_text(text), "is not a file of this version")
        for text in ("", "{}", '{"schema": 2, "batch": "0123456789ab"}', '{"schema": 1, "batch": "../x"}')
    ),
]


def test_unusable_folder_is_refused_and_unchanged(tmp_path: Path) -> None:
    for number, (spoil, words) in enumerate(UNUSABLE):
        folder = tmp_path / str(number)
        folder.mkdir()
        spoil(folder)
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and number != 2}
        assert words in refusal(folder).message
        assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("name", "line", "what"),
    [
        ("results.jsonl", "{}", "no result"),
        ("results.jsonl", RESULT.model_dump_json(), "a second result of the task 'a'"),
        ("begun.jsonl", "[]", "no note of a task"),
        ("begun.jsonl", "[" * 100_000, "no note of a task"),
    ],
)
def test_invalid_line_is_reported_with_its_number(tmp_path: Path, name: str, line: str, what: str) -> None:
    with open_folder(tmp_path) as folder:
        folder.begin(TASK)
        folder.write(TaskOutput(RESULT))
    with (tmp_path / name).open("a") as file:
        file.write(f"{line}\n")
    assert f"Line 2 of '{tmp_path / name}' is {what}" in refusal(tmp_path).message
    (tmp_path / name).write_text("")
    open_folder(tmp_path).close()


def test_names_that_are_not_utf_8_are_escaped(tmp_path: Path) -> None:
    odd = result("a", changed=("b\udcff.txt",), answer="\ud83d", value={"\udcfe": ["\udcfd", 1, None]})
    plain = result("a", changed=("b\\udcff.txt",), answer="\\ud83d", value={"\\udcfe": ["\\udcfd", 1, None]}).result
    with open_folder(tmp_path) as folder:
        assert folder.write(odd) == plain
    assert [*read_results(str(tmp_path))] == [plain]


# --- The result of a batch


def test_tally_sums_results_and_usage() -> None:
    parts = {"cached_tokens": 1, "reasoning_tokens": 2, "cache_write_tokens": 3}
    usage = TaskUsage(calls=2, input_tokens=30, output_tokens=4, cost_usd=0.1, **parts)
    tally = Tally()
    for kind in (OutcomeKind.FINISHED, OutcomeKind.FINISHED, OutcomeKind.BUDGET_STOP, OutcomeKind.SYSTEM_ERROR):
        tally.add(CompletedTask("", kind, usage))
    tally.add(CompletedTask("", OutcomeKind.FINISHED, TaskUsage(cost_usd=None), refused=True))
    assert tally == Tally(3, 1, 1, 8, 120, 16, 4, 8, 12, 0.4, 1, refused=1)
    assert tally.done == 5


def test_batch_result_is_printed_as_sentences() -> None:
    stopped = BatchResult("0a", "/out", BatchEnd.COMPLETE, end_words(BatchEnd.COMPLETE, "", 0), 2, Tally(1, 1))
    assert str(stopped).startswith("2 of 2 tasks have results: 1 finished, 1 stopped by a limit. Each task")
    assert not stopped.ok
    assert BatchResult("0a", "/out", BatchEnd.COMPLETE, "", 1, Tally(1)).ok
    assert tally_words(Tally(1), 1) == "1 of 1 task has a result: 1 finished"
    assert tally_words(Tally(3, refused=2), 3).endswith("3 finished; calls were refused in 2 tasks")
