import re
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.fuzz.run import main
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS


def no_x(text: str) -> None:
    assert "x" not in text


DOUBLES = {
    "good": Target("good", lambda _: None, st.text),
    "bad": Target("bad", no_x, lambda: st.text("abx")),
}


def test_nothing_found_is_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seconds", "0.05", "--target", "good", "--seed", "5"], DOUBLES, tmp_path) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "1 targets in 0.05 s, --seed 5"
    assert re.fullmatch(r"good +[\d,]+ examples +[\d,]+/s  holds", said[1])
    assert list(tmp_path.iterdir()) == []


def test_what_was_found_is_shown_kept_and_played_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seconds", "2"], {"bad": DOUBLES["bad"]}, tmp_path) == 1
    said = capsys.readouterr().out
    [path] = tmp_path.iterdir()
    assert "  input:    'x'\n" in said
    assert 'make fuzz ARGS="--case ' in said
    assert path.name in said
    assert main(["--case", str(path)], DOUBLES, tmp_path) == 1
    assert "AssertionError" in capsys.readouterr().out
    assert main(["--case", str(path)], {"bad": DOUBLES["good"]}, tmp_path) == 0
    assert capsys.readouterr().out == f"{path}: holds\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--target", "nope"], "argument --target: invalid choice: 'nope'"),
        (["--seconds", "-1"], "argument --seconds: -1 is no time: give seconds above 0"),
        (["--seconds", "inf"], "argument --seconds: inf is no time: give seconds above 0"),
        (["--seconds", "soon"], "argument --seconds: soon is no time: give seconds above 0"),
        (["--case", "nowhere.json"], "argument --case: nowhere.json is no case of `make fuzz`"),
    ],
)
def test_bad_words_are_one_line(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments, DOUBLES)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_case_of_another_target_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text('{"target": "gone", "input": "", "error": ""}')
    with pytest.raises(SystemExit):
        main(["--case", str(tmp_path / "a.json")], DOUBLES)
    assert "there is no target 'gone'" in capsys.readouterr().err


def test_the_targets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.split() == [*TARGETS]
