"""Searches for places in a file: other text is unchanged, and every match is real."""

import re
from itertools import pairwise
from typing import Any, Final

from hypothesis import strategies as st

from mendgraph.nodes.execute_tools.edits.exact_edits import find_loosely, find_spots, replace_spots
from mendgraph.nodes.execute_tools.edits.patches import (
    AddedFile,
    PatchError,
    UpdatedFile,
    apply_hunks,
    parse_patch,
    patched_paths,
)
from mendgraph.nodes.workspace.files.text_files import to_unix
from tests.fuzz.inputs import files, fuzz, mutated

BLANKS: Final = re.compile(r"[ \t\r\n]+")
EDIT_WORDS: Final = ("    ", "\t", " ", "def ", "return", "\n\n", " \n", "\r\n", ")", "a\n" * 20)
PATCH_WORDS: Final = (
    *("*** Begin Patch\n", "*** End Patch", "*** Update File: a.py\n", "*** Add File: b.py\n"),
    *("*** Delete File: c.py\n",),
    *("*** Move to: d.py\n", "*** End of File\n", "@@\n", "@@ def f():\n", "@@ -1,2 +3,4 @@\n", "+", "-", " "),
    *("+a\n", "-a\n", " a\n"),
    *("```\n", "<<'EOF'\n", "EOF\n", "apply_patch "),
)
PATCH: Final = """*** Begin Patch
*** Update File: a.py
@@ def f():
 a = 1
-b = 2
+b = 3
*** Add File: b.py
+new
*** Delete File: c.py
*** End Patch"""


LINES: Final = st.lists(
    st.sampled_from(["a", "b", "", "  a", " ", "@@", "*** End of File", "-", "+", "\t", "é"]), max_size=12
).map("\n".join)


def _edits() -> st.SearchStrategy[Any]:
    text = mutated(files(), EDIT_WORDS)
    size = st.sampled_from([0, 1, 5, 30, 200, 1_000])

    def edit_of(text: str, at: int, size: int, indent: str, replacement: str) -> tuple[str, str, str]:
        start = len(text) * at // 1_000
        return text, indent + text[start : start + size].replace("\n", f"\n{indent}"), replacement

    place = st.integers(0, 1_000)
    of_the_text = st.builds(
        edit_of, text, place, size, st.sampled_from(["", "", "    ", "\t", " "]), st.text("a \n\t\r", max_size=8)
    )
    return of_the_text | st.tuples(text, st.text("a \n\t\r\u2028", max_size=5), st.text("b \n\r", max_size=5))


@fuzz(_edits)
def test_edit_is_found_only_where_it_occurs(example: tuple[str, str, str]) -> None:
    text, old_text, replacement = example
    exact = list(find_spots(text, old_text))
    for spot in exact:
        assert to_unix(text[spot.start : spot.end]) == to_unix(old_text)
        assert spot.line == text.count("\n", 0, spot.start) + 1
    apart = list(find_spots(text, old_text, overlapping=False))
    assert len(apart) <= len(exact)
    edited = replace_spots(text, apart, replacement)
    unchanged = [text[end:start] for (_, end, _), (start, _, _) in pairwise([(0, 0, 0), *apart, (len(text), 0, 0)])]
    assert len(edited) >= sum(map(len, unchanged))
    assert edited.startswith(unchanged[0])
    assert edited.endswith(unchanged[-1])
    loose = find_loosely(text, old_text, replacement)
    if loose is None:
        return
    for before, after in pairwise(loose.spots):
        assert before.start < after.start
    for spot in loose.spots:
        assert 0 <= spot.start <= spot.end <= len(text)
        assert BLANKS.sub("", text[spot.start : spot.end]) == BLANKS.sub("", old_text)
        assert spot.line == text.count("\n", 0, spot.start) + 1
    assert BLANKS.sub("", loose.replacement) == BLANKS.sub("", replacement)


@fuzz(lambda: st.tuples(mutated([PATCH], PATCH_WORDS), LINES))
def test_patch_is_parsed_or_refused(example: tuple[str, str]) -> None:
    patch, text = example
    files = parse_patch(patch)
    if isinstance(files, PatchError):
        assert files.sentence
        return
    assert set(patched_paths(patch)) >= {file.path for file in files}
    for file in files:
        if isinstance(file, AddedFile):
            assert len(file.text) <= len(patch) + 1
        elif isinstance(file, UpdatedFile):
            patched = apply_hunks(text, file.hunks, file.path)
            added = sum(len(text) + 2 for hunk in file.hunks for sign, text in hunk.lines if sign == "+")
            assert isinstance(patched, PatchError) or len(patched.text) <= len(text) + added + 2
