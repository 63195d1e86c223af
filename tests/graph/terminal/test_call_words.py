"""Calls and results in a few words."""

from typing import Any

import pytest

from graph.terminal.call_words import count_of, error_words, result_words, target_of
from nodes.records import ExtractionError, ExtractionErrorType, ToolErrorCode, ToolResult


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, ""),
        ({"path": "calc.py", "start_line": 1}, "calc.py"),
        ({"path": "a\x1b\nb"}, r"a\x1b b"),
        ({"path": 7}, ""),
        ({"pattern": "add", "path": "."}, "'add'"),
        ({"pattern": "add", "path": "src"}, "'add' in src"),
        ({"path": "x" * 100}, "x" * 77 + "..."),
    ],
)
def test_the_target_of_a_call(arguments: dict[str, Any], words: str) -> None:
    assert target_of(arguments) == words


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "ok"),
        ({"lines_shown": 35, "lines_remaining": 0}, "35 lines"),
        ({"lines_shown": 1, "lines_remaining": 1200}, "1 line, 1,200 more"),
        ({"files": 2, "directories": 1, "entries": []}, "2 files, 1 directory"),
        ({"paths": ["a", "b"], "has_more": False}, "2 files"),
        ({"paths": ["a"], "has_more": True}, "1 file and more"),
        ({"matches": [], "has_more": False}, "0 matches"),
        ({"path": "a", "replacements": 2}, "2 replacements"),
        ({"path": "a", "replacements": 0}, "created"),
        ({"path": "a", "action": "overwritten", "bytes": 4, "lines": 1}, "overwritten, 1 line"),
        ({"path": "a", "changed": ["f", "C.g"], "action": "merged"}, "merged f, C.g"),
        ({"path": "a", "changed": [], "action": "replaced"}, "replaced"),
        ({"done": 1, "in_progress": 0, "pending": 2}, "1 done, 0 in progress, 2 pending"),
    ],
)
def test_what_a_result_amounts_to(data: dict[str, Any], words: str) -> None:
    assert result_words(ToolResult.success(**data)) == words


def test_a_failure_is_named_with_its_message() -> None:
    failure = ToolResult.failure(ToolErrorCode.NOT_FOUND, "No such\nfile: 'a\x1b'.")
    assert result_words(failure) == r"not found: No such file: 'a\x1b'."


def test_errors_of_a_reply() -> None:
    cut = ExtractionError(ExtractionErrorType.TRUNCATED_REPLY, 0, "", "")
    paren = ExtractionError(ExtractionErrorType.MISSING_CLOSING_PAREN, 3, "", "")
    assert error_words(()) == "it could not be read"
    assert error_words((cut,)) == "TRUNCATED_REPLY"
    assert error_words((paren, cut, cut)) == "MISSING_CLOSING_PAREN in line 3 and 2 more"


def test_counting() -> None:
    assert [count_of(1, "line"), count_of(2_000, "line"), count_of(0, "match", "matches")] == [
        "1 line",
        "2,000 lines",
        "0 matches",
    ]
