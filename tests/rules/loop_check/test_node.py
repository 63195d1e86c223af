from typing import Any

from mendgraph.graph.machine.small_models import fallback_form, is_in_blocks
from mendgraph.nodes.language.text_protocol import MISSED, parse_text_results
from mendgraph.nodes.loop_check.node import check
from mendgraph.nodes.loop_check.repetition import LoopConfig, LoopState, outcome_of, signature_of
from mendgraph.nodes.records import (
    Answer,
    CallError,
    CallResult,
    ChangeKind,
    EditForm,
    Effect,
    ExtractionError,
    ExtractionErrorType,
    FileChange,
    JsonMap,
    LoopRecord,
    LoopVerdict,
    ModelReply,
    OverrideConstraint,
    Profile,
    Protocol,
    StopCause,
    StopReason,
    ToolCall,
    ToolError,
    ToolErrorCode as Code,
    ToolResult,
    ToolSpec,
    Verdict,
    VerdictKind,
    Verification,
)
from tests.row_tables import rows

READ = ToolSpec(name="read_file", description="", parameters={}, effect=Effect.READ, path_fields=("path",))
EDIT = ToolSpec(name="edit_file", description="", parameters={}, effect=Effect.WRITE, path_fields=("path",))
ANSWER = ToolSpec(name="final_answer", description="", parameters={}, effect=Effect.NONE, terminal=True)
CHECKS = ToolSpec(name="run_checks", description="", parameters={}, effect=Effect.READ)
SPECS = {tool.name: tool for tool in (READ, EDIT, ANSWER, CHECKS)}
BLOCKS = Profile(edit_form=EditForm.BLOCKS)
A, B = (
    FileChange(path=path, kind=ChangeKind.EDITED, sha256_before="0", sha256_after="1", diff="")
    for path in ("a.py", "b.py")
)


def call(tool: ToolSpec, path: str = "a.py", **arguments: Any) -> ToolCall:
    return ToolCall(call_id="1", tool=tool.name, arguments={"path": path, **arguments}, raw_arguments="")


def implied(tool: ToolSpec, **arguments: Any) -> ToolCall:
    return ToolCall(call_id="2", tool=tool.name, arguments=arguments, raw_arguments="", implied=True)


def done(result: ToolResult, *changes: FileChange, tool: str = "") -> CallResult:
    return CallResult(call_id="1", tool=tool, result=result, changes=changes)


def failed(code: Code, message: str, *, fatal: bool = False) -> CallResult:
    return done(ToolResult(ok=False, error=ToolError(code=code, message=message, fatal=fatal)), tool="edit_file")


OK = done(ToolResult.success(text="x"))
NO_FILE = failed(Code.NOT_FOUND, "There is no file a.py.")
PASSED = done(ToolResult.success(checks="passed", ran=["test_a.py: 2 tests"], lines=["a.py:1-3"]))
CHECK_FAILED = failed(Code.CHECK_FAILED, "add(1, 2) gives -1, but must give 3.")
NOT_YET = failed(Code.CANCELLED, "Not taken as the final answer.")
MISS, MISS_B = (failed(Code.INVALID_ARGUMENT, f"{MISSED} {path!r}.") for path in ("a.py", "b.py"))


def settle(state: LoopState, **config: Any) -> dict[str, Any]:
    profile = state.get("profile", Profile())
    return check(
        {**state, "profile": profile},
        LoopConfig(**config),
        signature_of,
        SPECS,
        "/work",
        in_blocks=is_in_blocks(profile),
        fallback_form=fallback_form(profile),
    )


def run(state: LoopState, **config: Any) -> dict[str, Any]:
    """The update without the history."""
    return {key: value for key, value in settle(state, **config).items() if key != "messages"}


def signed(tool: ToolSpec, path: str = "a.py", **arguments: Any) -> str:
    return signature_of(call(tool, path, **arguments), tool)


# --- Repetition


def test_third_identical_call_gets_an_override_and_the_fourth_ends_the_run() -> None:
    loop, updates = LoopRecord(), []
    for path in ("a.py", "./a.py", "a.py", "a.py"):
        updates.append(run(LoopState(items=[call(READ, path)], results=[OK], loop=loop)))
        loop = updates[-1]["loop"]
    verdicts = [LoopVerdict.FRESH, LoopVerdict.FRESH, LoopVerdict.OVERRIDE, LoopVerdict.PERSISTED]
    assert [update["loop"].verdict for update in updates] == verdicts
    assert updates[2] == {
        "loop": LoopRecord(
            recent=((signed(READ),),) * 3,
            outcomes=((signed(READ), outcome_of(OK.result)),),
            overrides=(OverrideConstraint(signature=signed(READ), tool="read_file", target="a.py", repeats=3),),
            verdict=LoopVerdict.OVERRIDE,
        )
    }
    assert updates[3]["stop"] == StopCause(
        reason=StopReason.LOOP_PERSISTED,
        message="The same call was made 4 times with the same arguments: read_file on 'a.py'.",
        diagnostics=(f"repeated action: read_file on 'a.py', signature {signed(READ)}",),
    )


NOTICE = (
    "read_file on 'a.py' was called 3 times with the same arguments. It is refused until a file changes, and more "
    "repeats end the run. Do something else, or give your final answer."
)
TWICE = LoopRecord(recent=((signed(READ),),) * 2)


def results_told(state: LoopState) -> list[JsonMap]:
    return parse_text_results(settle(state)["messages"][-1].text)


def test_repeated_call_has_a_notice_in_its_result() -> None:
    other = call(READ, "b.py")
    repeated, fresh = results_told(LoopState(items=[call(READ), other], results=[OK, OK], loop=TWICE))
    notice = {"signature": signed(READ), "tool": "read_file", "target": "a.py", "repeats": 3, "message": NOTICE}
    assert repeated["data"] == {"text": "x", "override": {"kind": "loop_override", **notice}}
    assert fresh["data"] == {"text": "x"}


@rows((Profile(), f"There is no file a.py. {NOTICE}"), (BLOCKS, "There is no file a.py."))
def test_failed_repeated_call_has_a_notice_in_its_message_except_in_block_form(profile: Profile, message: str) -> None:
    [result] = results_told(LoopState(items=[call(READ)], results=[NO_FILE], loop=TWICE, profile=profile))
    assert result["error"]["message"] == message


def test_override_target_is_relative_to_the_workspace() -> None:
    record = LoopRecord(recent=((signed(READ, "/work/a.py"),),) * 2)
    state = LoopState(items=[call(READ, "/work/a.py")], results=[OK], loop=record)
    assert [override.target for override in run(state)["loop"].overrides] == ["a.py"]


def test_change_clears_earlier_calls_without_changes() -> None:
    changed = done(ToolResult.success(), A)
    assert run(LoopState(items=[call(EDIT)], results=[changed], loop=TWICE))["loop"].recent == ((signed(EDIT),),)


def test_refused_calls_are_recorded_once() -> None:
    refused, denied = Verdict(kind=VerdictKind.DENY, refused="you refused"), failed(Code.PERMISSION_DENIED, "No.")
    renamed = done(ToolResult(ok=True, data={"set_aside": ["AGENTS.md.untrusted"]}))
    state = LoopState(
        items=[call(EDIT), call(EDIT), call(READ), call(EDIT, "b.py"), call(EDIT, "c.py"), call(EDIT, "d.py")],
        results=[denied, denied, denied, denied, NO_FILE, renamed],
        verdicts=[refused, refused, refused, *[Verdict(kind=VerdictKind.ALLOW)] * 3],
    )
    assert run(state)["loop"].refused == (
        "you refused edit_file a.py",
        "refused: edit_file b.py",
        "refused (a protected name; not named by the user), so it is called AGENTS.md.untrusted",
    )


def test_unknown_tool_and_empty_state_record_nothing() -> None:
    unknown = ToolCall(call_id="1", tool="nothing", arguments={}, raw_arguments="")
    assert run(LoopState(items=[unknown], results=[NO_FILE])) == {"loop": LoopRecord()}
    assert run(LoopState()) == {"loop": LoopRecord()}


# --- Failed tries

BROKEN = ExtractionError(ExtractionErrorType.TRUNCATED_REPLY, 1, "", "cut")
CUT, CUT_READ, CUT_NOPE = (
    CallError(call_id="1", tool=tool, raw_arguments="", error=BROKEN) for tool in ("edit_file", "read_file", "nope")
)
CUT_RESULT = failed(Code.INVALID_ARGUMENT, "cut")
UNTAKEN, SAME = (call(ANSWER), NOT_YET), (call(EDIT), failed(Code.UNCHANGED, "The same."))
DENIED, MISSED_EDIT = (call(EDIT), failed(Code.PERMISSION_DENIED, "No.")), (call(EDIT), MISS)
READ_IT, CHANGED_IT = (call(READ), OK), (call(EDIT), done(ToolResult.success(), A))
FAILED_CHECK, FAILED_EDIT = (call(CHECKS), CHECK_FAILED), (call(EDIT), CHECK_FAILED)

Step = tuple[ToolCall | CallError, CallResult]


def after(loop: LoopRecord, *step: Step, profile: Profile = BLOCKS) -> dict[str, Any]:
    items, results = [item for item, _ in step], [result for _, result in step]
    return run(LoopState(items=items, results=results, loop=loop, profile=profile), max_failed_tries=5)


@rows(
    ([], 2, 2),
    ([READ_IT], 2, 2),
    ([(call(READ), NO_FILE)], 2, 2),
    ([(call(CHECKS), PASSED)], 0, 0),
    ([FAILED_CHECK], 3, 3),
    ([FAILED_EDIT], 3, 3),
    ([CHANGED_IT], 0, 2),  # outside the block form an edit and its checks are steps apart
    ([CHANGED_IT, FAILED_CHECK, UNTAKEN], 3, 3),
    ([MISSED_EDIT], 3, 2),
    ([SAME, UNTAKEN], 3, 2),
    ([DENIED], 3, 2),
    ([(CUT, CUT_RESULT)], 3, 2),
    ([MISSED_EDIT, (CUT, CUT_RESULT), READ_IT], 3, 2),
    ([(CUT_NOPE, CUT_RESULT), (CUT_READ, CUT_RESULT)], 2, 2),
)
def test_failed_tries_are_counted_by_kind_and_edit_form(step: list[Step], in_blocks: int, otherwise: int) -> None:
    before = LoopRecord(failed_tries=2)
    assert after(before, *step)["loop"].failed_tries == in_blocks
    assert after(before, *step, profile=Profile(protocol=Protocol.NATIVE))["loop"].failed_tries == otherwise


CHECKED = signed(CHECKS)
OVERRIDE = OverrideConstraint(signature=CHECKED, tool="run_checks", target="", repeats=3)
REPEATED: JsonMap = {"recent": ((CHECKED,),) * 3, "overrides": (OVERRIDE,), "verdict": LoopVerdict.OVERRIDE}


@rows(
    ({}, [FAILED_CHECK], LoopVerdict.GAVE_UP),
    ({"recent": ((CHECKED,),) * 2}, [FAILED_CHECK], LoopVerdict.GAVE_UP),
    (REPEATED, [FAILED_CHECK], LoopVerdict.PERSISTED),
    ({}, [FAILED_CHECK, (call(ANSWER), OK)], LoopVerdict.ANSWERED),
)
def test_run_gives_up_after_its_last_try_unless_it_ends_otherwise(
    fields: JsonMap, step: list[Step], verdict: LoopVerdict
) -> None:
    assert after(LoopRecord(failed_tries=3, **fields), *step)["loop"].verdict is not LoopVerdict.GAVE_UP
    assert after(LoopRecord(failed_tries=4, **fields), *step)["loop"].verdict is verdict


CHECKS_MESSAGE, EDITS_MESSAGE = (
    "The work did not pass its checks after 5 tries.",
    "No edit could be used after 5 tries.",
)


@rows(
    ([READ_IT, FAILED_EDIT, FAILED_CHECK, UNTAKEN], StopReason.CHECKS_FAILED, CHECKS_MESSAGE, CHECK_FAILED, 2),
    ([MISSED_EDIT, UNTAKEN], StopReason.EDITS_FAILED, EDITS_MESSAGE, MISS, 1),
)
def test_stop_says_what_failed_in_the_last_try(
    step: list[Step], reason: StopReason, message: str, failure: CallResult, times: int
) -> None:
    assert failure.result.error is not None
    diagnostics = (failure.result.error.message,) * times
    stop = after(LoopRecord(failed_tries=4), *step)["stop"]
    assert stop == StopCause(reason=reason, message=message, diagnostics=diagnostics)


def test_second_failed_match_suggests_writing_the_whole_file() -> None:
    items: list[ToolCall | CallError] = [call(READ), call(EDIT), call(EDIT, "b.py")]
    state = LoopState(items=items, results=[OK, MISS, MISS_B], loop=LoopRecord(missed=("a.py",)))
    read, missed, other = results_told(state)
    advice = "That is miss 2 on a.py in this turn: read_file it, then give its whole new text with write_file"
    assert missed["error"]["message"] == f"{MISSED} 'a.py'. {advice} instead of old_str and new_str."
    assert (read["data"], other["error"]["message"]) == ({"text": "x"}, f"{MISSED} 'b.py'.")


@rows(*Protocol)
def test_second_failed_match_on_a_file_switches_to_whole_blocks(protocol: Protocol) -> None:
    profile = Profile(protocol=protocol, steps_down=True)
    first = run(LoopState(items=[call(EDIT, old_str="x")], results=[MISS], profile=profile))
    again = LoopState(items=[call(EDIT, old_str="y")], results=[MISS], loop=first["loop"], profile=profile)
    second = run(again)
    assert (set(first), set(second)) == ({"loop"}, {"loop", "profile"})
    assert second["profile"] == profile.model_copy(update={"edit_form": EditForm.BLOCKS})


@rows(
    (Code.CONFLICT, StopReason.WORKSPACE_CHANGED),
    (Code.HOOK_FAILED, StopReason.HOOK_FAILED),
    (Code.IO_ERROR, StopReason.WORKSPACE_FAILED),
    (Code.PERMISSION_DENIED, StopReason.WORKSPACE_FAILED),
)
def test_fatal_failure_ends_the_run_at_once(code: Code, reason: StopReason) -> None:
    fatal = failed(code, "It cannot be written.", fatal=True)
    update = after(LoopRecord(failed_tries=4), READ_IT, (call(READ, "b.py"), NO_FILE), (call(EDIT), fatal))
    diagnostics = (f"edit_file: {code.value}",)
    assert update["stop"] == StopCause(reason=reason, message="It cannot be written.", diagnostics=diagnostics)
    assert update["loop"].verdict is LoopVerdict.BROKEN


# --- The answer and its checks

GOOD = Verification(kind="passed", ran=("test_a.py: 2 tests",), lines=("a.py:1-3",))
BAD = Verification(kind="contradicted", reason="add(1, 2) gives -1, but must give 3.")


def test_accepted_implied_answer_is_the_answer() -> None:
    items: list[ToolCall | CallError] = [implied(CHECKS), implied(ANSWER, answer="Done.", value=3)]
    update = settle(LoopState(reply=ModelReply(text="Done."), items=items, results=[PASSED, OK]))
    assert update == {
        "loop": LoopRecord(verdict=LoopVerdict.ANSWERED, verified=GOOD),
        "messages": [],
        "answer": Answer(text="Done.", value=3),
    }


def test_failed_tries_are_counted_until_the_run_gives_up() -> None:
    loop, updates = LoopRecord(), []
    items: list[ToolCall | CallError] = [implied(CHECKS), implied(ANSWER, answer="Done.")]
    for _ in range(4):
        updates.append(run(LoopState(items=items, results=[CHECK_FAILED, NOT_YET], loop=loop)))
        loop = updates[-1]["loop"]
    assert [update["loop"].failed_tries for update in updates] == [1, 2, 3, 4]
    assert [update["loop"].verdict for update in updates] == [*[LoopVerdict.FRESH] * 3, LoopVerdict.GAVE_UP]
    assert updates[-1] == {
        "loop": LoopRecord(verdict=LoopVerdict.GAVE_UP, failed_tries=4, verified=BAD),
        "stop": StopCause(
            reason=StopReason.CHECKS_FAILED,
            message="The work did not pass its checks after 4 tries.",
            diagnostics=("add(1, 2) gives -1, but must give 3.",),
        ),
    }


UNSEEN_B = Verification(ran=GOOD.ran, lines=GOOD.lines, reason="no check looked at b.py")
NO_CHECK = done(ToolResult.success(checks="none", reason="no sandbox"))


@rows(
    (EDIT, done(ToolResult.success(), A), [A], None),
    (READ, OK, [A], GOOD),
    (CHECKS, PASSED, [A], GOOD),
    (CHECKS, CHECK_FAILED, [A], BAD),
    (CHECKS, NOT_YET, [A], GOOD),
    (CHECKS, PASSED, [A, B], UNSEEN_B),
    (CHECKS, NO_CHECK, [A], Verification(reason="no sandbox")),
    (CHECKS, NO_FILE, [A], Verification(reason="There is no file a.py.")),
)
def test_verification_reflects_checks_after_the_last_change(
    tool: ToolSpec, result: CallResult, changed: list[FileChange], verified: Verification | None
) -> None:
    item = implied(CHECKS, paths=["a.py"]) if tool is CHECKS else call(tool)
    state = LoopState(items=[item], results=[result], loop=LoopRecord(verified=GOOD), changes=changed)
    assert run(state)["loop"].verified == verified


def test_checks_that_name_no_files_cover_no_change() -> None:
    verified = run(LoopState(items=[implied(CHECKS)], results=[PASSED], changes=[A]))["loop"].verified
    assert verified.reason == "no check looked at a.py"


@rows(
    (True, NO_CHECK, [A], False),
    (True, NOT_YET, [A], False),
    (True, PASSED, [A], True),
    (True, CHECK_FAILED, [A], True),
    (True, NO_CHECK, [], True),
    (False, NO_CHECK, [A], True),
)
def test_run_with_required_checks_accepts_no_unchecked_answer(
    required: bool, checks: CallResult, changed: list[FileChange], accepted: bool
) -> None:
    items: list[ToolCall | CallError] = [implied(CHECKS, paths=["a.py"]), implied(ANSWER, answer="Done.")]
    update = run(LoopState(items=items, results=[checks, OK], changes=changed), require_checks=required)
    unchecked = StopCause(
        reason=StopReason.NOT_CHECKED,
        message="This run has to be checked, and nothing could check its changes.",
        diagnostics=("the answer: Done.",),
    )
    assert update.get("stop") == (None if accepted else unchecked)
    assert update.get("answer") == (Answer(text="Done.") if accepted else None)
    assert update["loop"].verdict is (LoopVerdict.ANSWERED if accepted else LoopVerdict.GAVE_UP)
    items[-1] = implied(ANSWER, answer="")
    silent = run(LoopState(items=items, results=[checks, OK], changes=changed), require_checks=required).get("stop")
    assert silent == (None if accepted else unchecked.model_copy(update={"diagnostics": ()}))
    going_on = run(LoopState(items=items[:1], results=[checks], changes=changed), require_checks=required)
    assert "stop" not in going_on


def test_failed_check_before_the_first_reply_is_not_a_failed_try() -> None:
    state = LoopState(items=[call(CHECKS)], results=[CHECK_FAILED], profile=BLOCKS)
    assert run(state)["loop"].failed_tries == 1
    assert run({**state, "reply": ModelReply(preloaded=True)})["loop"].failed_tries == 0
