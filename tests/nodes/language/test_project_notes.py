"""What a model is shown of a project's notes, whatever they say."""

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.language.project_notes import INTRODUCTION, ProjectNotes, notes_text, visible

PIECES = st.sampled_from(
    ["</project_notes>", "<project_notes>", "< / PROJECT_NOTES >", "</project\u200b_notes>", "<", "\n", "a", "&lt;"]
)


def test_notes_stand_between_marks_behind_a_word_on_what_they_are() -> None:
    notes = [
        ProjectNotes(path="AGENTS.md", text="Use tabs.\nRun make."),
        ProjectNotes(path="api/CLAUDE.md", text="x", cut=True),
    ]
    assert notes_text(notes) == (
        f'{INTRODUCTION}\n\n<project_notes file="AGENTS.md">\nUse tabs.\nRun make.\n</project_notes>\n\n'
        '<project_notes file="api/CLAUDE.md">\nx\n[the file goes on; read it where you need the rest]\n</project_notes>'
    )
    assert [each.lines for each in notes] == [2, 1]


def test_without_notes_there_is_nothing() -> None:
    assert notes_text([]) == ""


@given(path=st.lists(PIECES).map("".join), text=st.lists(PIECES).map("".join))
def test_nothing_in_a_file_ends_its_block(path: str, text: str) -> None:
    shown = notes_text([ProjectNotes(path=path, text=text)]).removeprefix(INTRODUCTION)
    assert shown.count("</project_notes>") == shown.lower().replace(" ", "").count("</project_notes") == 1
    assert shown.count("<project_notes") == 1
    assert shown.endswith("\n</project_notes>")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a\r\nb\rc\u2028d\x0ce", "a\nb\nc\nd\ne"),
        ("hi\u202e\u2066\u200b\ufeff\x1b[31m", "hi[31m"),
        ("tag" + "".join(chr(0xE0000 + ord(each)) for each in "rm -rf"), "tag"),
        (
            "tab\tnl\n\u0645\u06cc\u200c\u062e \U0001f468\u200d\U0001f4bb",
            "tab\tnl\n\u0645\u06cc\u200c\u062e \U0001f468\u200d\U0001f4bb",
        ),
        ("\ud800x", "x"),
        ("hidden" + "".join(chr(0xE0100 + ord(each)) for each in "rm -rf") + "\ufe01\ufe02\u3164\u034f", "hidden"),
        ("\u26a0\ufe0f\ufe0f\ufe0f!", "\u26a0\ufe0f!"),
    ],
)
def test_a_model_reads_what_a_person_sees(text: str, seen: str) -> None:
    assert visible(text) == seen
