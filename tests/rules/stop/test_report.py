from typing import Any

from langchain_core.messages import AIMessage

from mendgraph.nodes.language.history import machine_message
from mendgraph.nodes.records import (
    Answer,
    CallResult,
    ChangeKind,
    FileChange,
    LoopRecord,
    Mark,
    OutcomeKind,
    Plan,
    PlanStatus,
    PlanStep,
    StopCause,
    StopReason,
    ToolErrorCode,
    ToolResult,
    Verification,
)
from mendgraph.nodes.stop.node import StopState, finish, give_up
from mendgraph.nodes.stop.report import changes_words, finished
from tests.row_tables import rows

TITLES = {"look": PlanStatus.DONE, "mend": PlanStatus.IN_PROGRESS, "test": PlanStatus.PENDING, "read": PlanStatus.DONE}
PLAN = Plan(steps=tuple(PlanStep(title=title, status=status) for title, status in TITLES.items()))
CAUSE = StopCause(reason=StopReason.MAX_STEPS, message="Limit 'max_steps' exceeded: 3/3", diagnostics=("one", "two"))


def change(path: str, kind: ChangeKind = ChangeKind.EDITED) -> FileChange:
    after = "" if kind is ChangeKind.DELETED else "1"
    return FileChange(path=path, kind=kind, sha256_before="0", sha256_after=after, diff="")


def result(message: str | None) -> CallResult:
    outcome = ToolResult.success() if message is None else ToolResult.failure(ToolErrorCode.NOT_FOUND, message)
    return CallResult(call_id="x", tool="f", result=outcome)


CHANGES = [change("b.py"), change("a.py"), change("b.py")]


def stopped(cause: StopCause, **state: Any) -> dict[str, Any]:
    return give_up(StopState(**state), OutcomeKind.BUDGET_STOP, cause, {"total_calls": 2})  # type: ignore[typeddict-item]


def test_how_to_go_on_is_one_sentence_for_every_reason() -> None:
    sentences = [reason.how_to_go_on for reason in StopReason]
    assert [sentence for sentence in sentences if not sentence[0].isupper() or sentence[-1] != "."] == []


UNSEEN = Verification(reason="no check ran after the last change")


@rows(
    ("It adds.", [], True, "No file was changed.", Verification()),
    ("", [], True, "No file was changed.", Verification()),
    ("It adds.", CHANGES, True, f"Changed b.py, a.py; not checked: {UNSEEN.reason}.", UNSEEN),
    ("It adds.", [], False, "It adds.", Verification()),  # no tool of this agent changes files
    ("", [], False, "Done.", Verification()),
)
def test_message_of_a_finished_run_says_what_was_changed(
    text: str, changes: list[FileChange], changing: bool, message: str, verified: Verification
) -> None:
    outcome = finished(Answer(text=text, value={"n": 1}), changes, {"total_calls": 2}, LoopRecord(), changing=changing)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.FINISHED, StopReason.ANSWERED)
    assert (outcome.message, outcome.answer, outcome.value) == (message, text, {"n": 1})
    assert outcome.changed_files == tuple(dict.fromkeys(change.path for change in changes))
    assert (outcome.verified, outcome.usage) == (verified, {"total_calls": 2})
    assert outcome.how_to_go_on == "Send another message to continue."


@rows((PLAN, "Left: mend; test. "), (Plan(), ""), (Plan(steps=PLAN.steps[:1]), ""))
def test_stopped_run_lists_the_remaining_steps(plan: Plan, steps: str) -> None:
    outcome = stopped(CAUSE, plan=plan, changes=CHANGES)["outcome"]
    assert (outcome.kind, outcome.reason, outcome.diagnostics) == (
        OutcomeKind.BUDGET_STOP,
        CAUSE.reason,
        ("one", "two"),
    )
    assert (outcome.changed_files, outcome.usage) == (("b.py", "a.py"), {"total_calls": 2})
    assert outcome.verified == Verification(reason="the run ended before its changes were checked")
    assert outcome.how_to_go_on == f"{steps}Send another message, or `mendgraph resume --max-steps N`."


FULL = """\
BUDGET_STOP (max_steps): Limit 'max_steps' exceeded: 3/3. Changed b.py, a.py; \
not checked: the run ended before its changes were checked.
- one
- two
Done: look; read.
Last failure: There is no c.py.
How to continue: Left: mend; test. Send another message, or `mendgraph resume --max-steps N`."""
NOTHING = """\
BUDGET_STOP (provider_failed): The endpoint cannot be reached.
Done: no step of a plan.
No file was changed.
How to continue: Fix what the message names, then `mendgraph resume`."""
UNREACHABLE = StopCause(reason=StopReason.PROVIDER_FAILED, message="The endpoint cannot be reached.")
RESULTS = [result("first"), result("There is no c.py."), result(None)]


@rows(
    (CAUSE, {"plan": PLAN, "changes": CHANGES, "results": RESULTS}, FULL),
    (UNREACHABLE, {"results": [result(None)]}, NOTHING),
)
def test_last_message_is_a_full_report(cause: StopCause, state: dict[str, Any], account: str) -> None:
    assert stopped(cause, **state)["messages"] == [machine_message(account)]


@rows(((), ""), (("you refused edit_file a.py",), ": you refused edit_file a.py"))
def test_run_that_must_change_a_file_says_once_that_none_was(refused: tuple[str, ...], words: str) -> None:
    cause = StopCause(reason=StopReason.NOTHING_CHANGED, message="This run has to change a file.")
    update = stopped(cause, loop=LoopRecord(refused=refused))
    assert update["outcome"].message == f"This run has to change a file. No file was changed{words}."
    assert update["messages"][0].text.count("No file was changed") == 1


PASSED = Verification(kind="passed", ran=("pytest test_a.py: 2 tests",))
SEVERAL = Verification(kind="passed", ran=("a.py: 1 example", "a_test: 1 test", "b_test: 2 tests", "make test"))
REFUSED = "you refused edit_file b.py"
LINES = ["refused: run_shell ls", f"refused: run_shell {'a: ' * 40}", REFUSED]


@rows(
    ([], Verification(), [], ""),
    ([], Verification(), [REFUSED], f"No file was changed: {REFUSED}."),
    (["a.py"], PASSED, [], "Changed a.py; 2 tests pass."),
    (["a.py"], PASSED, [REFUSED], f"Changed a.py; 2 tests pass; {REFUSED}."),
    (
        ["a.py"],
        PASSED,
        LINES,
        f"Changed a.py; 2 tests pass; refused: run_shell ls, run_shell {'a: ' * 15}a..., {REFUSED}.",
    ),
    (["a.py", "b\n.py"], SEVERAL, [], "Changed a.py, b .py; 1 example passes; 3 tests pass; passed: make test."),
    ([*"abcdefg"], Verification(reason="no box."), [], "Changed a, b, c, d, e and 2 more; not checked: no box."),
    (["a.py"], Verification(kind="contradicted", reason="x\ny"), [], "Changed a.py; its checks fail: x y."),
)
def test_first_sentence_states_changes_and_verification(
    files: list[str], verified: Verification, refused: list[str], words: str
) -> None:
    assert changes_words(files, verified, refused) == words


ALL = {"kind": "passed", "failed_before": ("test_a",), "new_code": ("test_b",), "indistinct": ("test_c", "test_d")}
CASES = ("test_a.py::T::test_a[1]", "test_a.py::T::test_a[2]", "b")
SAME = "not distinguish before from after."


@rows(
    ("a.py", {"indistinct": ("test_a",)}, f"not verified: 2 tests pass; test_a does {SAME}"),
    ("tests/test_a.py", {"indistinct": ("test_a",)}, f"2 tests pass; test_a does {SAME}"),
    ("a.py", ALL, f"2 tests pass; test_a failed before the change; test_b tests new code; test_c, test_d do {SAME}"),
    (
        "a.py",
        {"kind": "passed", "failed_before": CASES},
        "2 tests pass; 2 cases of T::test_a, b failed before the change.",
    ),
    ("a.py", {"kind": "passed", "skipped": 41, "skip_reason": "no docker"}, "2 tests pass, 41 skipped: no docker."),
    ("a.py", {"kind": "passed", "skipped": 1_000}, "2 tests pass, 1,000 skipped."),
)
def test_passed_tests_are_qualified(path: str, fields: dict[str, object], words: str) -> None:
    verified = Verification.model_validate({"kind": "indistinct", "ran": ("pytest test_a.py: 2 tests",), **fields})
    assert changes_words([path], verified, []) == f"Changed {path}; {words}"


@rows("passed", "none", "contradicted")
def test_long_reason_is_cut_between_words_and_twenty_marks_are_named(kind: str) -> None:
    verified = Verification.model_validate({"kind": kind, "ran": ("make test",), "reason": "numbers " * 60})
    words = changes_words(["a.py"], verified, [])
    assert words.endswith(" numbers...")
    assert len(words) < 400
    marks = [Mark(kind="deleted", path=f"{number}.py") for number in range(21)]
    named = changes_words([mark.path for mark in marks], Verification(), [], marks)
    assert ("19.py" in named, "20.py" in named) == (True, False)


def test_check_before_the_first_change_does_not_verify_the_work() -> None:
    loop = LoopRecord(verified=PASSED)
    assert finish(StopState(loop=loop), {})["outcome"].verified == Verification()
    update = finish(StopState(loop=loop, changes=[change("b.py")], answer=Answer(text="It adds.")), {})
    assert (update["outcome"].verified, update["messages"]) == (PASSED, [AIMessage("It adds.")])


def test_message_without_an_answer_lists_changed_and_deleted_files() -> None:
    assert finish(StopState(), {})["messages"] == [machine_message("Done.")]
    gone = change("c.py", ChangeKind.DELETED)
    update = finish(StopState(changes=[change("b.py"), gone]), {})
    assert update["messages"] == [machine_message("Changed b.py; deleted c.py.")]
    outcome = update["outcome"]
    assert (outcome.answer, outcome.changed_files) == ("Changed b.py; deleted c.py.", ("b.py", "c.py"))
    assert outcome.marks == (Mark(kind="deleted", path="c.py"),)
