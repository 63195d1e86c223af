import pytest

from nodes.guard.verdicts import denied, results_of_denied, told_of_edit, verdict_on_malformed
from nodes.records import (
    CallError,
    CallResult,
    ExtractionError,
    ExtractionErrorType,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
    Verdict,
    VerdictKind,
)

CALL = ToolCall(call_id="1", tool="read_file", arguments={"path": ".env"}, raw_arguments='{"path": ".env"}')
ALLOW = Verdict(kind=VerdictKind.ALLOW, path="a.py")
ASK = Verdict(kind=VerdictKind.ASK, rule="ask_before_write")
DENIED = denied("env_file", ToolErrorCode.PERMISSION_DENIED, "Blocked.", ("a.py",), path=".env")
NOT_APPROVED = "This call was not approved, so it did not run. Do something else, or ask for it again."


def malformed(kind: ExtractionErrorType, line: int = 3) -> CallError:
    error = ExtractionError(kind, line, "tool: read_fil({})", "what is wrong, and what to do")
    return CallError(call_id="2", tool="read_fil", raw_arguments="{}", error=error)


def result(call_id: str, tool: str, code: ToolErrorCode, message: str, *suggestions: str) -> CallResult:
    return CallResult(call_id=call_id, tool=tool, result=ToolResult.failure(code, message, suggestions))


def test_a_denial_carries_its_rule_and_what_the_model_reads() -> None:
    error = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="Blocked.", suggestions=("a.py",))
    assert Verdict(kind=VerdictKind.DENY, rule="env_file", error=error, path=".env") == DENIED


@pytest.mark.parametrize("kind", list(ExtractionErrorType))
def test_a_malformed_call_is_denied_with_what_was_wrong(kind: ExtractionErrorType) -> None:
    own = {"UNKNOWN_TOOL_NAME": ToolErrorCode.UNKNOWN_TOOL, "TOO_MANY_CALLS": ToolErrorCode.RATE_LIMITED}
    code = own.get(kind.name, ToolErrorCode.INVALID_ARGUMENT)
    message = f"{kind.name} in line 3: what is wrong, and what to do"
    assert verdict_on_malformed(malformed(kind)) == denied("malformed", code, message)


def test_a_native_call_has_no_line() -> None:
    verdict = verdict_on_malformed(malformed(ExtractionErrorType.INVALID_ARGUMENTS, line=0))
    assert verdict == denied(
        "malformed", ToolErrorCode.INVALID_ARGUMENT, "INVALID_ARGUMENTS: what is wrong, and what to do"
    )


def test_denied_calls_are_settled_in_their_places() -> None:
    broken = malformed(ExtractionErrorType.EMPTY_TOOL_NAME)
    settled = results_of_denied([CALL, CALL, broken], [DENIED, ALLOW, verdict_on_malformed(broken)])
    assert settled == [
        result("1", "read_file", ToolErrorCode.PERMISSION_DENIED, "Blocked.", "a.py"),
        None,
        result(
            "2",
            "read_fil",
            ToolErrorCode.INVALID_ARGUMENT,
            "EMPTY_TOOL_NAME in line 3: what is wrong, and what to do",
        ),
    ]


@pytest.mark.parametrize("verdicts", [[], [ASK], [Verdict(kind=VerdictKind.DENY)]])
def test_what_nobody_allowed_is_settled_as_denied(verdicts: list[Verdict]) -> None:
    expected = result("1", "read_file", ToolErrorCode.PERMISSION_DENIED, NOT_APPROVED)
    assert results_of_denied([CALL], verdicts) == [expected]


def test_no_item_gives_no_result() -> None:
    assert results_of_denied([], [ALLOW]) == []


EDITED = Verdict(kind=VerdictKind.ALLOW, rule="ask_before_write", edited=("content", "gone"))


def ran(content: str) -> ToolCall:
    return ToolCall(call_id="1", tool="write", arguments={"path": "a", "content": content}, raw_arguments="")


def test_the_model_is_told_what_a_person_changed() -> None:
    done = CallResult(call_id="1", tool="write", result=ToolResult.success(path="a"))
    told = told_of_edit(ran("new"), EDITED, done).result.data
    notice = "A person changed content, gone of this call before it ran."
    assert told == {"path": "a", "changed_by_person": {"notice": notice, "ran_with": {"content": "new", "gone": None}}}
    long = told_of_edit(ran("x" * 3_000), EDITED, done).result.data["changed_by_person"]["ran_with"]["content"]
    assert long == "x" * 2_000 + "... 1000 more characters"


def test_a_changed_call_that_failed_says_so_too() -> None:
    failed = CallResult(call_id="1", tool="write", result=ToolResult.failure(ToolErrorCode.CONFLICT, "Stale."))
    error = told_of_edit(ran("new"), EDITED, failed).result.error
    notice = 'A person changed content, gone of this call before it ran. It ran with {"content": "new", "gone": null}.'
    assert error is not None
    assert (error.code, error.message) == (ToolErrorCode.CONFLICT, f"{notice} Stale.")


def test_a_call_that_nobody_changed_is_told_as_it_is() -> None:
    done = CallResult(call_id="1", tool="write", result=ToolResult.success(path="a"))
    assert told_of_edit(ran("new"), Verdict(kind=VerdictKind.ALLOW), done) is done
