from typing import Any

import pytest

from mendgraph.nodes.language.text_protocol import MISSED
from mendgraph.nodes.loop_check.node import check
from mendgraph.nodes.loop_check.repetition import LoopConfig, LoopState, outcome_of, signature_of
from mendgraph.nodes.records import (
    Answer,
    CallError,
    CallResult,
    ChangeKind,
    EditForm,
    Effect,
    FileChange,
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
    ToolErrorCode,
    ToolResult,
    ToolSpec,
    Verdict,
    VerdictKind,
    Verification,
)

READ = ToolSpec(name="read_file", description="", parameters={}, effect=Effect.READ, path_fields=("path",))
EDIT = ToolSpec(name="edit_file", description="", parameters={}, effect=Effect.WRITE, path_fields=("path",))
ANSWER = ToolSpec(name="final_answer", description="", parameters={}, effect=Effect.NONE, terminal=True)
CHECKS = ToolSpec(name="run_checks", description="", parameters={}, effect=Effect.READ)
SPECS = {tool.name: tool for tool in (READ, EDIT, ANSWER, CHECKS)}
OK = ToolResult.success(text="x")
FAILED = ToolResult.failure(ToolErrorCode.NOT_FOUND, "There is no file a.py.")


def call(tool: ToolSpec, path: str = "a.py", **arguments: Any) -> ToolCall:
    return ToolCall(call_id="1", tool=tool.name, arguments={"path": path, **arguments}, raw_arguments="")


def done(result: ToolResult = OK, *changes: FileChange) -> CallResult:
    return CallResult(call_id="1", tool="", result=result, changes=changes)


def settle(state: LoopState) -> dict[str, Any]:
    return check({"profile": Profile(), **state}, LoopConfig(), signature_of, SPECS, "/work")


def run(state: LoopState) -> dict[str, Any]:
    """The update without the history."""
    return {key: value for key, value in settle(state).items() if key != "messages"}


def signed(tool: ToolSpec, path: str = "a.py", **arguments: Any) -> str:
    return signature_of(call(tool, path, **arguments), tool)


def test_three_identical_calls_are_overridden_and_the_fourth_ends_the_run() -> None:
    loop, updates = LoopRecord(), []
    for path in ("a.py", "./a.py", "a.py", "a.py"):
        updates.append(run(LoopState(items=[call(READ, path)], results=[done()], loop=loop)))
        loop = updates[-1]["loop"]
    assert [update["loop"].verdict for update in updates] == [
        LoopVerdict.FRESH,
        LoopVerdict.FRESH,
        LoopVerdict.OVERRIDE,
        LoopVerdict.PERSISTED,
    ]
    assert updates[2] == {
        "loop": LoopRecord(
            recent=((signed(READ),),) * 3,
            outcomes=((signed(READ), outcome_of(done().result)),),
            overrides=(OverrideConstraint(signature=signed(READ), tool="read_file", target="a.py", repeats=3),),
            verdict=LoopVerdict.OVERRIDE,
        )
    }
    assert updates[3]["stop"] == StopCause(
        reason=StopReason.LOOP_PERSISTED,
        message="The same call was made 4 times with the same arguments: read_file on 'a.py'.",
        diagnostics=(f"repeated action: read_file on 'a.py', signature {signed(READ)}",),
    )


@pytest.mark.parametrize(("profile", "advised"), [(Profile(), True), (Profile(edit_form=EditForm.BLOCKS), False)])
def test_request_of_blocks_says_itself_how_to_go_on(profile: Profile, advised: bool) -> None:
    before = LoopRecord(recent=((signed(READ),),) * 2)
    [_, told] = settle(LoopState(items=[call(READ)], results=[done(FAILED)], loop=before, profile=profile))["messages"]
    assert ("There is no file a.py." in told.text, "Do something else" in told.text) == (True, advised)


def test_override_names_its_target_as_the_workspace_does() -> None:
    record = LoopRecord(recent=((signed(READ, "/work/a.py"),),) * 2)
    state = LoopState(items=[call(READ, "/work/a.py")], results=[done()], loop=record)
    assert [override.target for override in run(state)["loop"].overrides] == ["a.py"]


def test_change_forgets_the_calls_before_it_that_changed_nothing() -> None:
    before = LoopRecord(recent=((signed(READ),),) * 2)
    assert run(LoopState(items=[call(EDIT)], results=[done(OK, A)], loop=before))["loop"].recent == ((signed(EDIT),),)


def test_calls_that_were_not_allowed_are_kept_once_each() -> None:
    refused, error = Verdict(kind=VerdictKind.DENY, refused="you refused"), ToolErrorCode.PERMISSION_DENIED
    denied = done(ToolResult.failure(error, "No."))
    renamed = done(ToolResult(ok=True, data={"set_aside": ["AGENTS.md.untrusted"]}))
    state = LoopState(
        items=[call(EDIT), call(EDIT), call(READ), call(EDIT, "b.py"), call(EDIT, "c.py"), call(EDIT, "d.py")],
        results=[denied, denied, denied, denied, done(FAILED), renamed],
        verdicts=[refused, refused, refused, *[Verdict(kind=VerdictKind.ALLOW)] * 3],
    )
    assert run(state)["loop"].refused == (
        "you refused edit_file a.py",
        "refused: edit_file b.py",
        "refused (a protected name; not named by the user), so it is called AGENTS.md.untrusted",
    )


def test_unknown_tool_and_an_empty_state_leave_no_trace() -> None:
    unknown = ToolCall(call_id="1", tool="nothing", arguments={}, raw_arguments="")
    assert run(LoopState(items=[unknown], results=[done(FAILED)])) == {"loop": LoopRecord()}
    assert run(LoopState()) == {"loop": LoopRecord()}


# --- Failed tries

BLOCKS = Profile(edit_form=EditForm.BLOCKS)
CHECK_FAILED = ToolResult.failure(ToolErrorCode.CHECK_FAILED, "add(1, 2) gives -1, but must give 3.")
NOT_YET = ToolResult.failure(ToolErrorCode.CANCELLED, "Not taken as the final answer.")


def implied(tool: ToolSpec, **arguments: Any) -> ToolCall:
    return ToolCall(call_id="2", tool=tool.name, arguments=arguments, raw_arguments="", implied=True)


def test_implied_answer_that_was_accepted_is_the_answer() -> None:
    items: list[ToolCall | CallError] = [implied(CHECKS), implied(ANSWER, answer="Done.", value=3)]
    update = settle(LoopState(reply=ModelReply(text="Done."), items=items, results=[done(PASSED), done()]))
    assert update == {
        "loop": LoopRecord(verdict=LoopVerdict.ANSWERED, verified=GOOD),
        "messages": [],
        "answer": Answer(text="Done.", value=3),
    }


def test_failed_tries_are_counted_until_the_run_gives_up() -> None:
    loop, updates = LoopRecord(), []
    items: list[ToolCall | CallError] = [implied(CHECKS), implied(ANSWER, answer="Done.")]
    for _ in range(LoopConfig().max_failed_tries):
        updates.append(run(LoopState(items=items, results=[done(CHECK_FAILED), done(NOT_YET)], loop=loop)))
        loop = updates[-1]["loop"]
    *before, last = updates
    assert [(update["loop"].verdict, update["loop"].failed_tries) for update in before] == [
        (LoopVerdict.FRESH, tries) for tries in range(1, LoopConfig().max_failed_tries)
    ]
    assert last == {
        "loop": LoopRecord(verdict=LoopVerdict.GAVE_UP, failed_tries=LoopConfig().max_failed_tries, verified=BAD),
        "stop": StopCause(
            reason=StopReason.CHECKS_FAILED,
            message="The work did not pass its checks after 4 tries.",
            diagnostics=("add(1, 2) gives -1, but must give 3.",),
        ),
    }


PASSED = ToolResult.success(checks="passed", ran=["test_a.py: 2 tests"], lines=["a.py:1-3"])
GOOD = Verification(kind="passed", ran=("test_a.py: 2 tests",), lines=("a.py:1-3",))
BAD = Verification(kind="contradicted", reason="add(1, 2) gives -1, but must give 3.")
A, B = (
    FileChange(path=path, kind=ChangeKind.EDITED, sha256_before="0", sha256_after="1", diff="")
    for path in ("a.py", "b.py")
)


@pytest.mark.parametrize(
    ("tool", "result", "changed", "verified"),
    [
        (EDIT, done(OK, A), [A], None),
        (READ, done(), [A], GOOD),
        (CHECKS, done(PASSED), [A], GOOD),
        (CHECKS, done(CHECK_FAILED), [A], BAD),
        (CHECKS, done(NOT_YET), [A], GOOD),
        (CHECKS, done(PASSED), [A, B], Verification(ran=GOOD.ran, lines=GOOD.lines, reason="no check looked at b.py")),
        (CHECKS, done(ToolResult.success(checks="none", reason="no sandbox")), [A], Verification(reason="no sandbox")),
        (CHECKS, done(FAILED), [A], Verification(reason="There is no file a.py.")),
    ],
)
def test_what_is_known_of_the_changes_is_what_was_checked_after_the_last_of_them(
    tool: ToolSpec, result: CallResult, changed: list[FileChange], verified: Verification | None
) -> None:
    item = implied(CHECKS, paths=["a.py"]) if tool is CHECKS else call(tool)
    state = LoopState(items=[item], results=[result], loop=LoopRecord(verified=GOOD), changes=changed)
    assert run(state)["loop"].verified == verified


@pytest.mark.parametrize(
    ("required", "checks", "changed", "taken"),
    [
        (True, done(ToolResult.success(checks="none")), [A], False),
        (True, done(NOT_YET), [A], False),
        (True, done(PASSED), [A], True),
        (True, done(CHECK_FAILED), [A], True),
        (True, done(ToolResult.success(checks="none")), [], True),
        (False, done(ToolResult.success(checks="none")), [A], True),
    ],
)
def test_run_that_has_to_be_checked_takes_no_answer_whose_changes_nothing_checked(
    required: bool, checks: CallResult, changed: list[FileChange], taken: bool
) -> None:
    items: list[ToolCall | CallError] = [implied(CHECKS, paths=["a.py"]), implied(ANSWER, answer="Done.")]
    config = LoopConfig(require_checks=required)
    state = LoopState(items=items, results=[checks, done()], changes=changed, profile=Profile())
    update = check(state, config, signature_of, SPECS, "/work")
    unchecked = StopCause(
        reason=StopReason.NOT_CHECKED,
        message="This run has to be checked, and nothing could check its changes.",
        diagnostics=("the answer: Done.",),
    )
    assert update.get("stop") == (None if taken else unchecked)
    assert update.get("answer") == (Answer(text="Done.") if taken else None)
    assert update["loop"].verdict is (LoopVerdict.ANSWERED if taken else LoopVerdict.GAVE_UP)
    going_on = check({**state, "items": items[:1], "results": [checks]}, config, signature_of, SPECS, "/work")
    assert "stop" not in going_on


def test_checks_that_name_no_files_have_looked_at_none() -> None:
    verified = run(LoopState(items=[implied(CHECKS)], results=[done(PASSED)], changes=[A]))["loop"].verified
    assert verified.reason == "no check looked at a.py"


def test_what_was_found_before_the_model_was_asked_is_no_failed_try() -> None:
    state = LoopState(items=[call(CHECKS)], results=[done(CHECK_FAILED)], profile=BLOCKS)
    assert run(state)["loop"].failed_tries == 1
    assert run({**state, "reply": ModelReply(preloaded=True)})["loop"].failed_tries == 0


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ToolErrorCode.IO_ERROR, StopReason.WORKSPACE_FAILED),
        (ToolErrorCode.CONFLICT, StopReason.WORKSPACE_CHANGED),
    ],
)
def test_workspace_that_takes_no_change_is_told_before_used_up_tries(code: ToolErrorCode, reason: StopReason) -> None:
    broken = ToolResult(ok=False, error=ToolError(code=code, message="It cannot be written.", fatal=True))
    state = LoopState(items=[call(EDIT)], results=[done(broken)], loop=LoopRecord(failed_tries=4), profile=BLOCKS)
    update = run(state)
    assert (update["stop"].reason, update["loop"].verdict) == (reason, LoopVerdict.BROKEN)


@pytest.mark.parametrize("protocol", list(Protocol))
def test_second_edit_that_misses_a_file_steps_down_to_whole_blocks(protocol: Protocol) -> None:
    profile = Profile(protocol=protocol, steps_down=True)
    missed = ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, f"{MISSED} 'a.py'.")
    first = run(LoopState(items=[call(EDIT, old_str="x")], results=[done(missed)], profile=profile))
    second = run(
        LoopState(items=[call(EDIT, old_str="y")], results=[done(missed)], loop=first["loop"], profile=profile)
    )
    assert (set(first), set(second)) == ({"loop"}, {"loop", "profile"})
    assert second["profile"] == profile.model_copy(update={"edit_form": EditForm.BLOCKS})
