"""One call in words: who allowed it, and what came of it."""

from typing import Any

import pytest

from graph.report.call_view import CallView, call_view
from graph.report.texts import Field
from graph.terminal.batch_command import Shown
from nodes.guard.policy import denied
from nodes.records import (
    CallError,
    CallResult,
    ChangeKind,
    ExtractionError,
    ExtractionErrorType,
    FileChange,
    ToolErrorCode,
    ToolResult,
    Verdict,
    VerdictKind,
)
from tests.graph.report.visits import ALLOWED, CALL, DONE, TEXTS, judged

NO = denied("workspace_boundary", ToolErrorCode.PERMISSION_DENIED, "It is outside.", ("a.py",))
REFUSED = CallResult(call_id="c", tool="edit_file", result=ToolResult(ok=False, error=NO.error))
FAILED = CallResult(
    call_id="c", tool="edit_file", result=ToolResult.failure(ToolErrorCode.CONFLICT, "Changed."), ms=0, attempts=3
)
WAS = {"index": 0, "rule": "ask_before_write", "path": "a.py", "arguments": {"path": "a.py"}}


def seen(**more: Any) -> CallView:
    return call_view(judged(**more), TEXTS)


def test_a_call_that_went_well() -> None:
    view = seen()
    assert (view.tool, view.target, view.state, view.verdict, view.rule) == ("edit_file", "a.py", "ok", "allowed", "")
    assert (view.result, view.duration) == ("edited", "4 ms")
    assert view.arguments == [Field("path", Shown("a.py"), block=False)]
    assert (view.diffs, view.preview, view.person, view.why) == ([], [], "", "")


def test_a_call_that_failed() -> None:
    view = seen(result=FAILED)
    assert (view.state, view.result, view.duration) == ("failed", "conflict: Changed.", "less than 1 ms, 3 attempts")


def test_a_call_that_was_denied() -> None:
    view = seen(verdict=NO, result=REFUSED)
    assert (view.state, view.verdict, view.rule) == ("denied", "denied", "workspace_boundary")
    assert (view.why, view.suggestions, view.duration) == ("It is outside.", ["a.py"], "")


def test_what_a_call_changed_is_shown_as_a_diff() -> None:
    change = FileChange(path="a.py", kind=ChangeKind.EDITED, sha256_before="1", sha256_after="2", diff="-a\n+b\n")
    (diff,) = seen(result=DONE.model_copy(update={"changes": (change,)})).diffs
    assert (diff.path, diff.kind, [line.kind for line in diff.lines]) == ("a.py", "edited", ["removed", "added"])


def test_a_malformed_call_says_what_is_wrong_with_it() -> None:
    wrong = ExtractionError(ExtractionErrorType.INVALID_JSON_SYNTAX, 1, "x", "a comma is missing")
    item = CallError(call_id="c", tool="", raw_arguments="{", error=wrong)
    view = seen(item=item, verdict=None, result=None)
    assert (view.tool, view.state, view.verdict) == ("a malformed call", "unknown", "not judged")
    assert view.why == "INVALID_JSON_SYNTAX: a comma is missing"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "ask_before_write asked a person, who approved"),
        (
            {"item": CALL.model_copy(update={"arguments": {"path": "b.py"}})},
            "ask_before_write asked a person, who edited the arguments and approved",
        ),
        ({"verdict": NO, "result": REFUSED}, "ask_before_write asked a person, who did not approve"),
        (
            {"verdict": denied("ask_before_write", ToolErrorCode.CANCELLED, "Stopped."), "result": None},
            "ask_before_write asked a person, who stopped the run",
        ),
        ({"verdict": None, "result": None}, "ask_before_write asks for it"),
        ({"asked": False, "was": None, "granted": True}, "a person had allowed it for this run"),
        ({"verdict": Verdict(kind=VerdictKind.DENY), "was": {}}, "a rule asked a person, who did not approve"),
    ],
)
def test_what_a_person_said(more: dict[str, Any], words: str) -> None:
    assert seen(**{"asked": True, "was": WAS, **more}).person == words


def test_what_a_person_edited_is_shown_as_the_model_wrote_it() -> None:
    item = CALL.model_copy(update={"arguments": {"path": "b.py"}})
    assert seen(item=item, asked=True, was=WAS).edited == [Field("path", Shown("a.py"), block=False)]
    assert seen(asked=True, was=WAS).edited == []
    assert seen(item=item, verdict=NO, asked=True, was=WAS).edited == []


@pytest.mark.parametrize("kind", ["diff", "argv", "problem", "arguments"])
def test_what_did_not_run_is_shown_as_it_was_proposed(kind: str) -> None:
    was = {**WAS, "preview": {"kind": kind, "text": "+x", "truncated": False}}
    waiting = seen(verdict=None, result=None, asked=True, was=was)
    assert (waiting.verdict, waiting.state) == ("waits for a person", "unknown")
    assert [(diff.path, diff.kind) for diff in waiting.diffs] == ([("a.py", "proposed")] if kind == "diff" else [])
    proposed = [Field("proposed", Shown("+x"), block=False)]
    assert waiting.preview == (proposed if kind in {"argv", "problem"} else [])
    ran = seen(asked=True, was=was)
    assert (ran.diffs, ran.preview) == ([], [])


def test_a_question_that_is_left_open_says_so() -> None:
    assert seen(verdict=Verdict(kind=VerdictKind.ASK), result=None).verdict == "a person has to decide"
    assert seen(verdict=ALLOWED).verdict == "allowed"
