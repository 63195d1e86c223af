"""No foreign text can control a terminal."""

from typing import Any

from mendgraph.nodes.language.display import (
    error_words,
    fenced,
    inline_code,
    one_line,
    plain,
    result_words,
    target_of,
    without_middle,
)
from mendgraph.nodes.records import ExtractionError, ExtractionErrorType, ToolErrorCode, ToolResult
from tests.row_tables import rows


@rows(
    ("def f():\n\treturn 'é 漢 👍🏽'", "def f():\n\treturn 'é 漢 👍🏽'"),
    ("\x1b[31mred\x07\r\x00\x7f\x9b", r"\x1b[31mred\x07\r\x00\x7f\x9b"),
    ("a\u202eb\u2066c\u200fd", r"a\u202eb\u2066c\u200fd"),
    ("\u2028\ufeff\ud800", r"\u2028\ufeff\ud800"),
    ("👩\u200d💻", "👩\u200d💻"),
)
def test_control_characters_are_escaped_for_the_terminal(text: str, escaped: str) -> None:
    assert plain(text) == escaped


def test_text_is_shortened_to_one_line() -> None:
    assert one_line(" a\n\n  b\t\x1bc ") == r"a b \x1bc"
    assert one_line("word " * 100, limit=12) == "word word..."
    assert (one_line("the first second", limit=14), one_line("x" * 20, limit=10)) == ("the first...", "xxxxxxx...")


@rows(
    ({}, ""),
    ({"path": "calc.py", "start_line": 1}, "calc.py"),
    ({"path": "a\x1b\nb"}, r"a\x1b b"),
    ({"pattern": "add", "path": "."}, "'add'"),
    ({"pattern": "add", "path": "src"}, "'add' in src"),
    ({"path": "x" * 100 + "/.env"}, "x" * 39 + "..." + "x" * 33 + "/.env"),
    ({"argv": ["git", "log", "-n 1", "a\x1b\nb"]}, r"git log '-n 1' 'a\x1b b'"),
    ({"argv": ["make"], "cwd": "docs"}, "make in docs"),
    ({"argv": ["x" * 60, "y" * 60]}, "x" * 39 + "..." + "y" * 38 + " (121 characters)"),
    (
        {"argv": ["sh", "-c", f"pytest # {'all ' * 20}\nrm -r a"]},
        f"sh -c 'pytest # {'all ' * 5}all...l {'all ' * 7}rm -r a' (104 characters)",
    ),
    (
        {"argv": ["make", "y" * 90], "cwd": "d" * 60},
        f"make {'y' * 34}...{'y' * 38} (95 characters) in {'d' * 19}...{'d' * 18}",
    ),
    ({"argv": "make test"}, ""),
    ({"url": "https://docs.python.org/3/"}, "https://docs.python.org/3/"),
    ({"url": 7, "path": "a.py"}, "a.py"),
    ({"path": "a.py", "target": "b/a.py"}, "a.py → b/a.py"),
)
def test_target_of_a_call_is_shown(arguments: dict[str, Any], words: str) -> None:
    assert target_of(arguments) == words


@rows(("", "```"), ("a\n```\nb", "````"), ("`````diff", "``````"), ("a\u2028~~~~\r```", "````"))
def test_fence_is_longer_than_any_run_of_backticks(text: str, fence: str) -> None:
    first, *inside, last = fenced(text, "diff").split("\n")
    assert (first, last) == (f"{fence}diff", fence)
    assert not [line for line in inside if line.strip().startswith(fence)]


@rows(
    ("src/a-b.py", "src/a-b.py"),
    ("![a](https://b.example)", "`![a](https://b.example)`"),
    ("a `b`\n``` c", "```` a `b` ``` c ````"),
)
def test_code_span_cannot_be_closed_by_its_text(text: str, code: str) -> None:
    assert inline_code(text) == code


@rows((12, "abcdefghijkl"), (11, "abcd...ijkl"), (10, "abcd...jkl"))
def test_long_text_is_shortened_in_the_middle(limit: int, text: str) -> None:
    assert without_middle("abcdefghijkl", limit) == text


@rows(
    ({}, "ok"),
    ({"checks": "passed", "ran": ["pytest a.py: 2 tests", "make test"]}, "pytest a.py: 2 tests, make test passed"),
    ({"checks": "none", "ran": [], "reason": "no\nbubblewrap"}, "not checked. no bubblewrap"),
    ({"lines_shown": 1, "lines_remaining": 1200}, "1 line, 1,200 more"),
    ({"files": 2, "directories": 1, "entries": []}, "2 files, 1 directory"),
    ({"paths": ["a"], "has_more": True}, "1 file and more"),
    ({"matches": [], "has_more": False}, "0 matches"),
    ({"path": "a", "replacements": 0}, "created"),
    ({"path": "a", "changed": ["f", "C.g"], "action": "merged"}, "merged f, C.g"),
    ({"path": "a", "changed": [], "action": "replaced"}, "replaced"),
    ({"done": 1, "in_progress": 0, "pending": 2}, "1 done, 0 in progress, 2 pending"),
    ({"noted": "Use make."}, "Use make."),
    ({"exit_code": 3}, "exit 3"),
    ({"exit_code": 137, "signal": 9}, "killed by signal 9"),
    ({"status": 404, "size": 1, "has_more": True}, "404, 1 byte and more"),
    ({"path": "a", "target": "b", "action": "moved"}, "moved"),
    ({"path": "a", "action": "appended", "start_line": 3, "lines": 2}, "appended, 2 lines"),
    ({"path": "a", "edits": 2, "replacements": 3, "lines_changed": 3}, "2 edits, 3 replacements"),
    ({"path": "a", "action": "edited", "new_diagnostics": ["a:1: bad"]}, "edited: 1 new diagnostic"),
    (
        {
            "path": "a",
            "replacements": 1,
            "new_diagnostics": ["a:1: bad", "... and 9 more"],
            "not_diagnosed": ["No tsc."],
        },
        "1 replacement: more than 1 new diagnostic; No tsc.",
    ),
    (
        {"files": [{"path": "a", "action": "edited"}, {"path": "b", "target": "c", "action": "moved"}]},
        "edited a, moved b → c",
    ),
    (
        {"files": [{"path": str(number), "action": "created"} for number in range(7)]},
        "created 0, created 1, created 2, created 3, created 4 and 2 more",
    ),
)
def test_result_is_summarized_in_a_few_words(data: dict[str, Any], words: str) -> None:
    assert result_words(ToolResult.success(**data)) == words


def test_failure_is_shown_with_its_message() -> None:
    failure = ToolResult.failure(ToolErrorCode.NOT_FOUND, "No such\nfile: 'a\x1b'.")
    assert result_words(failure) == r"not found: No such file: 'a\x1b'."


def test_part_of_an_error_meant_for_the_model_is_left_out() -> None:
    message = "UNKNOWN_TOOL_NAME: Unknown tool 'search'. Available: ['edit_file', 'list_files']"
    failure = ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, message)
    assert result_words(failure) == "invalid argument: Unknown tool 'search'."


def test_errors_of_a_reply_are_summarized() -> None:
    cut = ExtractionError(ExtractionErrorType.TRUNCATED_REPLY, 0, "", "")
    paren = ExtractionError(ExtractionErrorType.MISSING_CLOSING_PAREN, 3, "", "")
    assert error_words(()) == "it could not be read"
    assert error_words((cut,)) == "TRUNCATED_REPLY"
    assert error_words((paren, cut, cut)) == "MISSING_CLOSING_PAREN in line 3 and 2 more"
