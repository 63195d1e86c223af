import pytest

from nodes.execute_tools.environment.journal_records import (
    UNKNOWN_SHA256,
    ChangeState,
    FileEffect,
    FileState,
    RecordedChange,
)
from nodes.execute_tools.environment.rebuild_plan import (
    PathHistory,
    RebuildPlan,
    WriteStep,
    path_histories,
    rebuild_plan,
)
from nodes.execute_tools.environment.restore_plan import Found, FoundAbove, FoundDirectory, Unusable
from nodes.records import ToolError

NONE, ONE, TWO = FileState(), FileState("1", 0o644), FileState("2", 0o644)
UNKNOWN = FileState(UNKNOWN_SHA256, 0o644)
DONE = ChangeState.DONE


def change(
    *effects: tuple[str, FileState, FileState], state: ChangeState = DONE, made: tuple[str, ...] = ()
) -> RecordedChange:
    return RecordedChange("token", 1, 1, tuple(FileEffect(*each) for each in effects), made, state)


def planned(changes: list[RecordedChange], found: dict[str, Found]) -> RebuildPlan | str:
    """The plan, or why there is none."""
    histories = path_histories(changes)
    plan = histories if isinstance(histories, ToolError) else rebuild_plan(changes, histories, found)
    return plan.message.partition("anew: ")[2] if isinstance(plan, ToolError) else plan


def test_all_that_was_done_to_a_path_counts_as_one() -> None:
    undone = change(("a", TWO, NONE), state=ChangeState.UNDONE)
    reverted = change(("b", ONE, NONE), state=ChangeState.REVERTED)
    changes = [change(("a", NONE, ONE), ("b", NONE, ONE)), undone, reverted, change(("a", ONE, TWO), ("b", NONE, TWO))]
    assert path_histories(changes) == (PathHistory("a", NONE, TWO), PathHistory("b", NONE, TWO))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([change(("a", ONE, TWO), state=ChangeState.FOREIGN)], "'a': somebody else has changed it"),
        ([change(("a", NONE, ONE)), change(("a", TWO, NONE))], "'a': it was changed also between two"),
        ([change(("a", NONE, FileState("1", 0o755))), change(("a", ONE, TWO))], "'a': it was changed also between two"),
        ([change(("a", ONE, UNKNOWN))], "'a': a command has changed it, and what it held then was not recorded"),
    ],
)
def test_what_cannot_be_told_is_not_made_again(changes: list[RecordedChange], why: str) -> None:
    assert str(planned(changes, {"a": ONE})).startswith(why)


def test_what_was_unknown_for_a_while_does_not_matter() -> None:
    changes = [change(("a", NONE, UNKNOWN)), change(("a", UNKNOWN, NONE)), change(("b", UNKNOWN, ONE))]
    assert planned(changes, {"a": NONE, "b": TWO}) == RebuildPlan((), (), (WriteStep("b", "1", None),))


@pytest.mark.parametrize(
    ("effect", "now", "plan"),
    [
        (("a", NONE, ONE), NONE, RebuildPlan((), (), (WriteStep("a", "1", 0o644),))),
        (("a", NONE, ONE), ONE, RebuildPlan((), (), ())),
        (("a", NONE, ONE), TWO, "'a': the copy does not hold what the run began with."),
        (("a", NONE, FileState("1")), NONE, RebuildPlan((), (), (WriteStep("a", "1", None),))),
        (("a", ONE, TWO), ONE, RebuildPlan((), (), (WriteStep("a", "2", None),))),
        (("a", ONE, TWO), FileState("1", 0o664), RebuildPlan((), (), (WriteStep("a", "2", None),))),
        (("a", ONE, TWO), FileState("1", 0o755), "'a': the copy does not hold what the run began with."),
        (("a", ONE, FileState("1", 0o755)), ONE, RebuildPlan((), (), (WriteStep("a", "1", 0o755),))),
        (("a", ONE, NONE), ONE, RebuildPlan(("a",), (), ())),
        (("a", ONE, NONE), NONE, RebuildPlan((), (), ())),
        (("a", NONE, ONE), Unusable("a link"), "'a': something else is in its place."),
        (("d/e/a", NONE, ONE), NONE, RebuildPlan((), ("d", "d/e"), (WriteStep("d/e/a", "1", 0o644),))),
    ],
)
def test_each_path_goes_from_its_beginning_to_its_end(
    effect: tuple[str, FileState, FileState], now: Found, plan: RebuildPlan | str
) -> None:
    assert planned([change(effect)], {effect[0]: now}) == plan


def test_directories_that_were_made_are_made_again() -> None:
    changes = [change(("d/a", NONE, ONE), made=("d", "x", "x/y")), change(("x/y", NONE, ONE))]
    found: dict[str, Found] = {"d/a": NONE, "x/y": NONE}
    assert planned(changes, found) == RebuildPlan(
        (), ("d", "x"), (WriteStep("d/a", "1", 0o644), WriteStep("x/y", "1", 0o644))
    )
    assert planned([change(made=("new",))], {}) == RebuildPlan((), ("new",), ())


def test_files_and_directories_change_places() -> None:
    changes = [change(("a", ONE, NONE), ("a/b", NONE, ONE)), change(("d/x", ONE, NONE), ("d", NONE, TWO))]
    found: dict[str, Found] = {
        "a": ONE,
        "a/b": FoundAbove("a"),
        "d/x": ONE,
        "d": FoundDirectory(frozenset({"d/x"}), frozenset()),
    }
    written = (WriteStep("a/b", "1", 0o644), WriteStep("d", "2", 0o644))
    assert planned(changes, found) == RebuildPlan(("a", "d/x"), ("a",), written)
    found["d"] = FoundDirectory(frozenset({"d/x", "d/other"}), frozenset())
    assert planned(changes, found) == "'d': something else is in its place."


def test_what_was_being_done_is_left_to_the_recovery() -> None:
    changes = [change(("a", NONE, ONE)), change(("a", ONE, TWO), ("b", NONE, TWO), state=ChangeState.INTENDED)]
    assert planned(changes, {"a": TWO}) == RebuildPlan((), (), ())
    assert planned(changes, {"a": NONE}) == RebuildPlan((), (), (WriteStep("a", "1", 0o644),))
