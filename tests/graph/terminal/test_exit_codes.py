"""The exit codes are one table, and every terminal of the machine has its own."""

from pathlib import Path

from graph.terminal.exit_codes import MEANINGS, ExitCode, exit_code_of, exit_code_table
from nodes.records import OutcomeKind


def test_every_outcome_has_a_code_of_its_own() -> None:
    assert {kind: int(exit_code_of(kind)) for kind in OutcomeKind} == {
        OutcomeKind.FINISHED: 0,
        OutcomeKind.BUDGET_STOP: 3,
        OutcomeKind.SYSTEM_ERROR: 4,
    }


def test_the_table_tells_every_code_in_order() -> None:
    assert list(MEANINGS) == sorted(ExitCode)
    assert [line.split()[0] for line in exit_code_table().splitlines()] == [
        "0",
        "1",
        "2",
        "3",
        "4",
        "70",
        "130",
        "143",
        "155",
    ]


def test_the_readme_has_the_same_table() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    rows = "\n".join(f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items())
    assert rows in readme
