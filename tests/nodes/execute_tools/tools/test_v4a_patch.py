from textwrap import dedent

import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.tools.v4a_patch import (
    AddedFile,
    DeletedFile,
    FilePatch,
    Hunk,
    PatchError,
    PatchLine,
    UpdatedFile,
    parse_patch,
    patched_paths,
)


def patch(body: str) -> str:
    return f"*** Begin Patch\n{dedent(body)}*** End Patch"


def hunk(*lines: str, headers: tuple[str, ...] = (), ends_file: bool = False, line: int = 3) -> Hunk:
    return Hunk(headers, tuple(PatchLine(each[0], each[1:]) for each in lines), ends_file, line)


def updated(*hunks: Hunk, path: str = "a.py", target: str = "", line: int = 2) -> UpdatedFile:
    return UpdatedFile(path, target, hunks, line)


WHOLE = """\
*** Begin Patch
*** Add File: hello.txt
+Hello
+
+world
*** Update File: src/app.py
*** Move to: src/main.py
@@ class A:
@@     def greet():
 first
-print("Hi")
+print("Hello")

 last
@@
-x
*** End of File
*** Delete File: obsolete.txt
*** End Patch
"""
WHOLE_PARSED: tuple[FilePatch, ...] = (
    AddedFile("hello.txt", "Hello\n\nworld\n", 2),
    UpdatedFile(
        "src/app.py",
        "src/main.py",
        (
            hunk(
                " first",
                '-print("Hi")',
                '+print("Hello")',
                " ",
                " last",
                headers=("class A:", "    def greet():"),
                line=8,
            ),
            hunk("-x", ends_file=True, line=15),
        ),
        6,
    ),
    DeletedFile("obsolete.txt", 18),
)


def test_a_patch_with_everything() -> None:
    assert parse_patch(WHOLE) == WHOLE_PARSED


def test_what_must_stand_in_the_file() -> None:
    assert hunk(" a", "-b", "+c", " d").old == ("a", "b", "d")


BODIES: list[tuple[str, tuple[FilePatch, ...]]] = [
    # no first "@@"; Source: codex
    ("*** Update File: a.py\n-x\n", (updated(hunk("-x")),)),
    ("*** Update File: a.py\n\n@@\n-x\n", (updated(hunk("-x", line=4)),)),
    # an empty line is an empty context line, but not before a marker or the end
    ("*** Update File: a.py\n@@\n-x\n\n+y\n\n", (updated(hunk("-x", " ", "+y")),)),
    (
        "*** Update File: a.py\n@@\n-x\n\n@@\n\n-y\n\n*** Delete File: b\n",
        (updated(hunk("-x"), hunk(" ", "-y", line=6)), DeletedFile("b", 10)),
    ),
    ("*** Update File: a.py\n-x\n\n*** End of File\n", (updated(hunk("-x", ends_file=True)),)),
    # what looks like a marker, but is a line of the file
    (
        "*** Update File: a.py\n *** End Patch\n-*** Add File: x\n+@@ y\n",
        (updated(hunk(" *** End Patch", "-*** Add File: x", "+@@ y")),),
    ),
    ("*** Add File: a.py\n+*** End Patch\n", (AddedFile("a.py", "*** End Patch\n", 2),)),
    # line numbers of other diffs
    (
        "*** Update File: a.py\n@@ -1,3 +1,4 @@ def f():\n-x\n@@ -9 +10 @@\n-y\n",
        (updated(hunk("-x", headers=("def f():",)), hunk("-y", line=5)),),
    ),
    # a move alone, an empty file, spaces around markers
    ("*** Update File: a.py\n*** Move to: b.py\n", (updated(target="b.py"),)),
    ("*** Add File: a.py\n", (AddedFile("a.py", "", 2),)),
    ("*** Add File: a.py\n+x\n\n\n*** Delete File: b\n", (AddedFile("a.py", "x\n", 2), DeletedFile("b", 6))),
    ("  *** Delete File:  a b.py  \n", (DeletedFile("a b.py", 2),)),
    # other line ends than "\n" belong to the line
    ("*** Add File: a\n+x\x0cy\u2028z\n", (AddedFile("a", "x\x0cy\u2028z\n", 2),)),
]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(("body", "files"), BODIES)
def test_what_is_read(body: str, files: tuple[FilePatch, ...], newline: str) -> None:
    assert parse_patch(f"*** Begin Patch\n{body}*** End Patch\n".replace("\n", newline)) == files


INNER = "*** Begin Patch\n*** Delete File: a\n*** End Patch"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (INNER, 2),
        (f"\n\n  {INNER}  \n\n", 4),
        (INNER.replace("\n", "\r\n"), 2),
        (f"<<EOF\n{INNER}\nEOF\n", 3),
        (f"<<'EOF'\n{INNER}\nEOF", 3),
        (f'<<"PATCH"\n{INNER}\nPATCH', 3),
        (f"apply_patch <<'EOF'\n{INNER}\nEOF", 3),
        (f"```\n{INNER}\n```", 3),
        (f"```diff\n\n{INNER}\n\n```\n", 4),
        (f"```sh\napply_patch <<-'EOF'\n{INNER}\nEOF\n```", 4),
    ],
)
def test_wrappers_are_taken_off_and_lines_are_counted_with_them(text: str, line: int) -> None:
    assert parse_patch(text) == (DeletedFile("a", line),)


HEADERS = "here a file begins, with '*** Add File:', '*** Update File:' or '*** Delete File:' and its path, not"

MALFORMED: list[tuple[str, int, str]] = [
    ("", 1, "a patch begins with '*** Begin Patch', and it is empty."),
    (" \n\n", 1, "a patch begins with '*** Begin Patch', and it is empty."),
    ("--- a/x\n+++ b/x\n", 1, "a patch begins with '*** Begin Patch', not with '--- a/x'."),
    ("\nSure!\n*** Begin Patch", 2, "a patch begins with '*** Begin Patch', not with 'Sure!'."),
    ("<<'EOF'\n*** Begin Patch\n*** End Patch", 1, "a patch begins with '*** Begin Patch', not with \"<<'EOF'\"."),
    ("*** Begin Patch", 1, "a patch ends with '*** End Patch', not with '*** Begin Patch'."),
    (
        "*** Begin Patch\n*** Delete File: a\n",
        2,
        "a patch ends with '*** End Patch', not with '*** Delete File: a'.",
    ),
    (f"*** Begin Patch\n{'x' * 90}", 2, f"a patch ends with '*** End Patch', not with '{'x' * 80}...'."),
    ("*** Begin Patch\n*** End Patch", 1, "the patch is empty: it names no file to add, update or delete."),
    ("*** Begin Patch\n\n*** End Patch", 2, "the patch is empty: it names no file to add, update or delete."),
    (patch("*** Rename File: a\n"), 2, f"{HEADERS} '*** Rename File: a'."),
    (patch("@@\n-x\n"), 2, f"{HEADERS} '@@'."),
    (patch("*** Delete File: a\n-x\n"), 3, f"{HEADERS} '-x'."),
    (patch("*** Delete File: a\n*** End of File\n"), 3, f"{HEADERS} '*** End of File'."),
    (
        patch("*** Delete File: a\n*** End Patch\n*** Begin Patch\n*** Delete File: b\n"),
        3,
        "nothing may follow '*** End Patch': put all files into one patch.",
    ),
    (patch("*** Delete File:\n"), 2, "'*** Delete File:' needs the path of a file after it."),
    (patch("*** Add File:   \n+x\n"), 2, "'*** Add File:' needs the path of a file after it."),
    (patch("*** Update File: \n-x\n"), 2, "'*** Update File:' needs the path of a file after it."),
    (patch("*** Update File: a\n*** Move to:\n-x\n"), 3, "'*** Move to:' needs the path of a file after it."),
    (patch("*** Update File: a\n"), 2, "the update of 'a' has no hunks: say what changes."),
    (
        patch("*** Add File: a\n+x\ny\n"),
        4,
        "each line of an added file begins with '+', and this one is 'y'.",
    ),
    (
        patch("*** Add File: a\n+x\n\n+y\n"),
        4,
        "each line of an added file begins with '+', and this one is ''.",
    ),
    (
        patch("*** Update File: a\nx\n"),
        3,
        "this hunk has no lines: each begins with ' ', '-' or '+', and here is 'x'.",
    ),
    (
        patch("*** Update File: a\n@@ def f():\n"),
        3,
        "this hunk has no lines: each begins with ' ', '-' or '+'.",
    ),
    (
        patch("*** Update File: a\n@@\n*** End of File\n"),
        3,
        "this hunk has no lines: each begins with ' ', '-' or '+', and here is '*** End of File'.",
    ),
    (
        patch("*** Update File: a\n@@\n-x\nx\n"),
        5,
        "a line of a hunk begins with ' ', '-' or '+', and a hunk with '@@', not 'x'.",
    ),
    (
        patch("*** Update File: a\n-x\n*** Update File: a\n-y\n"),
        4,
        "'a' occurs twice: put all that concerns a file into one section.",
    ),
    (
        patch("*** Update File: a\n*** Move to: b\n-x\n*** Add File: b\n"),
        5,
        "'b' occurs twice: put all that concerns a file into one section.",
    ),
]


@pytest.mark.parametrize(("text", "line", "message"), MALFORMED)
def test_what_is_no_patch(text: str, line: int, message: str) -> None:
    found = parse_patch(text)
    assert found == PatchError(line, message)
    assert isinstance(found, PatchError)
    assert found.sentence == f"Line {line} of the patch: {message}"
    assert patched_paths(text) == []


def test_every_path_is_named_targets_too() -> None:
    assert patched_paths(WHOLE) == ["hello.txt", "src/app.py", "src/main.py", "obsolete.txt"]
    assert patched_paths(patch("*** Delete File: ../.env\n*** Add File: /etc/x\n")) == ["../.env", "/etc/x"]


def test_a_patch_of_empty_lines_is_read_in_one_pass() -> None:
    text = patch("*** Update File: a\n" + "\n" * 200_000 + "-x\n" + "\n" * 200_000)
    files = parse_patch(text)
    assert not isinstance(files, PatchError)
    assert [len(file.hunks[0].lines) for file in files if isinstance(file, UpdatedFile)] == [200_001]


PIECES = st.sampled_from(
    [
        *("*** Begin Patch", "*** End Patch", "*** End of File", "*** Add File: a", "*** Delete File: b"),
        *("*** Update File: c", "*** Move to: d", "@@", "@@ x", " x", "-x", "+x", "", "x", "```", "<<EOF", "EOF"),
        "*** Add File:",
    ]
)


@given(st.lists(PIECES, max_size=12).map("\n".join) | st.text(max_size=50))
def test_anything_is_read_or_refused(text: str) -> None:
    for each in (text, f"*** Begin Patch\n{text}\n*** End Patch"):
        found = parse_patch(each)
        if isinstance(found, PatchError):
            assert 1 <= found.line <= each.count("\n") + 1
        else:
            assert len(set(patched_paths(each))) == len(patched_paths(each)) >= len(found) > 0
