"""What others said, as it may stand on a page."""

import pytest
from hypothesis import given, strategies as st

from graph.report.texts import LEVELS, Bounds, DiffLine, Field, Texts
from graph.terminal.batch_command import Shown
from nodes.execute_tools.secrets.redact import Redactor
from nodes.language.display import plain
from nodes.language.project_notes import visible

CANARY = "kanarie-8471-vogel"
TEXTS = Texts(Redactor((CANARY,)), Bounds(text=20))


def test_a_long_text_says_how_much_of_it_is_left_out() -> None:
    assert TEXTS.shown("a" * 20) == Shown("a" * 20)
    assert TEXTS.shown("a" * 25) == Shown("a" * 20, 5)
    assert TEXTS.shown("a" * 25, 10) == Shown("a" * 10, 15)
    assert TEXTS.shown("a" * 25, 1_000) == Shown("a" * 20, 5)


def test_secrets_go_before_anything_is_cut() -> None:
    shown = TEXTS.shown(f"0123456789 {CANARY}")
    assert CANARY[:4] not in shown.text
    assert TEXTS.line(f"key {CANARY}") == "key [redacted secret]"


def test_line_ends_stay_and_control_characters_are_shown() -> None:
    assert TEXTS.shown("a\r\nb\tc\x1b\u202e") == Shown("a\nb\tc\\x1b\\u202e")


@given(st.text())
def test_line_by_line_is_the_same_as_at_once(text: str) -> None:
    assert visible(text) == plain(text)


def test_values_by_their_names() -> None:
    wide = Texts(Redactor(()), Bounds())
    many = [*range(100)]
    fields = wide.fields({"path": "a.py", "empty": "", "none": None, "no": False, "two": "a\nb", "many": many, "": 1})
    assert fields[:3] == [
        Field("path", Shown("a.py"), block=False),
        Field("no", Shown("false"), block=False),
        Field("two", Shown("a\nb"), block=True),
    ]
    assert (fields[3].name, fields[3].block, fields[3].value.text[:10]) == ("many", True, "[\n 0,\n 1,\n")
    assert fields[4] == Field("", Shown("1"), block=False)


def test_values_that_cannot_be_looked_through_are_not_shown() -> None:
    endless: dict[str, object] = {}
    endless["self"] = endless
    (field,) = TEXTS.fields(endless)
    assert field.value.text == "[redacted secret]"


def test_the_lines_of_a_diff() -> None:
    head = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n"
    diff = f"{head}-- old\n++ new\n same\n\\ No newline at end of file\n[... 3 more lines of this diff]\n"
    lines, left_out = Texts(Redactor(()), Bounds()).diff(diff)
    assert left_out == 0
    assert [line.kind for line in lines] == ["file", "file", "head", "removed", "added", "same", "note", "note"]
    assert lines[3] == DiffLine("removed", "-- old")
    assert TEXTS.diff("+" + "x" * 30)[1] == 11


@pytest.mark.parametrize("field", ["text", "steps", "path"])
def test_each_level_is_narrower(field: str) -> None:
    sizes = [getattr(level, field) for level in LEVELS]
    assert sizes == sorted(sizes, reverse=True)
