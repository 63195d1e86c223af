from pathlib import Path

import pytest

from benchmarks.real_model.options import Choice, chosen_tasks, read_choice
from tests.benchmarks.real_model.samples import task

TASKS = [task("a"), task("b", "held_out"), task("c")]


def choice(*arguments: str) -> Choice:
    return read_choice(arguments, "about")


def test_all_that_can_be_said() -> None:
    said = choice(
        *("--half", "dev", "--tasks", "a, b", "--against", "aider", "--only-rivals", "--ablate"),
        *("--option", "evidence=false", "--option", "role=reader", "--protocol", "native"),
        *("--label", "x", "--fresh", "--no-cache", "--out", "o"),
    )
    assert said == Choice(
        half="dev",
        tasks=("a", "b"),
        rivals=("aider",),
        ours=False,
        ablate=True,
        label="x",
        options={"evidence": False, "role": "reader", "protocol": "native"},
        fresh=True,
        cache=False,
        out=Path("o"),
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--against", "nobody"], "no rival is called nobody: there are create_agent"),
        (["--option", "evidence"], "--option evidence is not of the form key=value"),
        (["--half", "best"], "invalid choice"),
        (["--fresh", "--resume"], "not allowed with"),
    ],
)
def test_what_cannot_be_understood_is_told(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        choice(*arguments)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ["a", "b", "c"]),
        (["--half", "dev"], ["a", "c"]),
        (["--tasks", "c,a"], ["a", "c"]),
        (["--tasks", "b", "--half", "dev"], []),
    ],
)
def test_tasks_are_chosen_by_half_and_name(arguments: list[str], names: list[str]) -> None:
    assert [each.name for each in chosen_tasks(TASKS, choice(*arguments))] == names
