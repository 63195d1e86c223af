from benchmarks.everyday.run import report
from benchmarks.everyday.tasks import EVERYDAY, NOT_CHECKED
from benchmarks.real_model.contestants import task_digest
from benchmarks.real_model.record import RunEnd, RunRecord


def record(place: int, problem: str | None, ended: str, first_line: str = "") -> RunRecord:
    task = EVERYDAY[place]
    return RunRecord(
        harness="mendgraph",
        label="seed 1",
        task=task.name,
        kind=task.kind,
        half=task.half,
        changes=task.changes,
        digest=task_digest(task),
        options={},
        problem=problem,
        end=RunEnd(ended=ended, reason="answered", first_line=first_line, checked="none", seconds=12.4),
        changed_files=(),
        calls=(),
    )


def test_wrong_result_counts_apart_where_its_first_line_says_that_nothing_checked_it() -> None:
    printed = report(
        [
            record(0, None, "FINISHED"),
            record(1, "It is wrong.", "FINISHED", "FINISHED (answered): Changed text.py; not checked: no test runs it"),
            record(2, "It is wrong.", "FINISHED", "FINISHED (answered): changed cart.py"),
            record(3, "It is wrong.", "SYSTEM_ERROR"),
            record(9, NOT_CHECKED, "FINISHED"),
        ]
    )
    results = [line.split(" | ")[2:4] for line in printed.splitlines()[2:7]]
    assert results == [
        ["solved", "FINISHED/answered"],
        ["wrong, and says that nothing checked it", "FINISHED/answered"],
        ["WRONG", "FINISHED/answered"],
        ["not solved", "SYSTEM_ERROR/answered"],
        [NOT_CHECKED, "FINISHED/answered"],
    ]
    assert printed.endswith(
        'seed 1: 1 of 5 solved; 2 FINISHED wrong, 1 of them with "not checked" in the first line; 1 not checked'
    )
