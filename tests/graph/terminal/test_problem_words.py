"""Problems are all told, each on its own line, to people and to programs."""

from dataclasses import asdict

import pytest

from graph.configuration.settings_file import Problem
from graph.terminal.problem_words import tell_problems


def test_each_problem_is_a_line_and_an_item(capsys: pytest.CaptureFixture[str]) -> None:
    problems = [Problem("a.toml", "`x` is no\nnumber", line=2, field="x"), Problem("b.toml", "is not TOML")]
    told = tell_problems(iter(problems))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("mendgraph: a.toml:2: `x` is no")
    assert first.endswith("number")
    assert second == "mendgraph: b.toml: is not TOML"
    said = "\n".join(line.removeprefix("mendgraph: ") for line in (first, second))
    assert told == {
        "error": {"code": "usage_error", "message": said, "problems": [asdict(problem) for problem in problems]}
    }
