from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.edits.diffs import MAX_DIFF_LINES, unified_diff
from mendgraph.nodes.execute_tools.secrets.redact import MARK
from tests.row_tables import rows
from tests.rules.secrets.samples import BASE64, BLOCKS

LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n"]), max_size=30)


@rows(
    ("a\n", "a\n", ""),
    (None, "a\nb\n", "--- /dev/null\n+++ b/f.py\n@@ -0,0 +1,2 @@\n+a\n+b\n"),
    ("a", "a\n", "--- a/f.py\n+++ b/f.py\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"),
    (
        "".join(f"{n}\n" for n in range(100)),
        "".join("new\n" if n == 50 else f"{n}\n" for n in range(100)),
        "--- a/f.py\n+++ b/f.py\n@@ -48,7 +48,7 @@\n 47\n 48\n 49\n-50\n+new\n 51\n 52\n 53\n",
    ),
    ("x\x0cy\u2028z\n", "x\n", "--- a/f.py\n+++ b/f.py\n@@ -1 +1 @@\n-x\x0cy\u2028z\n+x\n"),
)
def test_diff_is_in_unified_format(before: str | None, after: str, diff: str) -> None:
    assert unified_diff("f.py", before, after) == diff


@given(LINES, LINES)
def test_applying_the_diff_gives_the_new_text(before: list[str], after: list[str]) -> None:
    diff = unified_diff("f.py", "".join(before), "".join(after))
    assert (diff == "") is (before == after)
    assert applied(before, diff) == after


def applied(before: list[str], diff: str) -> list[str]:
    """The result of `patch` for a diff; fails if a line is not in its place."""
    result, position = [], 0
    for line in diff.splitlines(keepends=True)[2:]:
        if line.startswith("@@"):
            start, _, length = line.split()[1][1:].partition(",")
            first = int(start) - (0 if length == "0" else 1)
            result += before[position:first]
            position = first
            continue
        if line[0] in " -":
            assert before[position] == line[1:]
            position += 1
        if line[0] in " +":
            result.append(line[1:])
    return result + before[position:]


KEY_FILE = f'KEY = """{BLOCKS[0]}"""\nlimit = 10\n'


@rows(
    ("10", "20", f'@@ -3,4 +3,4 @@\n {MARK}\n {MARK}\n {MARK}"""\n-limit = 10\n+limit = 20\n'),
    (
        BASE64[::-1],
        BASE64[1::-1] + BASE64,
        f'@@ -1,6 +1,6 @@\n KEY = """{MARK}\n {MARK}\n-{MARK}\n+{MARK}\n {MARK}\n {MARK}"""\n limit = 10\n',
    ),
    (
        BLOCKS[0][:10],
        "",
        f'@@ -1,4 +1,4 @@\n-KEY = """{MARK}\n+KEY = """{BLOCKS[0][10:31]}\n {MARK}\n {MARK}\n {MARK}\n',
    ),
)
@rows("\n", "\r\n")
def test_private_key_lines_are_redacted_in_diffs(end: str, old: str, new: str, body: str) -> None:
    before, after = KEY_FILE, KEY_FILE.replace(old, new, 1)
    head = "--- a/f.py\n+++ b/f.py\n"
    assert unified_diff("f.py", before.replace("\n", end), after.replace("\n", end)) == head + body


def test_long_diff_is_truncated_with_a_note() -> None:
    diff = unified_diff("f.py", None, "".join(f"{n}\n" for n in range(1000)))
    assert diff.splitlines()[-2:] == ["+196", "[... 803 more lines of this diff]"]
    assert len(diff.splitlines()) == MAX_DIFF_LINES + 1


def test_very_long_change_is_not_compared_line_by_line() -> None:
    before = "".join(f"{n}\n" for n in range(3000))
    diff = unified_diff("f.py", f"same\n{before}", f"same\n{before[:-5]}x\n".replace("\n1\n", "\nx\n"))
    assert diff.startswith("--- a/f.py\n+++ b/f.py\n@@ -1,3001 +1,3001 @@\n-same\n-0\n-1\n")
