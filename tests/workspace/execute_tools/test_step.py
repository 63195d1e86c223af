import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.registry import ActionRegistry, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.run_call import Execution, StepResources
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.step import NOTHING_TO_JUDGE, StepEffects, run_step
from mendgraph.nodes.execute_tools.tool_outcome import ToolOutcome
from mendgraph.nodes.execute_tools.tools.about_run import delegate, final_answer
from mendgraph.nodes.execute_tools.trace import RunLog
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    ChangeKind,
    ExtractionError,
    ExtractionErrorType,
    FileChange,
    Plan,
    PlanStep,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
    Verdict,
    VerdictKind,
)
from mendgraph.nodes.workspace.files.deadline import CancellationScope
from mendgraph.nodes.workspace.files.workspace import Workspace
from tests.row_tables import rows

UNTOUCHED: Any = None
"""The workspace: a step hands it on, and does nothing with it."""

TOOLS = ActionRegistry([final_answer])
OK = ToolResult.success(n=1)
FAILED = ToolResult.failure(ToolErrorCode.NOT_FOUND, "There is no a.py.")
OLD, NEW = Plan(steps=(PlanStep(title="old"),)), Plan(steps=(PlanStep(title="new"),))
CONTEXT = ToolContext(UNTOUCHED, files_read={"seen.py": "0"}, plan=OLD)


def call(tool: str, call_id: str = "") -> ToolCall:
    return ToolCall(call_id=call_id or tool, tool=tool, arguments={}, raw_arguments="{}")


def broken(call_id: str) -> CallError:
    error = ExtractionError(ExtractionErrorType.INVALID_ARGUMENTS, 0, "", "bad")
    return CallError(call_id=call_id, tool="f", raw_arguments="", error=error)


def settled(item: ToolCall | CallError, result: ToolResult = FAILED) -> CallResult:
    return CallResult(call_id=item.call_id, tool=item.tool, result=result)


def change(path: str) -> FileChange:
    return FileChange(path=path, kind=ChangeKind.EDITED, sha256_before="0", sha256_after="1", diff="")


class Engine:
    """Returns each tool's output, and records the context of each call."""

    def __init__(self, **outputs: ToolOutput) -> None:
        self.outputs = outputs
        self.seen: list[tuple[str, dict[str, str], Plan]] = []

    def run(self, item: ToolCall, context: ToolContext) -> ToolOutcome:
        self.seen.append((item.call_id, dict(context.files_read), context.plan))
        return ToolOutcome(item.call_id, item.tool, self.outputs.get(item.tool, ToolOutput(OK)), attempts=1, ms=5)


def done(item: ToolCall, result: ToolResult = OK, *changes: FileChange) -> CallResult:
    return CallResult(call_id=item.call_id, tool=item.tool, result=result, changes=changes, ms=5, attempts=1)


def step(
    engine: Any,
    items: Sequence[ToolCall | CallError],
    before: Sequence[CallResult | None] | None = None,
    context: ToolContext = CONTEXT,
) -> StepEffects:
    run = engine.run if isinstance(engine, Engine) else engine
    using = StepResources(run, TOOLS, context, RunLog(None, Redactor(), ""), Execution("", "", 0))
    return run_step(items, [Verdict(kind=VerdictKind.ALLOW)] * len(items), before or [None] * len(items), using)


def test_call_sees_what_earlier_calls_read_changed_and_planned() -> None:
    read, edit, plan, look = call("read"), call("edit"), call("plan"), call("look")
    engine = Engine(
        read=ToolOutput(OK, files_read={"a.py": "1", "b.py": "1"}),
        edit=ToolOutput(OK, changes=(change("a.py"), change("c.py")), files_read={"a.py": "2"}),
        plan=ToolOutput(OK, plan=NEW),
    )
    assert step(engine, [read, edit, plan, look]) == StepEffects(
        results=[done(read), done(edit, OK, change("a.py"), change("c.py")), done(plan), done(look)],
        plan=NEW,
        seconds=0.02,
        changes=[change("a.py"), change("c.py")],
        files_read={"a.py": "2", "b.py": "1"},
    )
    assert engine.seen == [
        ("read", {"seen.py": "0"}, OLD),
        ("edit", {"seen.py": "0", "a.py": "1", "b.py": "1"}, OLD),
        ("plan", {"seen.py": "0", "a.py": "2", "b.py": "1"}, OLD),
        ("look", {"seen.py": "0", "a.py": "2", "b.py": "1"}, NEW),
    ]


def test_calls_without_time_left_do_not_run() -> None:
    engine = Engine()
    items = [call("read", f"c{index}") for index in range(3)]
    context = replace(CONTEXT, timeout_s=1.0, seconds_left=0.008)
    finished = step(engine, items, context=context)
    late = ToolResult.failure(ToolErrorCode.TIMEOUT, "The time of this turn is used up, so this call did not run.")
    assert finished.results == [done(items[0]), done(items[1]), settled(items[2], late)]
    assert [call_id for call_id, *_ in engine.seen] == ["c0", "c1"]


def test_time_spent_between_calls_counts() -> None:
    lefts: list[float] = []

    def run(item: ToolCall, context: ToolContext) -> ToolOutcome:
        lefts.append(context.seconds_left)
        time.sleep(0.2)  # of which an engine that says 5 ms has seen nothing
        return Engine().run(item, context)

    items = [call("read", f"c{index}") for index in range(4)]
    finished = step(run, items, context=replace(CONTEXT, timeout_s=0.3, seconds_left=0.5))
    assert lefts[0] == 0.5
    assert 0.2 < lefts[1] < 0.31
    assert [result.result.ok for result in finished.results] == [True, True, True, False]
    assert finished.seconds >= 0.6


class Stopping(Engine):
    """Somebody wants the run to stop while the call with this id runs."""

    def __init__(self, scope: CancellationScope, at: str, **outputs: ToolOutput) -> None:
        super().__init__(**outputs)
        self.scope, self.at = scope, at

    def run(self, item: ToolCall, context: ToolContext) -> ToolOutcome:
        if item.call_id == self.at:
            self.scope.close()
        return super().run(item, context)


NOT_BEGUN = ToolResult.failure(ToolErrorCode.CANCELLED, "The run was stopped before this call, so it did not run.")


def test_stop_lets_the_running_call_finish_and_starts_no_other() -> None:
    scope = CancellationScope()
    engine = Stopping(scope, "c1", edit=ToolOutput(OK, changes=(change("a.py"),)))
    read, edit, other, last = call("read", "c0"), call("edit", "c1"), call("edit", "c2"), call("read", "c3")
    finished = step(engine, [read, edit, other, last], context=replace(CONTEXT, scope=scope))
    completed = [done(read), done(edit, OK, change("a.py"))]
    assert finished.results == [*completed, settled(other, NOT_BEGUN), settled(last, NOT_BEGUN)]
    assert finished.changes == [change("a.py")]
    assert [call_id for call_id, *_ in engine.seen] == ["c0", "c1"]


def test_stop_keeps_an_answer_if_every_call_succeeded() -> None:
    scope = CancellationScope()
    context = replace(CONTEXT, scope=scope)
    answered = step(Stopping(scope, "read"), [READ, ANSWER], context=context)
    assert answered.results == [done(READ), done(ANSWER)]
    unanswered = step(Engine(), [READ, ANSWER], context=context)
    assert unanswered.results == [settled(READ, NOT_BEGUN), not_yet(ANSWER, 1)]


def not_yet(item: ToolCall, failed: int) -> CallResult:
    message = f"Not taken as the final answer: {failed} other call(s) of this reply failed. Fix that, then answer."
    return settled(item, ToolResult.failure(ToolErrorCode.CANCELLED, message))


ANSWER, READ, EDIT = call("final_answer"), call("read"), call("edit")


DENIED_READ, BAD = settled(READ), broken("x")


@rows(
    ([ANSWER, READ], [None, None], [done(ANSWER), done(READ)], "read final_answer"),
    ([ANSWER, EDIT, READ], [None] * 3, [not_yet(ANSWER, 1), done(EDIT, FAILED), done(READ)], "edit read"),
    ([READ, ANSWER], [DENIED_READ, None], [DENIED_READ, not_yet(ANSWER, 1)], ""),
    (
        [READ, EDIT, ANSWER],
        [DENIED_READ, None, None],
        [DENIED_READ, done(EDIT, FAILED), not_yet(ANSWER, 2)],
        "edit",
    ),
    ([READ, ANSWER], [settled(READ, OK), None], [settled(READ, OK), done(ANSWER)], "final_answer"),
    ([BAD, ANSWER], [settled(BAD), None], [settled(BAD), not_yet(ANSWER, 1)], ""),
    ([ANSWER], [settled(ANSWER)], [settled(ANSWER)], ""),
)
def test_final_answer_runs_last_and_only_if_every_call_succeeded(
    items: list[ToolCall | CallError], before: list[CallResult | None], results: list[CallResult], call_ids: str
) -> None:
    engine = Engine(edit=ToolOutput(FAILED))
    assert step(engine, items, before).results == results
    assert " ".join(call_id for call_id, *_ in engine.seen) == call_ids


@rows((1.0, True), (0.0, False))
def test_child_without_time_left_does_not_run(seconds_left: float, runs: bool) -> None:
    item = call("delegate")
    using = StepResources(
        Engine().run,
        ActionRegistry([delegate]),
        replace(CONTEXT, seconds_left=seconds_left),
        RunLog(None, Redactor(), ""),
        Execution("", "", 0),
        children=lambda calls, context: ([Engine().run(child, context) for child in calls.values()], 0.0),
    )
    results = run_step([item], [Verdict(kind=VerdictKind.ALLOW)], [None], using).results
    late = ToolResult.failure(ToolErrorCode.TIMEOUT, "The time of this turn is used up, so this call did not run.")
    assert results == [done(item) if runs else settled(item, late)]


SAME = ToolResult.failure(ToolErrorCode.UNCHANGED, "The block is identical.")


@rows(((),), ((change("b.py"),),))
def test_unchanged_file_beside_a_change_does_not_block_the_answer(changes: tuple[FileChange, ...]) -> None:
    engine = Engine(read=ToolOutput(OK, changes), edit=ToolOutput(SAME))
    before = step(Engine(edit=ToolOutput(SAME)), [EDIT, ANSWER], context=replace(CONTEXT, changes=changes)).results
    answers = step(engine, [READ, EDIT, ANSWER]).results[-1], before[-1]
    assert answers == ((done(ANSWER) if changes else not_yet(ANSWER, 1)),) * 2


CHECKS = call("run_checks").model_copy(update={"implied": True})


@rows(
    ({}, None, True),
    ({"edit": ToolOutput(FAILED)}, None, False),
    ({}, settled(EDIT), False),
    ({"edit": ToolOutput(SAME)}, None, False),
    ({"read": ToolOutput(OK, changes=(change("b.py"),)), "edit": ToolOutput(SAME)}, None, True),
)
def test_implied_checks_run_only_if_there_is_something_to_judge(
    outputs: dict[str, ToolOutput], before: CallResult | None, runs: bool
) -> None:
    engine = Engine(**outputs)
    *_, checks, answer = step(engine, [READ, EDIT, CHECKS, ANSWER], [None, before, None, None]).results
    if runs:
        assert (checks, answer) == (done(CHECKS), done(ANSWER))
    else:
        nothing = ToolResult.failure(ToolErrorCode.CANCELLED, NOTHING_TO_JUDGE)
        assert (checks, answer.result.ok) == (settled(CHECKS, nothing), False)
    assert ("run_checks" in [call_id for call_id, *_ in engine.seen]) is runs


@rows(True, False)
def test_only_the_last_of_several_edits_is_judged(gated: bool) -> None:
    seen: list[tuple[str, bool]] = []

    def run(item: ToolCall, context: ToolContext) -> ToolOutcome:
        seen.append((item.call_id, context.evidence_required))
        return ToolOutcome(item.call_id, item.tool, ToolOutput(OK), ms=1, attempts=1)

    items = [call("edit", "a"), call("read", "b"), call("edit", "c"), call("final_answer", "d")]
    step(run, items, context=replace(CONTEXT, evidence_required=gated))
    assert seen == [("a", False), ("b", gated), ("c", gated), ("d", gated)]


@rows((False, False), (["f"], True), ([], True))
def test_edit_without_changes_blocks_the_answer(changed: Any, accepted: bool) -> None:
    engine = Engine(edit=ToolOutput.ok(path="a.py", changed=changed), final_answer=ToolOutput(OK))
    done = step(engine, [call("edit"), call("final_answer")])
    assert [result.result.ok for result in done.results] == [True, accepted]


@rows(((),), (("path",),))
def test_edited_arguments_replace_the_raw_text_of_the_model(edited: tuple[str, ...]) -> None:
    seen: list[str] = []

    def run(item: ToolCall, context: ToolContext) -> ToolOutcome:
        seen.append(item.raw_arguments)
        return Engine().run(item, context)

    item = call("read").model_copy(update={"arguments": {"path": "b.py"}, "raw_arguments": '{"path": "a.py"}'})
    using = StepResources(run, TOOLS, CONTEXT, RunLog(None, Redactor(), ""), Execution("", "", 0))
    run_step([item], [Verdict(kind=VerdictKind.ALLOW, edited=edited)], [None], using)
    assert seen == ([""] if edited else ['{"path": "a.py"}'])


@pytest.mark.parametrize(
    ("pins", "code"),
    [
        (None, None),
        ((("a.py", "", ""),), None),
        ((("b.py", "", ""),), None),
        ((("b.py", "", "a mark"),), ToolErrorCode.CONFLICT),
        ((), ToolErrorCode.CONFLICT),
    ],
)
def test_approved_call_changes_only_what_was_shown(
    workspace: Workspace, pins: tuple[tuple[str, str, str], ...] | None, code: ToolErrorCode | None
) -> None:
    def run(item: ToolCall, context: ToolContext) -> ToolOutcome:
        done = context.workspace.write_file("new.py", b"x", expected_sha256="")
        output = ToolOutput.failed(done) if isinstance(done, ToolError) else ToolOutput(OK)
        return ToolOutcome(item.call_id, item.tool, output, attempts=1)

    context = replace(CONTEXT, workspace=workspace)
    using = StepResources(run, TOOLS, context, RunLog(None, Redactor(), ""), Execution("", "", 0))
    results = run_step([EDIT], [Verdict(kind=VerdictKind.ALLOW, pins=pins)], [None], using).results
    error = results[0].result.error
    assert (None if error is None else error.code) == code
