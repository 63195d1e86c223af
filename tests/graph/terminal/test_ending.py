"""The end of a run, as lines and as JSON."""

import json

import pytest

from graph.terminal.ending import (
    Line,
    as_json,
    diff_lines,
    error_as_json,
    interruption,
    outcome_lines,
    refused_call,
    result_as_json,
)
from nodes.records import (
    ChangeKind,
    FileChange,
    Outcome,
    OutcomeKind,
    Plan,
    PlanStep,
    StopReason,
    ToolError,
    ToolErrorCode,
)

DIFF = "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n same\n--- old\n+++ new\n\\ No newline at end of file\n"
CHANGE = FileChange(path="a.py", kind=ChangeKind.EDITED, sha256_before="0", sha256_after="1", diff=DIFF)


def test_a_diff_is_coloured_by_its_signs() -> None:
    assert [line.style for line in diff_lines([DIFF])] == ["bold", "bold", "cyan", "", "red", "green", "dim"]
    assert "\n".join(line.text for line in diff_lines([DIFF, DIFF])) == (DIFF + DIFF).removesuffix("\n")


def test_a_finished_run_says_what_changed() -> None:
    done = Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Done.", answer="Done.")
    changed = done.model_copy(update={"changed_files": ("a.py", "b.py"), "value": {"é": 1}})
    assert list(outcome_lines(done)) == [Line("FINISHED (answered): no file changed", "bold green")]
    assert list(outcome_lines(changed)) == [
        Line('value: {"é": 1}'),
        Line("FINISHED (answered): 2 files changed: a.py, b.py", "bold green"),
    ]


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        ("", ""),
        ("none", ""),
        ("passed", "; checks passed"),
        ("failed", "; checks failed"),
        ("unavailable", "; checks unavailable"),
    ],
)
def test_a_finished_run_says_what_its_checks_came_to(checks: str, said: str) -> None:
    done = Outcome(
        kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="x", changed_files=("a.py",), checks=checks
    )
    assert list(outcome_lines(done)) == [Line(f"FINISHED (answered): 1 file changed: a.py{said}", "bold green")]


def test_a_run_that_did_not_finish_says_why_and_how_to_go_on() -> None:
    stopped = Outcome(
        kind=OutcomeKind.SYSTEM_ERROR,
        reason=StopReason.LOOP_PERSISTED,
        message="It went\nround.",
        diagnostics=("one\ntwo", "three"),
        changed_files=("a.py",),
        how_to_go_on="Take another model.",
    )
    assert list(outcome_lines(stopped)) == [
        Line("SYSTEM_ERROR (loop_persisted): It went round.", "bold red"),
        Line("  - one two", "dim"),
        Line("  - three", "dim"),
        Line("1 file changed: a.py"),
        Line("How to go on: Take another model."),
    ]
    budget = stopped.model_copy(update={"kind": OutcomeKind.BUDGET_STOP, "changed_files": ()})
    assert [line.style for line in outcome_lines(budget)] == ["bold yellow", "dim", "dim", ""]


def test_a_run_that_a_limit_ended_gives_the_account_of_its_model() -> None:
    stopped = Outcome(
        kind=OutcomeKind.BUDGET_STOP,
        reason=StopReason.MAX_CALLS_PER_TURN,
        message="Limit reached.",
        account="Done: the fix.\n\nLeft: its test.",
        how_to_go_on="Send another message.",
    )
    assert [line.text for line in outcome_lines(stopped)] == [
        "BUDGET_STOP (max_calls_per_turn): Limit reached.",
        "The model's own account:",
        "  Done: the fix.",
        "",
        "  Left: its test.",
        "How to go on: Send another message.",
    ]
    shown = json.loads(result_as_json(stopped, [], Plan(), "thread", {}, None))
    assert shown["outcome"]["account"] == "Done: the fix.\n\nLeft: its test."


def test_a_result_is_one_object_on_one_line_of_ascii() -> None:
    outcome = Outcome(
        kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="é\u202e", usage={"total_calls": 1}
    )
    used = {"steps": [{"step": 1}], "compactions": []}
    text = result_as_json(outcome, [CHANGE], Plan(steps=(PlanStep(title="x"),)), "thread", used, "/data/é")
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text) == {
        "schema": 1,
        "outcome": outcome.model_dump(mode="json"),
        "changes": [CHANGE.model_dump(mode="json")],
        "plan": {"steps": [{"title": "x", "status": "pending"}]},
        "usage": {"total_calls": 1},
        "steps": [{"step": 1}],
        "compactions": [],
        "thread_id": "thread",
        "log": "/data/é",
    }


def test_a_result_without_a_log_says_so() -> None:
    done = Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Done.")
    assert json.loads(result_as_json(done, [], Plan(), "thread", {}, None))["log"] is None


def test_a_result_names_the_command_that_goes_on_where_there_is_one() -> None:
    stopped = Outcome(kind=OutcomeKind.BUDGET_STOP, reason=StopReason.CANCELLED, message="x")
    shown = [result_as_json(stopped, [], Plan(), "thread", {}, None, resume) for resume in ("resume it", None)]
    assert [json.loads(each).get("resume", "none") for each in shown] == ["resume it", "none"]


@pytest.mark.parametrize(
    ("changed", "said"), [([], ""), (["b.py", "a.py", "b.py"], "; changed before that: b.py, a.py")]
)
def test_a_run_that_was_ended_at_once_says_how_to_go_on(changed: list[str], said: str) -> None:
    assert interruption("SIGTERM", changed, "resume it") == f"stopped by SIGTERM{said}; go on with: resume it"
    assert interruption("Ctrl-C", changed, None) == f"stopped by Ctrl-C{said}"


def test_what_programs_are_given_is_strict_json() -> None:
    odd = {"a\ud83d": [float("nan"), float("-inf"), 1.5, "x\udc00y"], "pair": "\U0001f600", "b": (True, None)}
    shown = as_json(odd)
    assert json.loads(shown, parse_constant=str) == {
        "a\ufffd": [None, None, 1.5, "x\ufffdy"],
        "pair": "\U0001f600",
        "b": [True, None],
    }
    assert json.loads(shown).keys() == json.loads(shown.encode("ascii")).keys()


def test_a_refused_call_says_which_and_why() -> None:
    error = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="No.")
    told = {"tool": "read_file", "target": ".env", "code": "permission_denied", "message": "No."}
    assert refused_call("read_file", ".env", error) == told


def test_an_error_is_an_object_too() -> None:
    assert json.loads(error_as_json("usage_error", "no")) == {"error": {"code": "usage_error", "message": "no"}}
    assert as_json({"path": object}).isascii()
