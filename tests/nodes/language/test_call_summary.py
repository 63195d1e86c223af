"""Calls and results in a few words."""

from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.registry import Tool
from mendgraph.nodes.execute_tools.tools.apply_patch import apply_patch
from mendgraph.nodes.execute_tools.tools.edit_file import multi_edit
from mendgraph.nodes.execute_tools.tools.move_file import delete_file, move_file
from mendgraph.nodes.execute_tools.tools.write_file import append_file
from mendgraph.nodes.language.display import count_of, error_words, result_words, target_of
from mendgraph.nodes.records import ExtractionError, ExtractionErrorType, ToolErrorCode, ToolResult
from tests.nodes.execute_tools.conftest import Bench


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
        ({"argv": ["git", "log", "-n 1", "a\x1b\nb"]}, r"git log '-n 1' 'a\x1b b'"),
        ({"argv": ["make"], "cwd": "."}, "make"),
        ({"argv": ["make"], "cwd": "docs"}, "make in docs"),
        ({"argv": ["x" * 60, "y" * 60]}, "x" * 60 + " " + "y" * 16 + "..."),
        ({"argv": "make test"}, ""),
        ({"argv": ["make", 1]}, ""),
        ({"url": "https://docs.python.org/3/"}, "https://docs.python.org/3/"),
        ({"url": 7, "path": "a.py"}, "a.py"),
        ({"path": "a.py", "target": "b/a.py"}, "a.py → b/a.py"),
        ({"target": "b.py"}, ""),
    ],
)
def test_the_target_of_a_call(arguments: dict[str, Any], words: str) -> None:
    assert target_of(arguments) == words


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "ok"),
        ({"checks": "passed", "ran": ["pytest -q", "the examples of add"]}, "2 checks passed"),
        ({"checks": "none", "ran": []}, "nothing to run"),
        ({"checks": "unavailable", "ran": [], "reason": "no\nbubblewrap"}, "cannot run: no bubblewrap"),
        ({"checks": "odd"}, "odd"),
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
        ({"exit_code": 0, "stdout": "", "stderr": ""}, "exit 0"),
        ({"exit_code": 3, "made_denied": [".env"]}, "exit 3, made 1 denied file"),
        ({"exit_code": 0, "made_denied": [".env", "a.pem"]}, "exit 0, made 2 denied files"),
        ({"exit_code": 137, "signal": 9}, "killed by signal 9"),
        ({"status": 200, "size": 12_345, "has_more": False}, "200, 12,345 bytes"),
        ({"status": 404, "size": 1, "has_more": True}, "404, 1 byte and more"),
        ({"path": "a", "target": "b", "action": "moved"}, "moved"),
        ({"path": "a", "action": "deleted"}, "deleted"),
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


def test_the_words_fit_the_results_of_the_tools(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    patch = "*** Begin Patch\n*** Update File: b.py\n*** Move to: d.py\n@@\n-b\n+B\n*** End Patch"

    def done(tool: Tool, **arguments: Any) -> str:
        return result_words(bench.run(tool, **arguments).result)

    assert done(append_file, path="a.py", content="a\n") == "created, 1 line"
    assert done(append_file, path="a.py", content="c\n") == "appended, 1 line"
    assert done(multi_edit, path="a.py", edits=[{"old_str": "a", "new_str": "A"}]) == "1 edit, 1 replacement"
    assert done(move_file, path="a.py", target="b.py") == "moved"
    assert done(multi_edit, path="b.py", edits=[{"old_str": "A", "new_str": "b"}]) == "1 edit, 1 replacement"
    assert done(apply_patch, patch=patch) == "moved b.py → d.py"
    assert done(delete_file, path="d.py") == "deleted"


def test_a_failure_is_named_with_its_message() -> None:
    failure = ToolResult.failure(ToolErrorCode.NOT_FOUND, "No such\nfile: 'a\x1b'.")
    assert result_words(failure) == r"not found: No such file: 'a\x1b'."


def test_lines_that_only_part_a_test_report_are_left_out() -> None:
    message = f"test_a.py fails:\n.F\n{'=' * 70}\nFAIL: test_total\n{'-' * 70}\na ---- b"
    failure = ToolResult.failure(ToolErrorCode.CHECK_FAILED, message)
    assert result_words(failure) == "check failed: test_a.py fails: .F FAIL: test_total a ---- b"


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


def test_counting() -> None:
    assert [count_of(1, "line"), count_of(2_000, "line"), count_of(0, "match", "matches")] == [
        "1 line",
        "2,000 lines",
        "0 matches",
    ]
