from typing import Any

import pytest

from mendgraph.nodes.language.text_protocol import MISSED
from mendgraph.nodes.loop_check.repetition import count_tries, fatal_failure, tries_stop, with_notices
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    ChangeKind,
    EditForm,
    Effect,
    ExtractionError,
    ExtractionErrorType,
    FileChange,
    LoopRecord,
    LoopVerdict,
    OverrideConstraint,
    Profile,
    Protocol,
    StopCause,
    StopReason,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
)

SPECS = {
    name: ToolSpec(name=name, description="", parameters={}, effect=effect)
    for name, effect in {
        "read_file": Effect.READ,
        "run_checks": Effect.READ,
        "edit_file": Effect.WRITE,
        "run_command": Effect.EXECUTE,
        "final_answer": Effect.NONE,
    }.items()
}
BLOCKS = Profile(edit_form=EditForm.BLOCKS)
REPLACE = Profile(protocol=Protocol.NATIVE)
MANY = 5
CHANGE = FileChange(path="a.py", kind=ChangeKind.EDITED, sha256_before="0", sha256_after="1", diff="")
BROKEN = ExtractionError(ExtractionErrorType.TRUNCATED_REPLY, 1, "", "cut")

Done = tuple[ToolCall | CallError, CallResult]


def done(
    tool: str, code: ToolErrorCode | None = None, *changes: FileChange, message: str = "", **arguments: Any
) -> Done:
    """A call and what it came to: well, or an error of this code, whose message names the tool if nothing else."""
    said = {"checks": "passed"} if tool == "run_checks" else {"n": 1}
    result = (
        ToolResult.success(**said) if code is None else ToolResult.failure(code, message or f"{tool}: {code.value}")
    )
    call = ToolCall(call_id="c", tool=tool, arguments=arguments, raw_arguments="")
    return call, CallResult(call_id="c", tool=tool, result=result, changes=changes)


def missed(path: str) -> Done:
    return done("edit_file", ToolErrorCode.INVALID_ARGUMENT, message=f"{MISSED} {path!r}.", path=path)


def malformed(tool: str) -> Done:
    result = ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, "cut")
    call = CallError(call_id="c", tool=tool, raw_arguments="", error=BROKEN)
    return call, CallResult(call_id="c", tool=tool, result=result)


def after(record: LoopRecord, *step: Done, profile: Profile = BLOCKS, max_failed_tries: int = MANY) -> LoopRecord:
    items, results = [item for item, _ in step], [result for _, result in step]
    return count_tries(record, items, results, SPECS, profile, max_failed_tries)


READ, READ_NOT = done("read_file"), done("read_file", ToolErrorCode.NOT_FOUND)
EDITED, MISSED_EDIT = done("edit_file", None, CHANGE), missed("a.py")
SAME = done("edit_file", ToolErrorCode.UNCHANGED, path="a.py")
DENIED = done("edit_file", ToolErrorCode.PERMISSION_DENIED, path="a.py")
PASSED, FAILED = done("run_checks"), done("run_checks", ToolErrorCode.CHECK_FAILED)
REFUSED = done("edit_file", ToolErrorCode.CHECK_FAILED, path="a.py")
CUT, UNTAKEN = malformed("edit_file"), done("final_answer", ToolErrorCode.CANCELLED)


@pytest.mark.parametrize(
    ("step", "in_blocks", "otherwise"),
    [
        ([], 2, 2),
        ([READ], 2, 2),
        ([READ_NOT], 2, 2),
        ([PASSED], 0, 0),
        ([FAILED], 3, 3),
        ([REFUSED], 3, 3),
        ([EDITED, FAILED, UNTAKEN], 3, 3),
        ([MISSED_EDIT], 3, 2),
        ([SAME, UNTAKEN], 3, 2),
        ([DENIED], 3, 2),
        ([CUT], 3, 2),
        ([MISSED_EDIT, CUT, READ], 3, 2),
        ([malformed("nope"), malformed("read_file")], 2, 2),
    ],
)
def test_check_that_fails_is_a_failed_try_and_in_blocks_an_edit_that_misses(
    step: list[Done], in_blocks: int, otherwise: int
) -> None:
    before = LoopRecord(failed_tries=2)
    assert after(before, *step, profile=BLOCKS).failed_tries == in_blocks
    assert after(before, *step, profile=REPLACE).failed_tries == otherwise


LAST = [result for _, result in (READ, REFUSED, FAILED, UNTAKEN)]
GAVE_UP = LoopRecord(verdict=LoopVerdict.GAVE_UP, failed_tries=5)


@pytest.mark.parametrize(
    ("verdict", "verdict_after"),
    [
        (LoopVerdict.FRESH, LoopVerdict.GAVE_UP),
        (LoopVerdict.OVERRIDE, LoopVerdict.GAVE_UP),
        (LoopVerdict.PERSISTED, LoopVerdict.PERSISTED),
        (LoopVerdict.ANSWERED, LoopVerdict.ANSWERED),
        (LoopVerdict.BROKEN, LoopVerdict.BROKEN),
    ],
)
def test_run_gives_up_after_its_last_try_unless_it_ends_for_another_reason(
    verdict: LoopVerdict, verdict_after: LoopVerdict
) -> None:
    before = LoopRecord(failed_tries=MANY - 2, verdict=verdict)
    last_but_one = after(before, FAILED)
    assert (last_but_one.failed_tries, last_but_one.verdict) == (MANY - 1, verdict)
    assert after(last_but_one, FAILED).verdict is verdict_after


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ToolErrorCode.CONFLICT, StopReason.WORKSPACE_CHANGED),
        (ToolErrorCode.HOOK_FAILED, StopReason.HOOK_FAILED),
        (ToolErrorCode.IO_ERROR, StopReason.WORKSPACE_FAILED),
        (ToolErrorCode.PERMISSION_DENIED, StopReason.WORKSPACE_FAILED),
    ],
)
def test_each_fatal_error_has_its_reason(code: ToolErrorCode, reason: StopReason) -> None:
    error = ToolError(code=code, message="It cannot go on.", fatal=True)
    result = CallResult(call_id="c", tool="edit_file", result=ToolResult(ok=False, error=error))
    diagnostics = (f"edit_file: {code.value}",)
    assert fatal_failure([result]) == StopCause(reason=reason, message="It cannot go on.", diagnostics=diagnostics)


def test_run_says_what_failed_in_its_last_try() -> None:
    assert tries_stop(GAVE_UP, LAST) == StopCause(
        reason=StopReason.CHECKS_FAILED,
        message="The work did not pass its checks after 5 tries.",
        diagnostics=("edit_file: check_failed", "run_checks: check_failed"),
    )
    assert tries_stop(GAVE_UP, [MISSED_EDIT[1], UNTAKEN[1]]) == StopCause(
        reason=StopReason.EDITS_FAILED,
        message="No edit could be used after 5 tries.",
        diagnostics=(f"{MISSED} 'a.py'.",),
    )


def test_outside_the_block_form_only_checks_that_pass_end_the_row() -> None:
    """There an edit and its checks are steps apart: edits that work in between would make the row endless."""
    before = LoopRecord(failed_tries=3)
    assert [after(before, step, profile=REPLACE).failed_tries for step in (EDITED, READ, PASSED)] == [3, 3, 0]


OVERRIDE = OverrideConstraint(signature="s1", tool="read_file", target="a.py", repeats=3)
OVERRIDDEN = LoopRecord(recent=(("s1",),) * 3, overrides=(OVERRIDE,), verdict=LoopVerdict.OVERRIDE)
NOTICE = (
    "read_file on 'a.py' was called 3 times with the same arguments. It is refused until a file changes, and more "
    "repeats end the run. Do something else, or give your final answer."
)


def read(path: str = "a.py") -> ToolCall:
    return ToolCall(call_id="c1", tool="read_file", arguments={"path": path}, raw_arguments="{}")


LISTED = ToolCall(call_id="c1", tool="list_files", arguments={}, raw_arguments="{}")


def ok(tool: str) -> CallResult:
    return CallResult(call_id="c", tool=tool, result=ToolResult.success(content="x"))


def failed(tool: str) -> CallResult:
    return CallResult(call_id="c", tool=tool, result=ToolResult.failure(ToolErrorCode.NOT_FOUND, "No such file."))


def test_repeated_call_is_told_beside_its_result() -> None:
    other = ok("list_files")
    told = with_notices([read(), LISTED], [ok("read_file"), other], {0: "s1", 1: "s2"}, OVERRIDDEN)
    notice = {"kind": "loop_override", **OVERRIDE.model_dump(exclude={"obeyed"}), "message": NOTICE}
    assert told[0].result == ToolResult(ok=True, data={"content": "x", "override": notice})
    assert told[1] == other
    (refused,) = with_notices([read()], [failed("read_file")], {0: "s1"}, OVERRIDDEN)
    assert refused.result == ToolResult.failure(ToolErrorCode.NOT_FOUND, f"No such file. {NOTICE}")


# --- Edits that keep missing

EDIT = ToolCall(call_id="c3", tool="edit_file", arguments={"path": "a.py"}, raw_arguments="{}")
MISS = ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, f"{MISSED} 'a.py'.", ("b.py",))


def edited(result: ToolResult) -> CallResult:
    return CallResult(call_id="c3", tool="edit_file", result=result)


def test_edit_that_misses_again_is_told_of_the_form_that_needs_no_old_text() -> None:
    items = [read(), EDIT, EDIT.model_copy(update={"arguments": {"path": "b.py"}})]
    results = [ok("read_file"), edited(MISS), edited(MISS)]
    twice = LoopRecord(missed=("a.py", "b.py", "a.py"))
    advice = "That is miss 2 on a.py in this turn: read_file it, then give its whole new text with write_file"
    message = f"{MISSED} 'a.py'. {advice} instead of old_str and new_str."
    advised = edited(ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, message, ("b.py",)))
    assert with_notices(items, results, {}, twice) == [results[0], advised, results[2]]


def test_failure_that_nothing_can_mend_ends_the_run() -> None:
    full = ToolError(code=ToolErrorCode.IO_ERROR, message="Cannot write 'a.py': the disk is full.", fatal=True)
    broken = CallResult(call_id="c", tool="edit_file", result=ToolResult(ok=False, error=full))
    cause = StopCause(reason=StopReason.WORKSPACE_FAILED, message=full.message, diagnostics=("edit_file: io_error",))
    assert fatal_failure([ok("read_file"), failed("read_file"), broken]) == cause
    assert fatal_failure([ok("read_file"), failed("read_file")]) is None
