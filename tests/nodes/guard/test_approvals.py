import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodes.guard.approvals import approval_request, read_decisions, settle, stop_asked_for, waiting
from nodes.guard.verdicts import denied
from nodes.records import (
    CallError,
    ExtractionError,
    ExtractionErrorType,
    StopCause,
    StopReason,
    ToolCall,
    ToolErrorCode,
    Verdict,
    VerdictKind,
)

ARGUMENTS = {"path": "./a.py", "old_str": "a", "new_str": "b"}
CALL = ToolCall(call_id="1", tool="edit_file", arguments=ARGUMENTS, raw_arguments="")
BROKEN = CallError(
    call_id="2", tool="x", raw_arguments="", error=ExtractionError(ExtractionErrorType.EMPTY_TOOL_NAME, 1, "", "")
)
ASK = Verdict(kind=VerdictKind.ASK, rule="ask_before_write", path="a.py")
CONFIG = Verdict(kind=VerdictKind.ASK, rule="project_config", path="b.toml")
ALLOW = Verdict(kind=VerdictKind.ALLOW, path="c.py")
DENY = denied("env_file", ToolErrorCode.PERMISSION_DENIED, "Blocked.", path=".env")
APPROVED = Verdict(kind=VerdictKind.ALLOW, rule="ask_before_write", path="a.py")
CANCELLED = denied(
    "ask_before_write", ToolErrorCode.CANCELLED, "This call did not run: a person stopped the run.", path="a.py"
)
REMEDY = "Do something else, or explain in your answer what is needed."


def rejected(why: str = "", asked: Verdict = ASK) -> Verdict:
    message = f"A person did not approve this call{why}. {REMEDY}"
    return denied(asked.rule, ToolErrorCode.PERMISSION_DENIED, message, path=asked.path)


UNREADABLE = rejected(": the answer was neither approve, reject nor stop")


def test_the_request_lists_all_calls_that_wait_as_json() -> None:
    verdicts = [ALLOW, ASK, DENY, CONFIG]
    request = approval_request([CALL] * 4, waiting(verdicts))
    assert request == {
        "kind": "approval",
        "calls": [
            {"index": 1, "tool": "edit_file", "path": "a.py", "rule": "ask_before_write", "arguments": ARGUMENTS},
            {"index": 3, "tool": "edit_file", "path": "b.toml", "rule": "project_config", "arguments": ARGUMENTS},
        ],
    }
    assert json.loads(json.dumps(request)) == request


def test_a_malformed_call_has_no_arguments_to_show() -> None:
    assert approval_request([BROKEN], {0: ASK})["calls"][0]["arguments"] == {}


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("approve", APPROVED),
        ("reject", rejected()),
        ("stop", CANCELLED),
        ({"decisions": {0: {"action": "approve", "reason": ""}}}, APPROVED),
        ({"decisions": {"0": {"action": "approve"}}}, APPROVED),
        ({"decisions": {"0": "approve"}}, APPROVED),
        ({"decisions": {"0": {"action": "reject", "reason": "use b.py"}}}, rejected(": use b.py")),
        ({"decisions": {"0": {"action": "reject", "reason": "a\nb\ud800"}}}, rejected(": a\\nb\\ud800")),
        ({"decisions": {"0": {"action": "reject", "reason": "x" * 501}}}, rejected(": " + "x" * 500 + "...")),
        ({"decisions": {"0": {"action": "reject", "reason": 7}}}, rejected()),
        ({"decisions": {"0": {"action": "stop", "reason": "enough"}}}, CANCELLED),
        ({"decisions": {"0": {"action": "edit"}}}, UNREADABLE),
        ({"decisions": {"0": {"action": ["approve"]}}}, UNREADABLE),
        ({"decisions": {"1": {"action": "approve"}}}, UNREADABLE),
        ({"decisions": ["approve"]}, UNREADABLE),
        ({"action": "approve"}, UNREADABLE),
        ("Approve", UNREADABLE),
        ("yes", UNREADABLE),
        (True, UNREADABLE),
        (None, UNREADABLE),
    ],
)
def test_an_answer_is_read_or_counts_as_a_rejection(answer: object, verdict: Verdict) -> None:
    assert read_decisions(answer, {0: ASK}) == {0: verdict}


def test_each_call_gets_its_own_decision() -> None:
    answer = {"decisions": {"1": {"action": "approve"}, "3": {"action": "reject", "reason": "no"}, "0": "approve"}}
    decisions = read_decisions(answer, {1: ASK, 3: CONFIG})
    assert decisions == {1: APPROVED, 3: rejected(": no", CONFIG)}
    assert settle([ALLOW, ASK, DENY, CONFIG], decisions) == [ALLOW, APPROVED, DENY, rejected(": no", CONFIG)]


def test_a_stop_lets_nothing_of_the_reply_run() -> None:
    decisions = read_decisions({"decisions": {"1": "approve", "3": "stop"}}, {1: ASK, 3: CONFIG})
    verdicts = settle([ALLOW, ASK, DENY, CONFIG], decisions)
    assert [verdict.kind for verdict in verdicts] == [VerdictKind.DENY] * 4
    assert (verdicts[1], verdicts[2]) == (CANCELLED, DENY)
    assert stop_asked_for(verdicts) == StopCause(
        reason=StopReason.CANCELLED,
        message="A person stopped the run instead of approving a call; nothing of this reply was run.",
    )


def test_without_a_stop_the_run_goes_on() -> None:
    assert stop_asked_for([ALLOW, ASK, DENY, rejected()]) is None


keys = st.sampled_from(["decisions", "0", "action", "reason", 0, 1])
answers = st.recursive(
    st.sampled_from(["approve", "reject", "stop", "", "APPROVE"]) | st.integers() | st.none(),
    lambda children: st.lists(children, max_size=2) | st.dictionaries(keys, children, max_size=3),
    max_leaves=8,
)


@given(answers)
def test_no_call_runs_unless_the_answer_says_so(answer: Any) -> None:
    (verdict,) = read_decisions(answer, {0: ASK}).values()
    assert verdict.kind in {VerdictKind.ALLOW, VerdictKind.DENY}
    if verdict.kind is VerdictKind.ALLOW:
        assert verdict == APPROVED
        assert "'approve'" in repr([answer])
