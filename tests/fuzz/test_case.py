from pathlib import Path

import pytest

from tests.fuzz.case import Case, load

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
