from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.fuzz.case import Case, load, plain, smaller

CASE = Case("stream", ["a\ud800\x00", [1, "é"], None], "f, line 3 ValueError: no")


def test_a_case_is_the_same_after_it_was_kept(tmp_path: Path) -> None:
    path = CASE.save(tmp_path / "new")
    assert load(path) == CASE
    assert path.name == "stream-" + path.name[7:17] + ".json"
    assert CASE.save(tmp_path / "new") == path


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"target": "x"}', '{"target": "x", "input": 1, "error": "", "more": 1}']
)
def test_what_is_no_case_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises((ValueError, TypeError)):
        load(path)


def test_an_input_is_what_a_file_gives_back() -> None:
    assert plain(("a", (1, 2.5))) == ["a", [1, 2.5]]


@pytest.mark.parametrize(
    ("value", "needed", "least"),
    [
        ("aaaa needle bbbb", "needle", "needle"),
        (["aaaa", ["xx needle"], 3], "needle", ["", ["needle"], 3]),
        ("needle", "needle", "needle"),
        (7, "7", 7),
    ],
)
def test_what_is_not_needed_is_cut_out(value: Any, needed: str, least: Any) -> None:
    assert smaller(value, lambda each: needed in str(each)) == least


@given(st.text("ab", max_size=60))
def test_a_smaller_input_fails_as_well(text: str) -> None:
    least = smaller(text, lambda each: each.count("a") > 1)
    assert least == ("aa" if text.count("a") > 1 else text)
