import json
from pathlib import Path

from benchmarks.real_model.results import Results
from tests.benchmarks.real_model.samples import run

A, B = run("a", solved=True), run("b", solved=False)
DIGESTS = {"a": "d", "b": "d"}


def test_results_are_there_again(tmp_path: Path) -> None:
    Results(tmp_path / "out").add(A)
    Results(tmp_path / "out").add(B)
    assert Results(tmp_path / "out").records(DIGESTS) == [A, B]


def test_a_result_of_another_text_of_the_task_does_not_count(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.add(A)
    assert (results.records({"a": "e"}), results.records({})) == ([], [])


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path: Path) -> None:
    Results(tmp_path).add(A)
    lines = tmp_path / "results.jsonl"
    lines.write_text(lines.read_text("utf-8") + '{"harness": "ai', "utf-8")
    Results(tmp_path).add(B)
    assert Results(tmp_path).records(DIGESTS) == [A, B]


def test_what_is_to_be_run_again_is_forgotten(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.add(A)
    results.add(B)
    results.forget({A.place, ("aider", "x", "b")})
    assert results.records(DIGESTS) == Results(tmp_path).records(DIGESTS) == [B]


def test_the_summary_is_json(tmp_path: Path) -> None:
    place = Results(tmp_path).summarize({"name": "Grüße"})
    assert (place, json.loads(place.read_text("utf-8"))) == (tmp_path / "summary.json", {"name": "Grüße"})
