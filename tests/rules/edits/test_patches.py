import difflib
from collections.abc import Sequence
from textwrap import dedent

from hypothesis import example, given, strategies as st

from mendgraph.nodes.execute_tools.edits.patches import (
    LISTED_PLACES,
    AddedFile,
    DeletedFile,
    FilePatch,
    Hunk,
    Patched,
    PatchError,
    UpdatedFile,
    apply_hunks,
    parse_patch,
    patched_paths,
)
from tests.row_tables import rows


def patch(body: str) -> str:
    return f"*** Begin Patch\n{dedent(body)}*** End Patch"


def hunk(*lines: str, headers: tuple[str, ...] = (), ends_file: bool = False, line: int = 3) -> Hunk:
    return Hunk(headers, tuple((line[0], line[1:]) for line in lines), ends_file, line)


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


def test_patch_with_every_element_is_parsed() -> None:
    changed = (" first", '-print("Hi")', '+print("Hello")', " ", " last")
    hunks = hunk(*changed, headers=("class A:", "    def greet():"), line=8), hunk("-x", ends_file=True, line=15)
    assert parse_patch(WHOLE) == (
        AddedFile("hello.txt", "Hello\n\nworld\n", 2),
        UpdatedFile("src/app.py", "src/main.py", hunks, 6),
        DeletedFile("obsolete.txt", 18),
    )


UPDATE = "*** Update File: a.py\n"
BODIES: list[tuple[str, tuple[FilePatch, ...]]] = [
    # no first "@@"; Source: codex
    (f"{UPDATE}-x\n", (updated(hunk("-x")),)),
    (f"{UPDATE}\n@@\n-x\n", (updated(hunk("-x", line=4)),)),
    # an empty line is an empty context line, except before a marker or the end
    (f"{UPDATE}@@\n-x\n\n+y\n\n", (updated(hunk("-x", " ", "+y")),)),
    (f"{UPDATE}@@\n-x\n\n@@\n\n-y\n\n", (updated(hunk("-x"), hunk(" ", "-y", line=6)),)),
    (f"{UPDATE}-x\n\n*** Delete File: b\n", (updated(hunk("-x")), DeletedFile("b", 5))),
    (f"{UPDATE}-x\n\n*** End of File\n", (updated(hunk("-x", ends_file=True)),)),
    # lines of the file that look like a marker
    (
        f"{UPDATE} *** End Patch\n-*** Add File: x\n+@@ y\n",
        (updated(hunk(" *** End Patch", "-*** Add File: x", "+@@ y")),),
    ),
    # line numbers of other diffs
    (
        f"{UPDATE}@@ -1,3 +1,4 @@ f:\n-x\n@@ -9 +10 @@\n-y\n",
        (updated(hunk("-x", headers=("f:",)), hunk("-y", line=5)),),
    ),
    # a move alone, an empty file
    (f"{UPDATE}*** Move to: b.py\n", (updated(target="b.py"),)),
    ("*** Add File: a.py\n", (AddedFile("a.py", "", 2),)),
    # other line ends than "\n" belong to the line
    ("*** Add File: a\n+x\x0cy\u2028z\n", (AddedFile("a", "x\x0cy\u2028z\n", 2),)),
]


@rows("\n", "\r\n")
@rows(*BODIES)
def test_patch_is_parsed_into_its_files(body: str, files: tuple[FilePatch, ...], newline: str) -> None:
    assert parse_patch(f"*** Begin Patch\n{body}*** End Patch\n".replace("\n", newline)) == files


HEADERS = "here a file begins, with '*** Add File:', '*** Update File:' or '*** Delete File:' and its path, not"

MADE = "a hunk is made of lines that begin with ' ', '-' or '+', after '@@'"

A = "*** Update File: a\n"
MALFORMED: list[tuple[str, int, str]] = [
    (" \n\n", 1, "a patch begins with '*** Begin Patch', and it is empty."),
    ("\nSure!\n*** Begin Patch", 2, "a patch begins with '*** Begin Patch', not with 'Sure!'."),
    ("*** Begin Patch", 1, "a patch ends with '*** End Patch', not with '*** Begin Patch'."),
    (f"*** Begin Patch\n{'x' * 90}", 2, f"a patch ends with '*** End Patch', not with '{'x' * 80}...'."),
    ("*** Begin Patch\n\n*** End Patch", 2, "the patch is empty: it names no file to change."),
    (
        patch("*** Delete File: a\n*** End Patch\n"),
        3,
        "nothing may follow '*** End Patch': put all files into one patch.",
    ),
    (patch(A), 2, "the update of 'a' has no hunks: say what changes."),
    (patch("*** Rename File: a\n"), 2, f"{HEADERS} '*** Rename File: a'."),
    (patch("*** Delete File: a\n-x\n"), 3, f"{HEADERS} '-x'."),
    (patch("*** Delete File:\n"), 2, "'*** Delete File:' needs the path of a file after it."),
    (patch("*** Add File: a\n+x\ny\n"), 4, "each line of an added file begins with '+', and this one is 'y'."),
    (patch(f"{A}x\n"), 3, f"{MADE}, not 'x'."),
    (patch(f"{A}@@ f\n"), 3, f"{MADE}."),
    (patch(A + "@@ f\n" * 11 + "-x\n"), 3, "a hunk may have 10 '@@' lines, and this has more."),
    (
        patch(f"{A}*** Move to: b\n-x\n*** Add File: b\n"),
        5,
        "'b' occurs twice: put all that concerns a file into one section.",
    ),
]


def test_invalid_patch_is_refused_with_its_line() -> None:
    for text, line, message in MALFORMED:
        error = parse_patch(text)
        assert error == PatchError(line, message)
        assert error.sentence == f"Line {line} of the patch: {message}"
        assert patched_paths(text) == []


CALC = """\
class A:
    def f(self):
        x = 1
        return x

    def g(self):
        x = 1
        return x


class B:
    def f(self):
        x = 1
        return x
"""


END = "  a\nend\n"
TWO = "-        x = 1\n+        x = 2\n"
BRACKET = "def f(\n    a,\n) -> int:\n    x = 1\n\n\ndef g():\n    x = 1\n"


def apply(text: str, body: str) -> Patched | PatchError:
    files = parse_patch(f"*** Begin Patch\n*** Update File: a.py\n{body}*** End Patch\n")
    assert not isinstance(files, PatchError), files
    [file] = files
    assert isinstance(file, UpdatedFile)
    return apply_hunks(text, file.hunks, file.path)


def error_of(text: str, body: str) -> PatchError:
    outcome = apply(text, body)
    assert isinstance(outcome, PatchError), outcome
    return outcome


@rows(
    ("a\nb\nc\n", "@@\n a\n-b\n+B\n c\n", "a\nB\nc\n", 0),
    ("a\nb\nc\n", " a\n+x\n+y\n", "a\nx\ny\nb\nc\n", 0),
    ("a\nb\nc\nd\n", "-a\n+A\n@@\n-d\n+D\n", "A\nb\nc\nD\n", 0),
    ("", "+x\n", "x\n", 0),
    ("a\n", "@@\n+x\n*** End of File\n", "a\nx\n", 0),
    # a wrong "*** End of File" does not matter where the lines stand in one place only
    ("a\nb\n", "-a\n*** End of File\n", "b\n", 0),
    # line endings: kept on unchanged lines, those of the file on new ones; a missing last one stays missing
    ("a\r\nb\r\nc\r\n", " a\n-b\n+x\n+y\n", "a\r\nx\r\ny\r\nc\r\n", 0),
    ("a\r\nb\nc\n", "-a\n+x\n b\n", "x\r\nb\nc\n", 0),
    ("a\nb\r\nc\r\n", "-a\n+x\n b\n+y\n", "x\nb\r\ny\r\nc\r\n", 0),
    ("a\nb", "-b\n+x\n", "a\nx", 0),
    ("a\r\nb", "-b\n", "a", 0),
    ("a\x0cb\u2028c\nd\n", "-d\n+e\n", "a\x0cb\u2028c\ne\n", 0),
    # whitespace around lines is ignored only if nothing else matches
    ("a  \nb\n", " a\n-b\n+c\n", "a  \nc\n", 1),
    ("    a\n    b\n", " a\n-b\n+c\n+\n+  d\n", "    a\n    c\n\n      d\n", 1),
    ("a\n\n  b\n", "     a\n \n-      b\n+      c\n+\n+d\n", "a\n\n  c\n\nd\n", 1),
    # an empty last line and typographic characters; Source: codex
    ("a\nb\n", "-a\n+x\n b\n \n", "x\nb\n", None),
    ("say “hi” \u2013 now\nb\n", ' say "hi" - now\n-b\n+c\n', "say “hi” \u2013 now\nc\n", None),
    ('say "hi"\nb\n', " say “hi”\n-b\n+c\n", 'say "hi"\nc\n', None),
    # a place before the end of the previous hunk does not count
    (
        "def f():\n  x\n  y\n  x\n",
        "@@ def f():\n   x\n-  y\n@@ def f():\n-  x\n+  z\n",
        "def f():\n  x\n  z\n",
        None,
    ),
    # the whole line goes before its beginning
    ("# A B\nx\n# A\nx\n", "@@ # A\n-x\n+y\n", "# A B\nx\n# A\ny\n", None),
    # a hunk begins in the block, and may end below it
    (
        f"def f():\n{END}def g():\n{END}",
        "@@ def f():\n-  a\n+  b\n end\n",
        f"def f():\n  b\nend\ndef g():\n{END}",
        None,
    ),
    # a closing bracket does not end the block
    (BRACKET, "@@ def f(\n-    x = 1\n+    x = 2\n", BRACKET.replace("1", "2", 1), None),
    # headers lead to a block
    (CALC, f"@@ class B:\n{TWO}", CALC[:-32] + CALC[-32:].replace("1", "2"), None),
    (CALC, f"@@ class A:\n@@     def g(self):\n{TWO}", CALC[:67] + CALC[67:].replace("1", "2", 1), None),
    (CALC, f"@@ class B\n@@ def f\n{TWO}", CALC[:-32] + CALC[-32:].replace("1", "2"), None),
)
def test_hunk_is_applied_where_it_fits(text: str, body: str, result: str, tier: int | None) -> None:
    outcome = apply(text, body)
    assert isinstance(outcome, Patched), outcome
    assert outcome.text == result
    assert tier is None or outcome[1] == tier


AMBIGUOUS = "add lines around it, or '@@' with the function or class above it, until it fits in one."


@rows(
    (CALC, "-        x = 1\n", "3, 7, 13"),
    (CALC, "@@ def f(self):\n+        y = 1\n", "3, 13"),
    ("a\nx\nx\n", " a\n@@\n-x\n", "2, 3"),
    ("x\n" * (LISTED_PLACES + 1), "-x\n", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and more"),
)
def test_hunk_that_fits_in_several_places_is_refused(text: str, body: str, places: str) -> None:
    error = error_of(text, body)
    assert error.message == f"this hunk fits in several places of 'a.py', at lines {places}: {AMBIGUOUS}"
    assert error.suggestions == ()


NEAR = (
    "the lines of this hunk do not occur in 'a.py'. The nearest lines are 6-7: the suggestion shows them as they are."
)
AFTER = "the lines of this hunk do not occur in 'a.py' from line 3 on, after the hunk before. Nothing in it is near"
ONLY_ADDS = "this hunk only adds lines to 'a.py', and nothing says where: add lines around them."
MISSES = [
    (CALC, "@@ class C:\n-x\n", 3, "the line 'class C:' after '@@' does not occur in 'a.py'.", ()),
    (CALC, "@@\n def g(self):\n-    x = 2\n", 3, NEAR, ("    def g(self):\n        x = 1",)),
    ("a\nb\n", "-b\n@@\n-something else\n", 4, AFTER, ()),
    ("a\nb\n", "@@\n+x\n", 3, ONLY_ADDS, ()),
    ("“a”\nb\n„a“\nb\n", ' "a"\n-b\n+c\n', 3, "the lines of this hunk do not occur", None),  # alike in two places
]


@rows(*MISSES)
def test_hunk_that_fits_nowhere_is_refused(
    text: str, body: str, line: int, message: str, suggestions: tuple[str, ...] | None
) -> None:
    error = error_of(text, body)
    assert error.line == line
    assert error.message.startswith(message)
    assert suggestions is None or error.suggestions == suggestions


@rows("", "*** End of File\n")
@rows(("a\nb\n", "-b\n", "-a\n"), ("a\n", "-a\n+b\n", "-a\n+c\n"))
def test_hunks_must_be_in_file_order_and_not_overlap(text: str, first: str, second: str, end: str) -> None:
    error = error_of(text, f"{first}@@\n{second}{end}")
    assert error.message.startswith("the lines of this hunk do not occur in 'a.py' from line ")


def test_search_in_many_repeated_lines_is_bounded() -> None:
    lines = 40_000
    text = "x\n" * lines
    assert error_of(text, "-x\n" * 10_000).line == 3
    assert error_of(text, "-x\n" * 10_000 + "-y\n").line == 3
    error = error_of(text, "@@ x\n" + "-y\n")
    assert error.message == "the line 'x' after '@@' occurs more than 50 times in 'a.py'."


# --- A diff, written as a patch, gives the text that it was made from


REPEATED = st.lists(
    st.sampled_from(["", "a", "b", "  a", "a ", "}", "\ta", "@@", "*** End Patch", "-", "+x"]), max_size=12
)


def rendered(old: Sequence[str], new: Sequence[str], context: int) -> str:
    """The difference as hunks with so many lines around each change; the last is marked where it ends the file."""
    hunks: list[str] = []
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(context):
        lines = ["@@"]
        for tag, old_start, old_end, new_start, new_end in group:
            if tag == "equal":
                lines += [f" {line}" for line in old[old_start:old_end]]
                continue
            lines += [f"-{line}" for line in old[old_start:old_end]]
            lines += [f"+{line}" for line in new[new_start:new_end]]
        hunks.append("\n".join(lines) + "\n" + ("*** End of File\n" if group[-1][2] == len(old) else ""))
    return "".join(hunks)


@given(REPEATED, REPEATED, st.integers(0, 20))
@example(["a", "a"], ["a"], 0)
def test_generated_diff_gives_the_new_text_or_is_refused(old: list[str], new: list[str], context: int) -> None:
    body = rendered(old, new, context)
    if not body:
        return
    outcome = apply("".join(f"{line}\n" for line in old), body)
    if context == 20 or isinstance(outcome, Patched):
        assert outcome == Patched("".join(f"{line}\n" for line in new), 0)
    else:
        assert "several places" in outcome.message or "only adds lines" in outcome.message


@rows("<<EOF", "<<'EOF'", 'apply_patch <<"EOF"', "applypatch <<EOF")
def test_patch_may_be_wrapped_in_a_here_document(start: str) -> None:
    body = "*** Begin Patch\n*** Delete File: a.py\n*** End Patch\n"
    files = parse_patch(f"{start}\n{body}EOF\n")
    assert not isinstance(files, PatchError)
    assert [file.path for file in files] == ["a.py"]
    assert isinstance(parse_patch(f"{start}\n{body}"), PatchError)
