"""Nothing that comes from elsewhere can steer a terminal."""

from typing import Any

import pytest

from mendgraph.nodes.language.display import error_words, one_line, plain, result_words, target_of
from mendgraph.nodes.records import ExtractionError, ExtractionErrorType, ToolErrorCode, ToolResult


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("def f():\n\treturn 'é 漢 👍🏽'", "def f():\n\treturn 'é 漢 👍🏽'"),
        ("\x1b[31mred\x07\r\x00\x7f\x9b", r"\x1b[31mred\x07\r\x00\x7f\x9b"),
        ("a\u202eb\u2066c\u200fd", r"a\u202eb\u2066c\u200fd"),
        ("\u2028\ufeff\ud800", r"\u2028\ufeff\ud800"),
        ("👩\u200d💻", "👩\u200d💻"),
    ],
)
def test_what_steers_a_terminal_is_written_as_its_escape(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_one_line_is_one_line_of_bounded_length() -> None:
    assert one_line(" a\n\n  b\t\x1bc ") == r"a b \x1bc"
    assert one_line("word " * 100, limit=12) == "word word..."


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, ""),
        ({"path": "calc.py", "start_line": 1}, "calc.py"),
        ({"path": "a\x1b\nb"}, r"a\x1b b"),
        ({"pattern": "add", "path": "."}, "'add'"),
        ({"pattern": "add", "path": "src"}, "'add' in src"),
        ({"path": "x" * 100}, "x" * 77 + "..."),
        ({"argv": ["git", "log", "-n 1", "a\x1b\nb"]}, r"git log '-n 1' 'a\x1b b'"),
        ({"argv": ["make"], "cwd": "docs"}, "make in docs"),
        ({"argv": ["x" * 60, "y" * 60]}, "x" * 60 + " " + "y" * 16 + "..."),
        ({"argv": "make test"}, ""),
        ({"url": "https://docs.python.org/3/"}, "https://docs.python.org/3/"),
        ({"url": 7, "path": "a.py"}, "a.py"),
        ({"path": "a.py", "target": "b/a.py"}, "a.py → b/a.py"),
    ],
)
def test_the_target_of_a_call(arguments: dict[str, Any], words: str) -> None:
    assert target_of(arguments) == words


@pytest.mark.parametrize(
    ("data", "words"),
    [
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
        (
            {"files": [{"path": "a", "action": "edited"}, {"path": "b", "target": "c", "action": "moved"}]},
            "edited a, moved b → c",
        ),
        (
            {"files": [{"path": str(number), "action": "created"} for number in range(7)]},
            "created 0, created 1, created 2, created 3, created 4 and 2 more",
        ),
    ],
)
def test_what_a_result_amounts_to(data: dict[str, Any], words: str) -> None:
    assert result_words(ToolResult.success(**data)) == words


def test_a_failure_is_named_with_its_message() -> None:
    failure = ToolResult.failure(ToolErrorCode.NOT_FOUND, "No such\nfile: 'a\x1b'.")
    assert result_words(failure) == r"not found: No such file: 'a\x1b'."


def test_what_an_error_says_for_the_model_alone_is_left_out() -> None:
    message = "UNKNOWN_TOOL_NAME: Unknown tool 'search'. Available: ['edit_file', 'list_files']"
    failure = ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, message)
    assert result_words(failure) == "invalid argument: Unknown tool 'search'."


def test_errors_of_a_reply() -> None:
    cut = ExtractionError(ExtractionErrorType.TRUNCATED_REPLY, 0, "", "")
    paren = ExtractionError(ExtractionErrorType.MISSING_CLOSING_PAREN, 3, "", "")
    assert error_words(()) == "it could not be read"
    assert error_words((cut,)) == "TRUNCATED_REPLY"
    assert error_words((paren, cut, cut)) == "MISSING_CLOSING_PAREN in line 3 and 2 more"
