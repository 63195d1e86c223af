"""The steps of a run, as its checkpoints tell of them."""

from typing import Any, NamedTuple

import pytest

from graph.run_steps import RunStep, StepKind, call_after, read_steps
from nodes.records import Reading, ToolCall, ToolError, ToolErrorCode

READ = ToolCall(call_id="1", tool="read_file", arguments={"path": "a"}, raw_arguments="{}")
EDIT = ToolCall(call_id="2", tool="edit_file", arguments={"path": "a"}, raw_arguments="{}")


class Shot(NamedTuple):
    next: tuple[str, ...]
    values: dict[str, Any]


def shot(following: str, step: int | None = None, **values: Any) -> Shot:
    counted = {} if step is None else {"step": step}
    return Shot((following,) if following else (), {**counted, **values})


BEGUN = [shot("__start__"), shot("begin_turn"), shot("call_model")]
STEP_1 = [shot("parse", 1), shot("guard", 1, items=[READ]), shot("execute_tools", 1), shot("loop_check", 1)]
MALFORMED = [shot("call_model", 1), shot("parse", 2), shot("heal", 2)]
STEP_3 = [shot("call_model", 2), shot("parse", 3), shot("guard", 3, items=[EDIT, READ]), shot("loop_check", 3)]
ANSWERED = [shot("call_model", 3), shot("parse", 4), shot("FINISHED", 4, reading=Reading.ANSWER), shot("", 4)]
TURN_2 = [
    shot("__start__", 4),
    shot("begin_turn", 4),
    shot("call_model", 4),
    shot("guard", 5, items=[EDIT]),
]
HISTORY = [*BEGUN, *STEP_1, *MALFORMED, *STEP_3, *ANSWERED, *TURN_2][::-1]


def test_each_reply_is_a_step_with_its_calls_and_its_files() -> None:
    assert read_steps(HISTORY, {1: (), 3: ("a", "b"), 7: ("c",)}) == (
        RunStep(0, StepKind.START, 1, can_fork=True),
        RunStep(1, StepKind.CALLS, 1, (READ,), can_fork=True),
        RunStep(2, StepKind.UNUSABLE, 1, can_fork=True),
        RunStep(3, StepKind.CALLS, 1, (EDIT, READ), ("a", "b"), can_fork=True),
        RunStep(4, StepKind.ANSWER, 1, can_fork=True),
        RunStep(5, StepKind.CALLS, 2, (EDIT,)),
        RunStep(7, StepKind.UNKNOWN, 0, (), ("c",)),
    )


def test_the_last_answer_has_no_call_after_it() -> None:
    (*_, answer) = read_steps(HISTORY[len(TURN_2) :], {})
    assert answer == RunStep(4, StepKind.ANSWER, 1, can_fork=False)


def test_a_final_answer_that_is_a_call_stays_one() -> None:
    history = [*BEGUN, *STEP_1, shot("FINISHED", 1, reading=Reading.CALLS)][::-1]
    assert read_steps(history, {})[-1] == RunStep(1, StepKind.CALLS, 1, (READ,))


def test_a_forked_run_starts_at_its_step() -> None:
    assert read_steps([shot("call_model", 3)], {}) == (RunStep(3, StepKind.START, 1, can_fork=True),)


def test_of_a_step_that_was_made_again_the_last_try_counts() -> None:
    again = [shot("BUDGET_STOP", 1), shot("call_model", 1), shot("parse", 2), shot("guard", 2, items=[EDIT])]
    history = [*BEGUN, *STEP_1, *again, shot("guard", 2, items=[READ])][::-1]
    assert read_steps(history, {})[-1] == RunStep(2, StepKind.CALLS, 1, (READ,))


def test_a_step_that_is_asked_about_or_cut_off_is_none_to_fork_at() -> None:
    history = [*BEGUN, *STEP_1][::-1]
    assert [(step.number, step.can_fork) for step in read_steps(history, {})] == [(0, True), (1, False)]


def test_the_call_after_a_step_is_the_one_before_the_next_call() -> None:
    for step, (due, *_) in enumerate([BEGUN[-1:], MALFORMED, STEP_3, ANSWERED, TURN_2[2:]]):
        assert call_after(HISTORY, step) is due


@pytest.mark.parametrize(
    ("history", "step", "where", "known"),
    [
        (HISTORY, 5, "it can be after one of the steps 0, 1, 2, 3, 4", ("0", "1", "2", "3", "4")),
        (BEGUN[::-1], 1, "it can be after step 0", ("0",)),
        (TURN_2[:1], -1, "no checkpoint of it is left at which a model call was due", ()),
    ],
)
def test_where_no_call_was_due_the_steps_are_named_that_have_one(
    history: list[Shot], step: int, where: str, known: tuple[str, ...]
) -> None:
    message = f"The run cannot be forked after step {step}: {where}."
    assert call_after(history, step) == ToolError(code=ToolErrorCode.NOT_FOUND, message=message, suggestions=known)
