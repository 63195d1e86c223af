import pytest

from nodes.language.tool_results import MISSED, miss_advice
from nodes.loop_check.repetition import accepted_answer, fatal_failure, with_notices
from nodes.records import (
    Answer,
    CallError,
    CallResult,
    Effect,
    ExtractionError,
    ExtractionErrorType,
    LoopRecord,
    LoopVerdict,
    OverrideConstraint,
    StopCause,
    StopReason,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
)

OVERRIDE = OverrideConstraint(signature="s1", tool="read_file", target="a.py", repeats=3)
OVERRIDDEN = LoopRecord(recent=(("s1",),) * 3, overrides=(OVERRIDE,), verdict=LoopVerdict.OVERRIDE)
NOTICE = (
    "read_file on 'a.py' was called 3 times with the same arguments. It is refused until a file changes, and more "
    "repeats end the run. Do something else, or give your final answer."
)
SPECS = {
    "read_file": ToolSpec(name="read_file", description="", parameters={}, effect=Effect.READ),
    "final_answer": ToolSpec(name="final_answer", description="", parameters={}, effect=Effect.NONE, terminal=True),
}


def read(path: str = "a.py") -> ToolCall:
    return ToolCall(call_id="c1", tool="read_file", arguments={"path": path}, raw_arguments="{}")


LISTED = ToolCall(call_id="c1", tool="list_files", arguments={}, raw_arguments="{}")


def answer(**arguments: object) -> ToolCall:
    return ToolCall(call_id="c2", tool="final_answer", arguments=arguments, raw_arguments="{}")


def ok(tool: str) -> CallResult:
    return CallResult(call_id="c", tool=tool, result=ToolResult.success(content="x"))


def failed(tool: str) -> CallResult:
    return CallResult(call_id="c", tool=tool, result=ToolResult.failure(ToolErrorCode.NOT_FOUND, "No such file."))


def test_the_repeated_call_is_told_beside_its_result() -> None:
    other = ok("list_files")
    told = with_notices([read(), LISTED], [ok("read_file"), other], {0: "s1", 1: "s2"}, OVERRIDDEN)
    notice = {"kind": "loop_override", **OVERRIDE.model_dump(), "message": NOTICE}
    assert told[0].result == ToolResult(ok=True, data={"content": "x", "override": notice})
    assert told[1] == other


def test_a_repeated_failure_says_it_in_its_message() -> None:
    [told] = with_notices([read()], [failed("read_file")], {0: "s1"}, OVERRIDDEN)
    assert told.result == ToolResult.failure(ToolErrorCode.NOT_FOUND, f"No such file. {NOTICE}")


@pytest.mark.parametrize("verdict", [LoopVerdict.FRESH, LoopVerdict.PERSISTED, LoopVerdict.ANSWERED])
def test_nothing_is_told_when_nothing_is_newly_refused(verdict: LoopVerdict) -> None:
    results = [ok("read_file"), failed("read_file")]
    record = OVERRIDDEN.model_copy(update={"verdict": verdict})
    assert with_notices([read(), read()], results, {0: "s1", 1: "s1"}, record) == results


def test_a_call_without_a_signature_is_told_nothing() -> None:
    assert with_notices([read()], [ok("read_file")], {}, OVERRIDDEN) == [ok("read_file")]


# --- Edits that keep missing

EDIT = ToolCall(call_id="c3", tool="edit_file", arguments={"path": "a.py"}, raw_arguments="{}")
MALFORMED_EDIT = CallError(
    call_id="c3", tool="edit_file", raw_arguments="", error=ExtractionError(ExtractionErrorType.EMPTY_REPLY, 0, "", "")
)
MISS = ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, f"{MISSED} 'a.py'.", ("b.py",))


def edited(result: ToolResult) -> CallResult:
    return CallResult(call_id="c3", tool="edit_file", result=result)


def test_an_edit_that_misses_again_is_told_of_the_form_that_needs_no_old_text() -> None:
    items = [read(), EDIT, EDIT.model_copy(update={"arguments": {"path": "b.py"}})]
    results = [ok("read_file"), edited(MISS), edited(MISS)]
    twice = LoopRecord(missed=("a.py", "b.py", "a.py"))
    message = f"{MISSED} 'a.py'. {miss_advice('a.py', 2)}"
    advised = edited(ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, message, ("b.py",)))
    assert "write_file" in message
    assert with_notices(items, results, {}, twice) == [results[0], advised, results[2]]


@pytest.mark.parametrize(
    ("item", "result", "missed"),
    [
        (EDIT, MISS, ()),
        (EDIT, MISS, ("a.py", "b.py")),
        (EDIT, ToolResult.failure(ToolErrorCode.UNCHANGED, "Nothing changes."), ("a.py", "a.py")),
        (EDIT, ToolResult.failure(ToolErrorCode.CONFLICT, f"{MISSED} 'a.py'."), ("a.py", "a.py")),
        (EDIT, ToolResult.success(path="a.py", replacements=1), ("a.py", "a.py")),
        (MALFORMED_EDIT, MISS, ("a.py", "a.py")),
    ],
)
def test_a_first_miss_and_other_failures_are_told_as_they_are(
    item: ToolCall | CallError, result: ToolResult, missed: tuple[str, ...]
) -> None:
    assert with_notices([item], [edited(result)], {}, LoopRecord(missed=missed)) == [edited(result)]


def test_advice_and_notice_are_both_told() -> None:
    record = OVERRIDDEN.model_copy(update={"missed": ("a.py",) * 3})
    [told] = with_notices([EDIT], [edited(MISS)], {0: "s1"}, record)
    message = f"{MISSED} 'a.py'. {miss_advice('a.py', 3)} {NOTICE}"
    assert told == edited(ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, message, ("b.py",)))


def test_the_answer_beside_other_calls_is_taken_where_it_was_accepted() -> None:
    items = [read(), answer(answer="Done.", value=[1])]
    results = [ok("read_file"), ok("final_answer")]
    answered = LoopRecord(verdict=LoopVerdict.ANSWERED)
    assert accepted_answer(items, results, answered, SPECS) == Answer(text="Done.", value=[1])
    assert accepted_answer(items, results, LoopRecord(), SPECS) is None


def test_an_accepted_value_needs_no_text() -> None:
    answered = LoopRecord(verdict=LoopVerdict.ANSWERED)
    assert accepted_answer([answer(value=[1])], [ok("final_answer")], answered, SPECS) == Answer(text="", value=[1])


def test_a_refused_or_malformed_answer_is_none() -> None:
    answered = LoopRecord(verdict=LoopVerdict.ANSWERED)
    malformed = CallError(
        call_id="c2",
        tool="final_answer",
        raw_arguments="",
        error=ExtractionError(ExtractionErrorType.INVALID_ANSWER, 0, "", "no"),
    )
    results = [ok("read_file"), failed("final_answer")]
    assert accepted_answer([read(), answer(answer="Done.")], results, answered, SPECS) is None
    assert accepted_answer([read(), malformed], results, answered, SPECS) is None


def test_somebody_elses_changes_are_another_reason_than_a_broken_disk() -> None:
    foreign = ToolError(code=ToolErrorCode.CONFLICT, message="Somebody else has changed 'a.py'.", fatal=True)
    result = CallResult(call_id="c", tool="edit_file", result=ToolResult(ok=False, error=foreign))
    cause = StopCause(
        reason=StopReason.WORKSPACE_CHANGED, message=foreign.message, diagnostics=("edit_file: conflict",)
    )
    assert fatal_failure([result]) == cause


def test_a_failure_that_nothing_can_mend_ends_the_run() -> None:
    full = ToolError(code=ToolErrorCode.IO_ERROR, message="Cannot write 'a.py': the disk is full.", fatal=True)
    broken = CallResult(call_id="c", tool="edit_file", result=ToolResult(ok=False, error=full))
    cause = StopCause(reason=StopReason.WORKSPACE_FAILED, message=full.message, diagnostics=("edit_file: io_error",))
    assert fatal_failure([ok("read_file"), failed("read_file"), broken]) == cause
    assert fatal_failure([ok("read_file"), failed("read_file")]) is None
