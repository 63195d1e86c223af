import pytest
from langchain_core.messages import AIMessage

from mendgraph.nodes.language.history import written_here
from mendgraph.nodes.records import (
    Answer,
    CallResult,
    ChangeKind,
    FileChange,
    LoopRecord,
    Mark,
    Outcome,
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
from mendgraph.nodes.stop.report import changes_words, finished, stopped, wrap_up

USAGE = {"total_calls": 2}
PLAN = Plan(
    steps=(
        PlanStep(title="look", status=PlanStatus.DONE),
        PlanStep(title="mend", status=PlanStatus.IN_PROGRESS),
        PlanStep(title="test"),
        PlanStep(title="read", status=PlanStatus.DONE),
    )
)
CAUSE = StopCause(reason=StopReason.MAX_STEPS, message="Limit 'max_steps' exceeded: 3/3", diagnostics=("one", "two"))


def change(path: str) -> FileChange:
    return FileChange(path=path, kind=ChangeKind.EDITED, sha256_before="0", sha256_after="1", diff="")


def result(message: str | None) -> CallResult:
    came = ToolResult.success() if message is None else ToolResult.failure(ToolErrorCode.NOT_FOUND, message)
    return CallResult(call_id="x", tool="f", result=came)


CHANGES = [change("b.py"), change("a.py"), change("b.py")]


def test_every_reason_says_how_to_go_on_in_one_sentence() -> None:
    said = [reason.how_to_go_on for reason in StopReason]
    assert [sentence for sentence in said if not sentence[0].isupper() or sentence[-1] != "."] == []


def test_twenty_files_of_one_mark_are_named() -> None:
    marks = [Mark(kind="deleted", path=f"{number}.py") for number in range(21)]
    words = changes_words([mark.path for mark in marks], Verification(), [], marks)
    assert "19.py" in words
    assert "20.py" not in words


UNSEEN = Verification(reason="no check ran after the last change")
CUT_SHORT = Verification(reason="the run ended before its changes were checked")
CHANGED = f"Changed b.py, a.py; not checked: {CUT_SHORT.reason}."


@pytest.mark.parametrize(
    ("text", "changes", "message", "verified"),
    [
        ("It adds.", [], "No file was changed.", Verification()),
        ("", [], "No file was changed.", Verification()),
        ("It adds.", CHANGES, f"Changed b.py, a.py; not checked: {UNSEEN.reason}.", UNSEEN),
    ],
)
def test_finished_run(text: str, changes: list[FileChange], message: str, verified: Verification) -> None:
    assert finished(Answer(text=text, value={"n": 1}), changes, USAGE, LoopRecord()) == Outcome(
        kind=OutcomeKind.FINISHED,
        reason=StopReason.ANSWERED,
        message=message,
        answer=text,
        value={"n": 1},
        changed_files=tuple(dict.fromkeys(change.path for change in changes)),
        verified=verified,
        usage=USAGE,
        how_to_go_on="Send another message to go on.",
    )


@pytest.mark.parametrize(("text", "message"), [("It adds.", "It adds."), ("", "Done.")])
def test_message_of_an_agent_without_tools_that_change_files_is_its_answer(text: str, message: str) -> None:
    assert finished(Answer(text=text), [], USAGE, LoopRecord(), changing=False).message == message


@pytest.mark.parametrize(
    ("refused", "words"), [((), ""), (("you refused edit_file a.py",), ": you refused edit_file a.py")]
)
def test_run_that_has_to_change_a_file_says_once_that_none_was(refused: tuple[str, ...], words: str) -> None:
    cause = StopCause(reason=StopReason.NOTHING_CHANGED, message="This run has to change a file.")
    outcome = stopped(OutcomeKind.SYSTEM_ERROR, cause, Plan(), [], {}, LoopRecord(refused=refused))
    assert outcome.message == f"This run has to change a file. No file was changed{words}."
    assert wrap_up(outcome, Plan(), []).count("No file was changed") == 1


@pytest.mark.parametrize(
    ("plan", "left"), [(PLAN, "Left: mend; test. "), (Plan(), ""), (Plan(steps=PLAN.steps[:1]), "")]
)
def test_stopped_run_says_what_is_left(plan: Plan, left: str) -> None:
    assert stopped(OutcomeKind.BUDGET_STOP, CAUSE, plan, CHANGES, USAGE, LoopRecord()) == Outcome(
        kind=OutcomeKind.BUDGET_STOP,
        reason=StopReason.MAX_STEPS,
        message=f"{CAUSE.message}. {CHANGED}",
        diagnostics=("one", "two"),
        changed_files=("b.py", "a.py"),
        verified=CUT_SHORT,
        usage=USAGE,
        how_to_go_on=f"{left}Send another message, or `mendgraph resume --max-steps N`.",
    )


def test_last_message_is_a_full_account() -> None:
    outcome = stopped(OutcomeKind.BUDGET_STOP, CAUSE, PLAN, CHANGES, USAGE, LoopRecord())
    assert wrap_up(outcome, PLAN, [result("first"), result("There is no c.py."), result(None)]).splitlines() == [
        f"BUDGET_STOP (max_steps): Limit 'max_steps' exceeded: 3/3. {CHANGED}",
        "- one",
        "- two",
        "Done: look; read.",
        "Last failure: There is no c.py.",
        "How to go on: Left: mend; test. Send another message, or `mendgraph resume --max-steps N`.",
    ]


def test_account_of_a_run_that_did_nothing() -> None:
    cause = StopCause(reason=StopReason.PROVIDER_FAILED, message="The endpoint cannot be reached.")
    outcome = stopped(OutcomeKind.SYSTEM_ERROR, cause, Plan(), [], {}, LoopRecord())
    assert wrap_up(outcome, Plan(), [result(None)]).splitlines() == [
        "SYSTEM_ERROR (provider_failed): The endpoint cannot be reached.",
        "Done: no step of a plan.",
        "No file was changed.",
        "How to go on: Mend what the message names, then go on with `mendgraph resume`.",
    ]


NONE, PASSED = Verification(), Verification(kind="passed", ran=("pytest test_a.py: 2 tests",))


@pytest.mark.parametrize(
    ("files", "verified", "refused", "words"),
    [
        ([], NONE, [], ""),
        ([], NONE, ["you refused edit_file a.py"], "No file was changed: you refused edit_file a.py."),
        (["a.py"], PASSED, [], "Changed a.py; 2 tests pass."),
        (["a.py"], PASSED, ["you refused edit_file b.py"], "Changed a.py; 2 tests pass; you refused edit_file b.py."),
        (
            ["a.py", "b\n.py"],
            Verification(
                kind="passed", ran=("a.py: 1 example", "test_a.py: 1 test", "test_b.py: 2 tests", "make test")
            ),
            [],
            "Changed a.py, b .py; 1 example passes; 3 tests pass; passed: make test.",
        ),
        (
            list("abcdefg"),
            Verification(reason="no sandbox."),
            [],
            "Changed a, b, c, d, e and 2 more; not checked: no sandbox.",
        ),
        (["a.py"], Verification(kind="contradicted", reason="x\ny"), [], "Changed a.py; its checks fail: x y."),
    ],
)
def test_first_sentence_says_what_was_changed_and_what_is_known_of_it(
    files: list[str], verified: Verification, refused: list[str], words: str
) -> None:
    assert changes_words(files, verified, refused) == words


FAILED = result("There is no c.py.")


@pytest.mark.parametrize("kind", [OutcomeKind.BUDGET_STOP, OutcomeKind.SYSTEM_ERROR])
def test_account_is_the_last_message(kind: OutcomeKind) -> None:
    outcome = stopped(kind, CAUSE, PLAN, [CHANGES[0]], USAGE, LoopRecord())
    assert give_up(StopState(plan=PLAN, changes=[CHANGES[0]], results=[FAILED]), kind, CAUSE, USAGE) == {
        "outcome": outcome,
        "messages": [written_here(wrap_up(outcome, PLAN, [FAILED]))],
    }


def test_what_was_found_before_anything_was_changed_is_not_said_of_the_work() -> None:
    loop = LoopRecord(verified=PASSED)
    assert finish(StopState(loop=loop), {})["outcome"].verified == Verification()
    changed = StopState(loop=loop, changes=[CHANGES[0]], answer=Answer(text="It adds."))
    update = finish(changed, {})
    assert (update["outcome"].verified, update["messages"]) == (PASSED, [AIMessage("It adds.")])


def test_answer_without_words_is_what_was_changed() -> None:
    update = finish(StopState(changes=[CHANGES[0]]), {})
    said = f"Changed {CHANGES[0].path}."
    assert (update["outcome"].answer, update["messages"]) == (said, [written_here(said)])
    assert finish(StopState(), {})["messages"] == [written_here("Done.")]


def test_deleted_file_is_called_so_whoever_ends_the_run() -> None:
    gone = FileChange(path="c.py", kind=ChangeKind.DELETED, sha256_before="0", sha256_after="", diff="")
    outcome = finish(StopState(changes=[CHANGES[0], gone]), {})["outcome"]
    assert outcome.answer == "Changed b.py; deleted c.py."
    assert (outcome.changed_files, outcome.marks) == (("b.py", "c.py"), (Mark(kind="deleted", path="c.py"),))
    ended = stopped(OutcomeKind.BUDGET_STOP, CAUSE, Plan(), [gone], USAGE, LoopRecord(), restored=["c.py"])
    assert (ended.marks, "eleted" in ended.message) == ((), False)


@pytest.mark.parametrize("kind", ["passed", "none", "contradicted"])
def test_reason_that_is_too_long_ends_between_two_words(kind: str) -> None:
    verified = Verification.model_validate({"kind": kind, "ran": ("make test",), "reason": "numbers " * 60})
    words = changes_words(["a.py"], verified, [])
    assert words.endswith(" numbers...")
    assert len(words) < 400


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"indistinct": ("test_a",)}, "not verified: 2 tests pass; test_a does not distinguish before from after."),
        (
            {
                "kind": "passed",
                "failed_before": ("test_a",),
                "new_code": ("test_b",),
                "indistinct": ("test_c", "test_d"),
            },
            (
                "2 tests pass; test_a failed before the change; test_b tests new code;"
                " test_c, test_d do not distinguish before from after."
            ),
        ),
        ({"kind": "passed", "skipped": 41, "skip_reason": "no docker"}, "2 tests pass, 41 skipped: no docker."),
        ({"kind": "passed", "skipped": 1_000}, "2 tests pass, 1,000 skipped."),
    ],
)
def test_what_passed_is_told_with_what_it_is_worth(fields: dict[str, object], words: str) -> None:
    verified = Verification.model_validate({"kind": "indistinct", "ran": ("pytest test_a.py: 2 tests",), **fields})
    assert changes_words(["a.py"], verified, []) == f"Changed a.py; {words}"


def test_tests_alone_are_not_told_as_unverified() -> None:
    verified = Verification(kind="indistinct", ran=("pytest test_a.py: 1 test",), indistinct=("test_a",))
    words = changes_words(["tests/test_a.py"], verified, [])
    assert words == "Changed tests/test_a.py; 1 test passes; test_a does not distinguish before from after."
