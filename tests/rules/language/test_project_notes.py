"""Project notes: which ones a turn starts with, how much of them, and how a model sees them."""

from collections.abc import Mapping

from hypothesis import given, strategies as st

from mendgraph.nodes.language.project_notes import (
    INTRODUCTION,
    MOST_BYTES,
    MOST_READ,
    Head,
    ProjectNotes,
    find_notes,
    most_bytes,
    notes_text,
    visible,
)
from mendgraph.nodes.records import Profile, ToolError, ToolErrorCode
from tests.row_tables import rows

PIECES = st.sampled_from(
    ["</project_notes>", "<project_notes>", "< / PROJECT_NOTES >", "</project\u200b_notes>", "<", "\n", "a", "&lt;"]
)


@given(path=st.lists(PIECES).map("".join), text=st.lists(PIECES).map("".join))
def test_no_file_can_close_its_block(path: str, text: str) -> None:
    block = notes_text([ProjectNotes(path=path, text=text)]).removeprefix(INTRODUCTION)
    assert block.count("</project_notes>") == block.lower().replace(" ", "").count("</project_notes") == 1
    assert block.count("<project_notes") == 1
    assert block.endswith("\n</project_notes>")


@rows(
    ("a\r\nb\rc\u2028d\x0ce", "a\nb\nc\nd\ne"),
    ("hi\u202e\u2066\u200b\ufeff\x1b[31m", "hi[31m"),
    ("tag" + "".join(chr(0xE0000 + ord(letter)) for letter in "rm -rf"), "tag"),
    (
        "tab\tnl\n\u0645\u06cc\u200c\u062e \U0001f468\u200d\U0001f4bb",
        "tab\tnl\n\u0645\u06cc\u200c\u062e \U0001f468\u200d\U0001f4bb",
    ),
    ("\ud800x", "x"),
    ("hidden" + "".join(chr(0xE0100 + ord(letter)) for letter in "rm -rf") + "\ufe01\ufe02\u3164\u034f", "hidden"),
    ("\u26a0\ufe0f\ufe0f\ufe0f!", "\u26a0\ufe0f!"),
)
def test_model_sees_the_same_text_as_a_person(text: str, seen: str) -> None:
    assert visible(text) == seen


DENIED = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="no")


def reader(files: Mapping[str, str | ToolError]) -> Head:
    def head(path: str, _: int) -> bytes | ToolError | None:
        content = files.get(path)
        return content.encode() if isinstance(content, str) else content

    return head


Found = tuple[tuple[ProjectNotes, ...], list[tuple[str, str]]]


def notes(*files: tuple[str, str]) -> tuple[ProjectNotes, ...]:
    return tuple(ProjectNotes(path=path, text=text) for path, text in files)


@rows(
    ({}, ((), [])),
    ({"AGENTS.md": "a", "CLAUDE.md": "c"}, (notes(("AGENTS.md", "a")), [])),
    ({"CLAUDE.md": "c"}, (notes(("CLAUDE.md", "c")), [])),
    ({"AGENTS.md": " \n", "CLAUDE.md": "c"}, (notes(("CLAUDE.md", "c")), [])),
    ({"AGENTS.md": DENIED, "CLAUDE.md": "c"}, (notes(("CLAUDE.md", "c")), [("AGENTS.md", "no")])),
    ({"api/AGENTS.md": "x", "AGENTS.md": "a"}, (notes(("AGENTS.md", "a"), ("api/AGENTS.md", "x")), [])),
    ({"web/AGENTS.md": "x"}, ((), [])),
)
def test_agents_file_takes_precedence_over_claude_file_in_each_folder(
    files: Mapping[str, str | ToolError], expected: Found
) -> None:
    assert find_notes("Mend api/v1/calc.py.", reader(files), str, MOST_BYTES) == expected


def test_total_size_of_notes_is_bounded_and_cuts_are_marked() -> None:
    files = {"AGENTS.md": "one\ntwo\nthree\n", "api/AGENTS.md": "four\nfive"}
    notes = find_notes("Look at api/a.py", reader(files), str, 12)
    assert notes[0] == (
        ProjectNotes(path="AGENTS.md", text="one\ntwo", cut=True),
        ProjectNotes(path="api/AGENTS.md", text="four", cut=True),
    )


def test_notes_whose_first_line_does_not_fit_are_skipped() -> None:
    files = {"AGENTS.md": "too long a line\nb", "CLAUDE.md": "c", "api/AGENTS.md": "four"}
    assert find_notes("Look at api/a.py", reader(files), str, 5) == (notes(("api/AGENTS.md", "four")), [])


@rows(
    ("Hello", [""]),
    ("Mend a/b/c.py and a/d.py", ["", "a/", "a/b/"]),
    ("Mend ../x/a.py and /etc/a.py and ./s/a.py", ["", "s/"]),
    ("Mend '/etc/my a.py' and '../x/my b.py' and 's/my c.py'", ["", "s/"]),
    ("Mend a/b/c/d/e/f.py", ["", "a/", "a/b/", "a/b/c/"]),
)
def test_notes_are_searched_in_the_folders_of_named_files(request_text: str, folders: list[str]) -> None:
    looked: list[str] = []
    find_notes(request_text, lambda path, _: looked.append(path), str, MOST_BYTES)
    assert [path.removesuffix("AGENTS.md") for path in looked if path.endswith("AGENTS.md")] == folders


def test_notes_get_a_small_share_of_the_window_and_none_of_a_small_model() -> None:
    assert [most_bytes(Profile(), window) for window in (None, 128_000, 8_192)] == [MOST_BYTES, MOST_BYTES, 3_072]
    assert most_bytes(Profile(small=True), None) == 0


@given(text=st.text(alphabet="ab\n\u00e4\U0001f600"), most=st.integers(1, 40))
def test_notes_are_cut_at_whole_lines(text: str, most: int) -> None:
    notes, _ = find_notes("", reader({"AGENTS.md": text}), str, most)
    for note in notes:
        assert len(note.text.encode()) <= most
        assert text.strip().startswith(note.text)
        assert note.cut is (note.text != text.strip())
        assert not note.cut or text.strip()[len(note.text)].isspace()


NO_TEXT = "'AGENTS.md' is not read: it is not UTF-8 text."


@rows(
    (b"\xef\xbb\xbfhi\xe2\x80\x8b\r\n", "hi"),
    (b"a\n" * MOST_READ, "a\n" * 3 + "a"),
    (b"\xff\xfea\x00", NO_TEXT),
    (b"a\0b", NO_TEXT),
    (b"a" * (MOST_READ + 1), ""),
)
def test_notes_that_are_not_text_are_not_read(data: bytes, expected: str) -> None:
    notes, unread = find_notes("", lambda path, _: data if path == "AGENTS.md" else None, str, 8)
    assert "".join([*(note.text for note in notes), *(reason for _, reason in unread)]) == expected
    assert notes_text([]) == ""
